"""Makes the reference and the page of states: ``python -m tests.support.library_reference``."""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from pathlib import Path
from typing import Final

import trio_admission
from trio_admission._states import MOVES, LeaseState, Move

DOCS: Final = Path(__file__).parents[2] / "docs"
REFERENCE: Final = DOCS / "reference" / "library.md"
STATES: Final = DOCS / "explanation" / "states.md"

_ABOUT_STATES: Final = """# The states of a lease

The diagram and the table are drawn from `trio_admission._states.MOVES`, which the library goes by: a move
that is not in it raises `RuntimeError` and changes nothing.
"""
_ABOUT_REFERENCE: Final = """# Reference: trio_admission

Made from the docstrings. Times are seconds on Trio's clock. What can be entered with `async with` says which
side blocks.
"""


def public_names() -> list[str]:
    """Return the names that the package offers, in alphabetical order."""
    return sorted(
        name
        for name, value in vars(trio_admission).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    )


def reference() -> str:
    """Return the page that describes every public name from its docstring."""
    parts = [_ABOUT_REFERENCE]
    for name in public_names():
        thing = getattr(trio_admission, name)
        parts.append(f"## {name}\n\n{_text(thing)}")
        if issubclass(thing, enum.Enum):
            parts.append("\n".join(f"* `{member.name}` = `{member.value!r}`" for member in thing) + "\n")
            continue
        parts += [f"### {name}.{member}\n\n{_text(value)}" for member, value in _members(thing)]
    return "\n".join(parts)


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


def _members(thing: type) -> list[tuple[str, object]]:
    return [
        (name, inspect.unwrap(value) if callable(value) else value)
        for name in sorted(vars(thing))
        if not name.startswith("_")
        and inspect.getdoc(value := inspect.getattr_static(thing, name)) is not None
        and (callable(value) or isinstance(value, (property, classmethod)))
    ]


def _text(thing: object) -> str:
    doc = inspect.getdoc(thing) or ""
    doc = re.sub(r"``(.+?)``", r"`\1`", doc)
    # Google's sections, as lists that Markdown knows.
    doc = re.sub(r"^(Args|Raises|Returns):$", r"**\1**\n", doc, flags=re.MULTILINE)
    lines = []
    for line in doc.splitlines():
        if re.match(r"    \S+: ", line):
            name, _, rest = line.strip().partition(": ")
            lines.append(f"* `{name}`: {rest}")
        elif line.startswith("    "):
            lines.append("  " + line.strip())
        else:
            lines.append(line)
    return textwrap.dedent("\n".join(lines)).strip() + "\n"


if __name__ == "__main__":
    REFERENCE.write_text(reference())
    STATES.write_text(states())
