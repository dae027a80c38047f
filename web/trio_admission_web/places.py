"""Where things stand in a TOML file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from pathlib import Path

_HEADER: Final = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
_ENTRY: Final = re.compile(r"""\s*["']?([^"'=\s]+)["']?\s*=""")


@final
class Places:
    """Where each key is. Python's TOML reader does not say; this finds the usual forms."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._lines: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        for number, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.fullmatch(line):
                table = tuple(part.strip().strip("\"'") for part in header[1].split("."))
                self._lines.setdefault(table, number)
            elif entry := _ENTRY.match(line):
                self._lines.setdefault((*table, *entry[1].split(".")), number)

    def of(self, *path: str) -> str:
        """Return the place of a key: file, line and path, or file and path."""
        line = self._lines.get(path)
        return f"{self._file}{'' if line is None else f':{line}'}: {'.'.join(path)}"
