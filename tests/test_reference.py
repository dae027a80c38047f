"""The pages that are made from the library's code say what the code says, and all of it."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import described, library_reference as made

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path
    from types import EllipsisType

LIBRARY, TESTING, STATES = made.PAGES
NAMES = [(LIBRARY, name) for name in made.LIBRARY] + [
    (TESTING, name) for name in (*made.TESTING, *made.PARTS, *made.FIXTURES)
]


def entry(page: Path, name: str) -> str:
    """Return what the page says under a name."""
    return page.read_text(encoding="utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("page", made.PAGES, ids=lambda page: page.name)
def test_the_pages_are_what_the_code_says(page: Path) -> None:
    anew = "make it anew: uv run python -m tests.support.library_reference"
    assert page.read_text(encoding="utf-8") == made.PAGES[page](), anew


@pytest.mark.parametrize(("page", "name"), NAMES)
def test_every_public_name_has_an_entry_that_says_something(page: Path, name: str) -> None:
    prose = re.sub(r"```py\n.*?\n```", "", entry(page, name), flags=re.DOTALL)
    assert re.search(r"^[A-Z].*\.$", prose, re.MULTILINE)


@pytest.mark.parametrize("kind", made.CLASSES.values(), ids=made.CLASSES)
def test_every_member_of_a_public_class_is_documented(kind: type) -> None:
    """Methods, properties, fields, what a constructor sets, members of enumerations."""
    assert described.undocumented(kind, made.CLASSES.values()) == []


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, name in NAMES if name in made.CLASSES])
def test_every_member_of_a_public_class_has_its_entry(page: Path, name: str) -> None:
    """As Python sees them, so that none escapes those who read the source."""
    kind, shown = made.CLASSES[name], entry(page, name)
    bases = [
        base for base in kind.__mro__[1:] if base in made.CLASSES.values() or "trio_" not in base.__module__
    ]
    seen = set(dir(kind)) | set(inspect.get_annotations(kind))
    seen |= {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    inherited = {member for base in bases for member in dir(base) if vars(kind).get(member) is None}
    for member in seen - inherited:
        if not member.startswith("_"):
            assert f"\n### {name}.{member}\n" in shown or re.search(
                rf"^\* `{member}\b", shown, re.MULTILINE
            ), member


@pytest.mark.parametrize(
    "page", [made.DOCS.parent / "README.md", *sorted(made.DOCS.rglob("*.md"))], ids=lambda p: p.name
)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


# How the pages are made


@dataclass
class Base:
    """Nobody knows it by name.

    Args:
        told: In the section.
    """

    told: int
    silent: int = 0
    below: list[int] = dataclasses.field(default_factory=list)
    """In the string below."""


TWO = Base(1, below=[2])


class Known(Base):
    """Has what its base has."""

    marked: str

    def __init__(
        self, first: int, /, *rest: str, key: Base = TWO, wait: EllipsisType | None = ..., **more: Any
    ) -> None:
        self.one, self.other = first, rest
        self.said: int = 3
        """In the constructor."""
        more["x"].lost = self._private = key, wait

    @property
    def size(self) -> int:
        return 1

    @property
    def shown(self) -> int:
        """Said by the property."""
        return 1

    def act(self) -> None: ...

    async def wait(self, *, seconds: float = 1.0) -> str:
        """Wait."""
        raise NotImplementedError

    @classmethod
    def make(cls) -> Known:
        """Make one."""
        raise NotImplementedError


class Colour(enum.Enum):
    """Of a light."""

    RED = "red"
    """Stop."""
    GREEN = "green"


def test_what_has_no_text_is_found() -> None:
    """In a class, in its constructor, in a base that has no entry of its own, in an enumeration."""
    assert set(described.undocumented(Known, {Known})) == {"silent", "marked", "one", "other", "size", "act"}
    assert described.undocumented(Known, {Known, Base}) == ["act", "marked", "one", "other", "size"]
    assert described.undocumented(Colour, ()) == ["GREEN"]


def test_attributes_have_the_types_that_were_written() -> None:
    found = described.attributes([Base, Known])
    assert (found["below"].type, found["below"].text) == ("list[int]", "In the string below.")
    assert (found["told"].type, found["told"].text) == ("int", "In the section.")
    assert (found["said"].type, found["said"].text) == ("int", "In the constructor.")
    assert (found["shown"].type, found["shown"].text) == ("int", "Said by the property.")


def test_signatures_are_those_of_the_source() -> None:
    """With marks, defaults, and a line for each argument where they are many."""
    assert described.signature("Known", Known) == (
        "Known(\n    first: int,\n    /,\n    *rest: str,\n    key: Base = Base(told=1, below=[2]),\n"
        "    wait: EllipsisType | None = ...,\n    **more: Any,\n)"
    )
    assert described.signature("Base", Base) == "Base(told: int, silent: int = 0, below: list[int] = [])"
    method = described.methods([Known])["wait"]
    assert (
        described.signature("it.wait", method, method=True) == "async it.wait(*, seconds: float = 1.0) -> str"
    )
    made_by = described.methods([Known])["make"]
    assert described.signature("Known.make", made_by, method=True) == "classmethod Known.make() -> Known"


def test_a_manager_is_not_shown_as_the_generator_that_it_is_written_as() -> None:
    async def listening(port: int = 0) -> AsyncGenerator[str]:
        yield ""

    assert described.signature("listening", listening).endswith(" -> AbstractAsyncContextManager[str]")
