"""What to tell somebody who lacks a part that is installed only on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def missing_extra(missing: Collection[str], *extras: str) -> str:
    """Say which extras are needed for what is missing, and how to get them: in a clone, and elsewhere."""
    verb = "are" if len(missing) > 1 else "is"
    said = " ".join(f"--extra {each}" for each in extras)
    return (
        f"{', '.join(missing)} {verb} not installed: in a clone of the repository, `uv sync {said}` gets it;"
        f" elsewhere, `pip install 'trio-admission[{','.join(extras)}]'` does"
    )
