"""Tools for tests, loaded as an operator's would be."""

from __future__ import annotations

import trio

from trio_admission_web.tools import ToolError, tool

PLACES = tuple(f"{__name__}:{name}" for name in ("find", "nap", "fail"))


@tool
async def find(what: str) -> str:
    """Find something."""
    return f"found {what}"


@tool(approval="never", timeout=100)
async def nap(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return "slept"


@tool(approval="never")
async def fail() -> str:
    """Fail."""
    raise ToolError("It is broken.")
