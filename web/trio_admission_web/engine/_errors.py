"""The one error of the engine."""

from __future__ import annotations

from typing import final


@final
class EngineError(Exception):
    """The embedded engine or its model is not to be had; the text is for the person who asked for it."""
