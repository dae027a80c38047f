"""Pages of the documentation, whose blocks tests run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Page:
    """One page, by its path under docs/."""

    path: str

    def blocks(self, language: str) -> list[str]:
        """Return the fenced blocks of a language, in their order."""
        text = (_DOCS / self.path).read_text(encoding="utf-8")
        return [each.partition("```")[0] for each in text.split(f"```{language}\n")[1:]]

    def names(self) -> dict[str, Any]:
        """Run all blocks of Python and return what they define."""
        names: dict[str, Any] = {"__name__": "page"}
        source = "from __future__ import annotations\n" + "\n".join(self.blocks("python"))
        exec(compile(source, self.path, "exec"), names)
        return names
