"""What a test asks the kernel about processes."""

from __future__ import annotations

from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are still there."""
    told = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in told for child in each.read_text().split()]


def is_gone(pid: int) -> bool:
    """Whether it does not run any more; whoever is to take note of its end may not have done so."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return told.rpartition(")")[2].split()[0] in "ZX"
