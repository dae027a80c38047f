"""The pages that are made from the library's code say what the code says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support import library_reference as made

if TYPE_CHECKING:
    from pathlib import Path

MAKE_ANEW = "make it anew: uv run python -m tests.support.library_reference"


def test_the_reference_is_the_docstrings() -> None:
    assert made.REFERENCE.read_text() == made.reference(), MAKE_ANEW


def test_the_diagram_is_the_table() -> None:
    assert made.STATES.read_text() == made.states(), MAKE_ANEW


@pytest.mark.parametrize("name", made.public_names())
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert f"\n## {name}\n" in made.REFERENCE.read_text()


@pytest.mark.parametrize(
    "page", [made.DOCS.parent / "README.md", *sorted(made.DOCS.rglob("*.md"))], ids=lambda p: p.name
)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
