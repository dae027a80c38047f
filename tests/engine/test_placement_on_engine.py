"""Conversations and slots, judged by what the real engine says that it still knew of each prompt."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trio

from tests.support.agent import Agent
from tests.support.engine import CHAT, RunningEngine
from tests.support.llama_server import COMMAND
from tests.support.serving import serving, until
from tests.support.tools import PLACES
from trio_admission_web.app import App, create_app
from trio_admission_web.engine import find_model, run_command
from trio_admission_web.settings import BackendSettings, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.engine.conftest import StartEngine

pytestmark = pytest.mark.timeout(300)

# Tokens: with a tool beside them just enough for a file to be worth it.
LONG = 130


@asynccontextmanager
async def gateway_to(engine: RunningEngine, **backend: Any) -> AsyncIterator[tuple[App, httpx2.AsyncClient]]:
    """Run the gateway, and a client of it; afterwards nothing is held, waits or is parked."""
    told = BackendSettings(url=engine.url, api_key=engine.api_key, kv_cache="isolated", **backend)
    app = create_app(Settings(backends=(told,), tools=PLACES))
    async with serving(app) as server:
        await until(lambda: app.gateway.backend.pool.statistics().slots == engine.slots)
        async with httpx2.AsyncClient(
            base_url=server.url, timeout=120, trust_env=False, verify=False
        ) as client:
            yield app, client
        await until(lambda: not app.gateway.passages)
        now = app.gateway.backend.pool.statistics()
        assert (now.held, now.waiting, now.returning) == (0, 0, 0)
    await engine.idle()


def files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_the_next_turn_of_a_conversation_finds_its_own_slot(start_engine: StartEngine) -> None:
    engine = await start_engine(slots=2)
    async with gateway_to(engine) as (_, client):
        one = Agent.named(client, "ox", words=40, shared=60)
        other = Agent.named(client, "elk", words=40, shared=60)
        known = [(await each.say()).context for each in (one, other)]
        for _ in range(2):
            for number, each in enumerate((one, other)):
                turn = await each.say("Go on.")
                assert turn.cached >= known[number] - 4  # the last tokens are a new turn's first
                known[number] = turn.context


@pytest.mark.parametrize(
    ("slots", "others", "with_files", "is_warm"),
    [
        pytest.param(1, 1, True, True, id="one slot, saved"),
        pytest.param(1, 1, False, False, id="one slot, lost"),
        pytest.param(2, 1, False, True, id="two slots, left alone"),
        pytest.param(2, 2, True, True, id="two slots, saved"),
        pytest.param(2, 2, False, False, id="two slots, lost"),
    ],
)
async def test_a_conversation_that_holds_a_ticket_comes_back_warm_if_it_can(
    start_engine: StartEngine, tmp_path: Path, slots: int, others: int, *, with_files: bool, is_warm: bool
) -> None:
    engine = await start_engine(slots=slots, slot_save_path=tmp_path)
    backend = {"slot_save_path": str(tmp_path)} if with_files else {}
    async with gateway_to(engine, **backend) as (_, client):
        agent = Agent.named(client, "ox", words=LONG)
        left = await agent.call()
        assert agent.ticket is not None
        async with trio.open_nursery() as nursery:
            for number in range(others):
                nursery.start_soon(Agent.named(client, f"elk{number}", words=30).say, "Hello.")
        assert len(files(tmp_path)) == (1 if with_files else 0)
        back = await agent.bring("A word is a word.")
        before_the_call = left.context - left.generated
        if is_warm:
            assert back.cached >= 0.95 * before_the_call
        else:
            assert back.cached < 0.5 * before_the_call
        assert not files(tmp_path)


async def test_a_conversation_that_is_parked_comes_back_warm(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine(slots=1, slot_save_path=tmp_path)
    async with gateway_to(engine, slot_save_path=str(tmp_path)) as (app, client):
        answers: list[dict[str, Any]] = []
        asking = Agent.named(client, "ox", words=LONG).messages

        async def ask() -> None:
            body = {
                "messages": asking,
                "admission": {"tools": ["flip"], "approval": "always"},
                "tool_choice": "required",
                "parallel_tool_calls": False,
                "chat_template_kwargs": {"force_tool_call": True},
                "temperature": 0,
                "max_tokens": 40,
            }
            answers.append((await client.post(CHAT, json=body)).raise_for_status().json())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: app.gateway.backend.pool.statistics().parked == 1, seconds=100)
            other = await Agent.named(client, "elk", words=30).say()
            assert other.cached < 20
            assert files(tmp_path)
            [question] = (await client.get("/admission/approvals")).json()["approvals"]
            decided = await client.post(f"/admission/approvals/{question['id']}", json={"decision": "allow"})
            assert decided.status_code == 200
    [answer] = answers
    assert answer["timings"]["cache_n"] >= LONG
    assert answer["timings"]["prompt_n"] < LONG
    assert not files(tmp_path)


STORY = "Tell me a long story about a fox."
OTHER = "List the months of the year, and what grows in each of them. " * 2


def pinned(prompt: str, tokens: int, **members: Any) -> dict[str, Any]:
    """Ask for slot 0."""
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "id_slot": 0,
        **members,
    }


async def story(client: httpx2.AsyncClient, *, is_interrupted: bool) -> str:
    """Have a story told, with another request, for the same slot, in the middle of it or not.

    The server has the other's prompt in its RAM cache, as it is by default.
    """
    await client.post(CHAT, json=pinned(OTHER, 4))
    pieces: list[str] = []
    begun = trio.Event()

    async def listen() -> None:
        async with client.stream("POST", CHAT, json=pinned(STORY, 60, stream=True)) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    pieces.extend(each["delta"].get("content") or "" for each in choices)
                if len(pieces) > 10:
                    begun.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await begun.wait()
        if is_interrupted:
            (await client.post(CHAT, json=pinned(OTHER, 4))).raise_for_status()
    return "".join(pieces)


async def test_a_pin_to_a_busy_slot_spoils_what_runs_there_and_none_passes(nursery: trio.Nursery) -> None:
    """With the server's own defaults but for isolated slots."""
    command = (*COMMAND, "-m", str(find_model().path), "-np", "2", "-c", "2048")
    engine = RunningEngine(await nursery.start(run_command, command), 2)
    async with engine.client() as client:
        client.headers["connection"] = "close"  # which the server does after a stream, whatever it says
        assert (await story(client, is_interrupted=False)).count("fox") > 1
        assert (await story(client, is_interrupted=True)).count("fox") == 1  # it goes on about the months
    async with gateway_to(engine) as (_, client):
        assert (await story(client, is_interrupted=True)).count("fox") > 1
