"""Standard output: what a command was asked for, and nothing else."""

from __future__ import annotations

import os
import sys
from typing import final


@final
class OutputError(Exception):
    """Raised when it cannot be written; the text is one sentence for the operator.

    Args:
        reason: Of the system.
        is_closed: Whether nobody reads it any more, which was that reader's choice.
    """

    def __init__(self, reason: str, *, is_closed: bool) -> None:
        super().__init__(reason)
        self.is_closed = is_closed

    def __str__(self) -> str:
        return f"standard output cannot be written: {self.args[0]}"


def put(text: str, end: str = "\n") -> None:
    """Write a text now, not when Python ends, which would be too late to say anything of a failure.

    Blocks while a pipe is full.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # Python keeps what it could not write, tries again when it ends, and complains.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise OutputError(
            error.strerror or str(error), is_closed=isinstance(error, BrokenPipeError)
        ) from error
