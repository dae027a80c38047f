"""Tools of MCP servers: real ones, each in a process of its own."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.support.command import running
from tests.support.gateway import CHAT, chat
from tests.support.serving import tasks, until
from tests.support.stage import stage
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script, ToolCall
from trio_admission_web.tools import ToolError, ToolLoadError, load_servers
from trio_admission_web.tools.mcp import McpServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    Connect = Callable[[], AbstractAsyncContextManager[McpServer]]

PATH = Path(__file__).parents[2] / "support" / "mcp_server.py"
STDIO = f"{sys.executable} {PATH}"


@asynccontextmanager
async def connected(target: str) -> AsyncIterator[McpServer]:
    """Have a server's tools for the block."""
    server = McpServer(target)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        with trio.fail_after(30):
            await server.tried.wait()
        yield server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def over_http() -> AsyncIterator[McpServer]:
    sign = rb"INFO: +Uvicorn running on"
    async with running("tests.support.mcp_server", "http", sign=sign) as command:
        async with connected(f"{command.url}/mcp") as server:
            yield server
        command.process.terminate()


async def result_of(server: McpServer, name: str, **arguments: object) -> str:
    """What the model is told of a call."""
    tool = server.tools[name]
    try:
        return await tool.call(tool.check(arguments))
    except ToolError as error:
        return f"Error: {error}"


@pytest.mark.parametrize("server", [lambda: connected(STDIO), over_http], ids=["stdio", "http"])
async def test_its_tools_are_called_like_others(server: Connect) -> None:
    before = tasks()
    async with server() as offered:
        assert set(offered.tools) == {"add", "nap", "die", "refuse", "draw", "calculate"}
        add = offered.tools["add"]
        assert (add.description, add.schema["required"]) == ("Add two numbers.", ["a", "b"])
        assert add.asks("auto")  # what a stranger's tool does, a person should see
        assert await result_of(offered, "add", a=2, b=3) == "5"
        assert await result_of(offered, "add", a="2", b=3) == "Error: arguments.a must be an integer."
        assert await result_of(offered, "refuse") == "Error: Not on a Sunday."
        assert await result_of(offered, "draw") == "A dot:\n(image: not shown)"
    assert tasks() == before


@pytest.mark.parametrize("server", [lambda: connected(STDIO), over_http], ids=["stdio", "http"])
async def test_a_call_that_is_given_up_is_given_up_there_too(server: Connect, tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with server() as offered:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: result_of(offered, "nap", note=str(note)))
            await until(lambda: note.exists() and note.read_text() == "asleep", seconds=30)
            nursery.cancel_scope.cancel()
        await until(lambda: note.read_text() == "woken", seconds=30)
        assert await result_of(offered, "add", a=2, b=3) == "5"


async def test_a_server_that_ends_fails_its_calls_and_is_started_again() -> None:
    async with connected(STDIO) as server:
        assert await result_of(server, "die") == "Error: die failed."
        await until(lambda: server._client is None)
        assert await result_of(server, "add", a=2, b=3) == "Error: The server of add is away."
        await until(lambda: server._client is not None, seconds=60)
        assert await result_of(server, "add", a=2, b=3) == "5"


async def test_a_server_that_goes_away_during_a_call_over_http_is_a_failed_result() -> None:
    async with over_http() as server:
        assert await result_of(server, "die") == "Error: die failed."


async def test_a_server_that_cannot_be_reached_is_said_and_has_no_tools(
    caplog: pytest.LogCaptureFixture,
) -> None:
    targets = "/no/such/command", "false", "http://127.0.0.1:1/mcp"
    for target in targets:
        async with connected(target) as server:
            assert not server.tools
    assert all(
        f"{target}: not connected" in said for target, said in zip(targets, caplog.messages, strict=True)
    )


async def test_the_gateway_offers_what_does_not_hide_its_own(caplog: pytest.LogCaptureFixture) -> None:
    llama = FakeLlamaServer(total_slots=1, words=2, interval=0.001)
    calls = ToolCall("add", ['{"a":2,"b":3}']), ToolCall("calculate", ['{"expression":"1+1"}'])
    llama.script(Script(tokens=0, tool_calls=list(calls), interval=0.001))
    async with stage(llama, tools=[f"mcp {STDIO}"]) as both, both.server.client() as client:
        body = chat(admission={"tools": ["add", "calculate"], "approval": "never"})
        assert (await client.ask("POST", CHAT, body)).status == 200
    asked, told = (json.loads(each.body) for each in llama.generations)
    assert [each["function"]["name"] for each in asked["tools"]] == ["add", "calculate"]
    assert [each["content"] for each in told["messages"][-2:]] == ["5", "2"]
    assert any(each.endswith("hidden by other tools: calculate") for each in caplog.messages)


@pytest.mark.parametrize("place", ["mcp ", "mcp 'x"])
def test_a_command_that_is_none_is_named(place: str) -> None:
    with pytest.raises(ToolLoadError, match=place):
        load_servers([place])


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio_admission_web.tools.mcp", None)
    with pytest.raises(ToolLoadError, match=r"pip install .*\[mcp\]'"):
        load_servers(["mcp npx server"])
