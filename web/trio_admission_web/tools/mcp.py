"""Tools of an MCP server, through the official package `mcp`.

The package runs on anyio, so under Trio its tasks live in nurseries of whoever opens a client. A call that
is cancelled here is cancelled at the server.
"""

from __future__ import annotations

import json
import logging
import math
import shlex
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import trio
from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents

from .tool import Tool, ToolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from mcp.client._transport import TransportStreams
    from mcp.types import CallToolResult, ContentBlock, Tool as Offered

log: Final = logging.getLogger(__name__)

for _name in ("mcp", "httpx2"):  # at INFO they tell of every request, with its address and its session
    logging.getLogger(_name).setLevel(logging.WARNING)

# Seconds: to connect and be told all tools; for one call; between two attempts to connect.
_PATIENCE: Final = 30.0
_CALL_TIMEOUT: Final = 60.0
_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 60.0


@final
class McpServer:
    """One MCP server: the connection to it, and the tools that it offers.

    Args:
        target: Its address (streamable HTTP), or the command that runs it (stdio).

    Raises:
        ValueError: There is no command, or its quotes do not match.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.tools: dict[str, Tool] = {}
        self.tried = trio.Event()
        self._client: Client | None = None
        self._delay = _FIRST_DELAY
        is_address = target.startswith(("http://", "https://"))
        self._command = None if is_address else shlex.split(target)
        if self._command == []:
            raise ValueError("there is no command")

    async def run(self) -> NoReturn:
        """Keep connected until cancelled.

        A connection that is lost, or cannot be made, is made anew after a while that grows. `tools` are those
        that there were at the last connection; `tried` is set when the first attempt is over.
        """
        while True:
            try:
                await self._connected()
            except* Exception as group:  # noqa: BLE001 - whatever the other side makes the package raise
                log.warning("MCP server %s: not connected (%r)", self.target, _cause(group))
            self.tried.set()
            await trio.sleep(self._delay)
            self._delay = min(2 * self._delay, _LONGEST_DELAY)

    async def _connected(self) -> None:
        """Connect, and stay so until that ends with an error."""
        with trio.fail_after(_PATIENCE) as scope:
            server = self.target if self._command is None else _process(self._command)
            async with Client(server, cache=None) as client:
                found = [self._read(each) for each in await _listed(client)]
                self.tools.clear()
                self.tools.update({each.name: each for each in found if each is not None})
                log.info("MCP server %s: connected, tools %s", self.target, ", ".join(self.tools))
                scope.deadline = math.inf
                self._client, self._delay = client, _FIRST_DELAY
                self.tried.set()
                try:
                    await trio.sleep_forever()
                finally:
                    self._client = None

    def _read(self, offered: Offered) -> Tool | None:
        schema = offered.input_schema | {"type": "object"}
        try:
            validator_for(schema).check_schema(schema)
            return Tool(
                self._function(offered.name),
                name=offered.name,
                description=offered.description or "",
                schema=schema,
                timeout=_CALL_TIMEOUT,
            )
        except (ValueError, SchemaError) as error:
            log.warning("MCP server %s: tool %r cannot be used: %s", self.target, offered.name, error)
            return None

    def _function(self, name: str) -> Callable[..., Awaitable[str]]:
        async def call(**arguments: Any) -> str:
            if self._client is None:
                raise ToolError(f"The server of {name} is away.")
            return _text(await self._client.call_tool(name, arguments))

        return call


@asynccontextmanager
async def _process(command: list[str]) -> AsyncIterator[TransportStreams]:
    """Run a server for the block. Unlike the package's own transport, say so when it ends: with an error."""
    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with stdio_client(parameters) as (read, write), trio.open_nursery() as nursery:
        send, receive = trio.open_memory_channel[Any](0)

        async def pass_on() -> None:
            async with send:
                async for message in read:
                    await send.send(message)
            raise ConnectionError("it has ended")

        nursery.start_soon(pass_on)
        yield receive, write
        nursery.cancel_scope.cancel()


async def _listed(client: Client) -> list[Offered]:
    page = await client.list_tools()
    found = list(page.tools)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _text(result: CallToolResult) -> str:
    text = "\n".join(map(_shown, result.content))
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    if result.is_error:
        raise ToolError(text or "It failed.")
    return text


def _shown(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case ResourceLink():
            return str(block.uri)
    return f"({block.type}: not shown)"


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
