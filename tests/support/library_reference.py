"""Makes the library's reference and the page of states: ``python -m tests.support.library_reference``."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
import textwrap
import types
import typing
from pathlib import Path
from typing import Any, Final

from _pytest.fixtures import FixtureFunctionDefinition

import pytest_trio_admission as plugin
import trio_admission
import trio_admission.testing
from tests.support import described
from tests.support.described import Attribute, Docstring
from trio_admission import Held, Lease, Parked, Reservation
from trio_admission._states import MOVES, LeaseState, Move
from trio_admission.testing import fake_llama_server
from trio_admission.testing.fake_llama_server import Connection, MemoryStream, Request

DOCS: Final = Path(__file__).parents[2] / "docs"
STATES: Final = DOCS / "explanation" / "states.md"

_ABOUT_STATES: Final = """# The states of a lease

The diagram and the table are drawn from `trio_admission._states.MOVES`, which the library goes by: a move
that is not in it raises `RuntimeError` and changes nothing.
"""
_ABOUT_THE_LIBRARY: Final = """# Reference: trio_admission

Made from the code and its docstrings. Times are seconds on Trio's clock. What can be entered with
`async with` says which side blocks. [`trio_admission.testing`](testing.md) has a page of its own.
"""
_ABOUT_TESTING: Final = """# Reference: trio_admission.testing

Made from the code and its docstrings. Times are seconds on Trio's clock.
[Test your own code](../how-to/test-your-own-code.md) shows how it is used.
"""
_ABOUT_SCRIPTS: Final = """# In trio_admission.testing.fake_llama_server

What a `FakeLlamaServer` is told, and what it has seen. These names are imported from
`trio_admission.testing.fake_llama_server`, those above from `trio_admission.testing`.
"""
_ABOUT_FIXTURES: Final = """# Fixtures for pytest

Pytest finds them by itself where this library is installed: a test names them as its arguments.
"""


def offered(module: types.ModuleType) -> dict[str, Any]:
    """Return the names that a module offers, in alphabetical order."""
    names = getattr(module, "__all__", vars(module))
    return {
        name: value
        for name in sorted(names)
        if not name.startswith("_") and not inspect.ismodule(value := getattr(module, name))
    }


LIBRARY: Final = offered(trio_admission)
TESTING: Final = offered(trio_admission.testing)
PARTS: Final = {name: thing for name, thing in offered(fake_llama_server).items() if name not in TESTING}
FIXTURES: Final = {
    name: thing._get_wrapped_function()
    for name, thing in sorted(vars(plugin).items())
    if isinstance(thing, FixtureFunctionDefinition)
}

CLASSES: Final = {
    name: thing for name, thing in {**LIBRARY, **TESTING, **PARTS}.items() if isinstance(thing, type)
}
_OFFERED: Final = frozenset(CLASSES.values())
_NEVER_CALLED: Final = {Lease, Reservation, Parked, Held, Connection, MemoryStream, Request}  # by their users


def library() -> str:
    """Return the page of the library."""
    return "\n".join([_ABOUT_THE_LIBRARY, _contents(LIBRARY), *_entries(LIBRARY)])


def testing() -> str:
    """Return the page of the help for tests."""
    return "\n".join([
        _ABOUT_TESTING,
        _contents({**TESTING, **PARTS, **FIXTURES}),
        *_entries(TESTING),
        _ABOUT_SCRIPTS,
        *_entries(PARTS),
        _ABOUT_FIXTURES,
        *(_fixture(name, function) for name, function in FIXTURES.items()),
    ])


def states() -> str:
    """Return the page with the diagram of the states."""
    arrows = [
        f"    {start.name} --> {end.name}: {move.value}"
        for move in Move
        if move is not Move.END
        for start, ends in MOVES[move].items()
        for end in ends
    ]
    ends = [f"    {state.name} --> ENDED: end" for state in MOVES[Move.END] if state is not LeaseState.ENDED]
    rows = [
        f"| {move.value} | {start.value} | {' or '.join(end.value for end in ends)} |"
        for move, moves in MOVES.items()
        for start, ends in moves.items()
    ]
    diagram = [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> WAITING",
        *arrows,
        *ends,
        "    ENDED --> [*]",
        "```",
    ]
    table = ["| move | from | to |", "|---|---|---|", *rows]
    return "\n".join([_ABOUT_STATES, *diagram, "", *table, ""])


PAGES: Final = {
    DOCS / "reference" / "library.md": library,
    DOCS / "reference" / "testing.md": testing,
    STATES: states,
}


def _contents(names: dict[str, Any]) -> str:
    return _wrapped(" · ".join(f"[{name}](#{name.lower()})" for name in names)) + "\n"


def _entries(things: dict[str, Any]) -> list[str]:
    return [part for name, thing in things.items() for part in [f"## {name}\n", *_about(name, thing)]]


def _about(name: str, thing: Any) -> list[str]:
    if isinstance(thing, types.UnionType):
        one, *_ = members = typing.get_args(thing)
        text = described.alias_text(sys.modules[one.__module__], name)
        return [_code(f"{name} = {' | '.join(member.__name__ for member in members)}"), f"{text}\n"]
    if not isinstance(thing, type):
        return [_code(described.signature(name, thing)), *_told(Docstring.of(thing))]
    return _about_class(name, thing)


def _about_class(name: str, kind: type) -> list[str]:
    classes = described.own(kind, _OFFERED)
    attributes = described.attributes(classes)
    doc = Docstring.of(kind)
    if issubclass(kind, enum.Enum):
        members = [f'* `{each.name}` = `"{each.value}"`: {attributes[each.name].text}' for each in kind]
        return [*_told(doc), _list(members)]
    written = any({"__init__", "__new__"} & set(vars(each)) for each in classes)
    called = written and kind not in _NEVER_CALLED and not getattr(kind, "_is_protocol", False)
    arguments = set(inspect.signature(kind).parameters) if called else set()
    told = doc.sections.get("Args", {}) if dataclasses.is_dataclass(kind) else {}  # its fields, as arguments
    listed = [
        f"* `{attribute}{_typed(about) if attribute not in arguments else ''}`: {about.text}"
        for attribute, about in attributes.items()
        if attribute not in told
    ]
    return [
        *([_code(described.signature(name, kind))] if called else []),
        *_bases(kind, classes),
        *_told(doc, leave_out="Attributes"),
        *(["**Attributes**\n", _list(listed)] if listed else []),
        *(
            part
            for method, value in described.methods(classes).items()
            for part in [
                f"### {name}.{method}\n",
                _code(described.signature(f"{name}.{method}", value, method=True)),
                *_told(Docstring.of(value)),
            ]
        ),
    ]


def _typed(attribute: Attribute) -> str:
    return f": {attribute.type}" if attribute.type else ""


def _bases(kind: type, classes: list[type]) -> list[str]:
    bases = [
        base.__name__ if base in _OFFERED else f"{base.__module__}.{base.__name__}"
        for each in classes
        for base in each.__bases__
        if base in _OFFERED or base.__module__.startswith("trio.")
    ]
    return [f"A kind of `{base}`.\n" for base in bases]


def _fixture(name: str, function: Any) -> str:
    _, kind = re.split(r"[\[\]]", inspect.signature(function).return_annotation)[:2]  # Iterator[KIND]
    return "\n".join([f"## {name}\n", _code(f"{name}: {kind}"), *_told(Docstring.of(function))])


def _told(doc: Docstring, leave_out: str = "") -> list[str]:
    sections = [
        f"**{title}**\n\n" + _list([f"* `{name}`: {text}" for name, text in entries.items()])
        for title, entries in doc.sections.items()
        if title != leave_out
    ]
    return [f"{doc.prose}\n", *sections]


def _code(text: str) -> str:
    """Show code. Not as ``python``, whose blocks are run by the tests."""
    return f"```py\n{text}\n```\n"


def _list(lines: list[str]) -> str:
    return "\n".join(_wrapped(line, "  ") for line in lines) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, width=118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    for path, make in PAGES.items():
        path.write_text(make(), encoding="utf-8")
