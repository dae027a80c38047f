"""The one error of the engine."""

from __future__ import annotations

from typing import final


@final
class EngineError(Exception):
    """A server or its model is not to be had; the text is for the person who asked for it.

    Args:
        text: One sentence, and maybe the end of the server's output in further lines.
        was_killed: Whether somebody, or the kernel for want of memory, has ended it by a signal.
    """

    def __init__(self, text: str, *, was_killed: bool = False) -> None:
        super().__init__(text)
        self.was_killed = was_killed
