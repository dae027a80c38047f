"""An MCP server in a process of its own: over stdio, or over HTTP with ``http`` as its argument."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Image, MCPServer
from mcp.types import CallToolResult, TextContent

server = MCPServer("tests")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def nap(note: str) -> str:
    """Sleep for ever, and write a file when that is cancelled."""
    Path(note).write_text("asleep")  # noqa: ASYNC240 - small, and nobody else waits
    try:
        await anyio.sleep_forever()
    finally:
        Path(note).write_text("woken")  # noqa: ASYNC240 - cancelled already
    return ""


@server.tool()
async def die() -> str:
    """End the server in the middle of the call."""
    os._exit(3)


@server.tool()
async def refuse() -> CallToolResult:
    """Refuse."""
    return CallToolResult(content=[TextContent(type="text", text="Not on a Sunday.")], is_error=True)


@server.tool()
async def draw() -> list[str | Image]:
    """Return a text and a picture."""
    return ["A dot:", Image(data=b"dot", format="png")]


@server.tool(name="calculate")
async def other_calculate() -> str:
    """Have the name of a built-in tool."""
    return "not this one"


@server.tool(name="no.such/name")
async def unusable() -> str:
    """Have a name that models cannot call."""
    return ""


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=0)
    else:
        server.run("stdio")
