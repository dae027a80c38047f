"""Tools for tests, loaded as an operator's would be."""

from __future__ import annotations

from typing import Literal

import trio

from trio_admission_web.tools import ToolError, current_request, tool

PLACES = tuple(f"{__name__}:{name}" for name in ("find", "nap", "fail", "flip", "whose", "whose_in_thread"))


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


@tool(approval="never")
async def whose() -> str:
    """Tell the request's id."""
    return current_request.get()


@tool(approval="never")
def whose_in_thread() -> str:
    """Tell the request's id."""
    return current_request.get()


@tool
async def flip(side: Literal["heads", "tails"]) -> str:
    """Flip a coin and bet on a side."""
    return f"You lose with {side}."
