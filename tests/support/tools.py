"""Tools for tests, loaded as an operator's would be."""

from __future__ import annotations

import sys
from typing import Any, Literal

import trio

from trio_admission_web.tools import ToolError, current_request, tool

PLACES = tuple(
    f"{__name__}:{name}"
    for name in (
        "find",
        "nap",
        "fail",
        "flip",
        "whose",
        "whose_in_thread",
        "leave",
        "leave_in_thread",
        "spill",
    )
)


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


@tool(approval="never")
async def leave() -> str:
    """Try to end the whole process."""
    sys.exit(1)


@tool(approval="never")
def leave_in_thread() -> str:
    """Try to end the whole process."""
    sys.exit(1)


@tool(approval="never")
async def spill(anything: Any = None) -> str:
    """Return ten million characters, the first of which is none."""
    return "\ud800" + 10**7 * "x"
