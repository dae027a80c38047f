"""What docs/how-to/approvals.md shows works, over sockets; so do both official SDKs."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import anthropic
import trio

from tests.support.gateway import CHAT, chat
from tests.support.page import Page
from tests.support.serving import until
from tests.support.stage import Stage, stage
from tests.support.tools import PLACES
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Page("how-to/approvals.md")
CALCULATES = Script(
    tokens=0, tool_calls=[ToolCall("calculate", ['{"expression":', '"6 * 7"}'])], interval=0.01
)
ANSWERS = Script(tokens=["It", " is", " 42"], interval=0.01)


def server(*scripts: Script) -> FakeLlamaServer:
    llama = FakeLlamaServer(total_slots=1, words=3, interval=0.01)
    llama.script(*scripts)
    return llama


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await trio.to_thread.run_sync(lambda: function(*arguments))


def shell(script: str) -> str:
    return subprocess.run(
        ["bash", "-ec", script], check=True, capture_output=True, text=True, timeout=30
    ).stdout


def parked(both: Stage) -> int:
    return both.app.gateway.backend.pool.statistics().parked


async def test_two_terminals() -> None:
    first, second = PAGE.blocks("bash")
    async with stage(server(CALCULATES)) as both, trio.open_nursery() as nursery:
        shown: list[str] = []

        async def one() -> None:
            shown.append(await in_thread(shell, first.replace("http://127.0.0.1:8000", both.server.url)))

        nursery.start_soon(one)
        await until(lambda: parked(both) == 1)
        other = await in_thread(shell, second.replace("http://127.0.0.1:8000", both.server.url))
    assert "r2w0" in other  # served while the first was parked
    assert '"decision": "allow"' in other
    types = [
        json.loads(line[6:])["admission"]["type"] for line in shown[0].splitlines() if "admission" in line
    ]
    assert types == ["approval_required", "approval_decided", "tool_started", "tool_result", "resumed"]
    assert "r3w2" in shown[0]
    assert shown[0].count("[DONE]") == 1


async def test_the_openai_sdk_reads_the_question_and_the_answer() -> None:
    llama = server(CALCULATES, ANSWERS)
    async with stage(llama) as both:
        assert await in_thread(PAGE.names()["ask"], both.server.url, "What is 6 * 7?") == "It is 42"
    assert json.loads(llama.generations[1].body)["messages"][-1]["content"] == "42"


def ask_anthropic(url: str) -> tuple[Any, Any]:
    body: Any = {
        "model": "any",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "What is 6 * 7?"}],
        "extra_body": {"admission": {"tools": ["calculate", "nap"]}},
    }
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=10) as client:
        with client.messages.stream(**body) as stream:
            streamed = stream.get_final_message()
        return streamed, client.messages.create(**body)


async def test_the_anthropic_sdk_gets_one_message() -> None:
    async with stage(server(CALCULATES, ANSWERS, CALCULATES, ANSWERS), tools=PLACES) as both:
        for message in await in_thread(ask_anthropic, both.server.url):
            assert [block.text for block in message.content] == ["It is 42"]
            assert message.stop_reason == "end_turn"
            assert message.usage.output_tokens > 3  # of both rounds


async def test_an_agent_with_tools_of_its_own_returns_ahead_of_newcomers() -> None:
    llama = server(CALCULATES)
    async with stage(llama) as both, both.two_clients() as (holder, newcomer):

        async def come() -> None:
            """Take the slot and stand in line, while the agent's tool runs."""
            llama.script(Script(tokens=100, interval=0.01))
            await holder.request("POST", CHAT, chat(stream=True, seed=1))
            await until(lambda: both.counts == (1, 0))
            await newcomer.request("POST", CHAT, chat(stream=True, seed=2))
            await until(lambda: both.counts == (1, 1))

        def run(name: str, arguments: dict[str, Any]) -> str:
            trio.from_thread.run(come)
            return f"{name} of {arguments['expression']}"

        tool = {"type": "function", "function": {"name": "calculate", "parameters": {"type": "object"}}}
        answer = await in_thread(PAGE.names()["run_agent"], both.server.url, [tool], run, "What is 6 * 7?")
        await newcomer.read_head()
    order = [json.loads(each.body).get("seed") for each in llama.generations]
    assert order == [None, 1, None, 2]
    assert answer == "r3w0 r3w1 r3w2"


async def test_a_client_that_goes_away_while_parked_is_missed_at_once() -> None:
    async with stage(server(CALCULATES)) as both, both.server.client() as client:
        body = chat(stream=True, admission={"tools": ["calculate"], "approval": "always"})
        await client.request("POST", CHAT, body)
        await until(lambda: parked(both) == 1)
        client.reset()
        await until(lambda: parked(both) == 0 and not both.app.gateway.passages, seconds=0.5)
