"""Approvals in front of a real language model: parked conversations hold nothing, and come back warm."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.support.command import running
from tests.support.engine import CHAT
from tests.support.page import Page
from tests.support.raw_client import RawClient, data_of
from tests.support.serving import serving, until
from tests.support.tools import PLACES
from trio_admission_web.app import App, create_app
from trio_admission_web.settings import BackendSettings, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.engine.conftest import StartEngine
    from tests.support.engine import RunningEngine

FORCE = {
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"force_tool_call": True},
    "temperature": 0,
    "max_tokens": 40,
}


@asynccontextmanager
async def gateway_to(engine: RunningEngine) -> AsyncIterator[tuple[App, str]]:
    """Run the gateway; afterwards nothing is held, waits or is parked."""
    backend = BackendSettings(url=engine.url, api_key=engine.api_key)
    app = create_app(Settings(backends=(backend,), tools=PLACES))
    async with serving(app) as server:
        await until(lambda: app.gateway.backend.pool.statistics().slots == engine.slots)
        yield app, server.url
        await until(lambda: not app.gateway.passages)
        now = app.gateway.backend.pool.statistics()
        assert (now.held, now.waiting, now.parked, now.returning) == (0, 0, 0, 0)
    await engine.idle()


def asking(question: str) -> dict[str, Any]:
    return {
        "stream": True,
        "messages": [{"role": "user", "content": question}],
        "admission": {"tools": ["flip"], "approval": "always"},
        **FORCE,
    }


async def converse(url: str, question: str, think: Callable[[], Awaitable[None]]) -> list[dict[str, Any]]:
    """Ask, think before each call is approved, and return all chunks of the answer."""
    chunks: list[dict[str, Any]] = []
    async with RawClient.connected(url) as client:
        await client.request("POST", CHAT, asking(question))
        head = await client.read_head()
        for count in itertools.count(1):
            event = (await client.read_events(head, count))[count - 1]
            if event == b"data: [DONE]":
                break
            if event.startswith(b":"):
                continue
            chunks.append(json.loads(event[6:]))
            news = chunks[-1].get("admission", {})
            if news.get("type") == "approval_required":
                await think()
                path = f"/admission/approvals/{news['id']}"
                async with RawClient.connected(url) as person:
                    assert (await person.ask("POST", path, {"decision": "allow"})).status == 200
    return chunks


def news_of(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["admission"]["type"] for chunk in chunks if "admission" in chunk]


async def test_the_only_slot_serves_another_while_a_person_thinks(start_engine: StartEngine) -> None:
    engine = await start_engine(slots=1)
    async with gateway_to(engine) as (app, url), trio.open_nursery() as nursery:
        mine: list[dict[str, Any]] = []
        answered = trio.Event()

        async def ask() -> None:
            mine.extend(await converse(url, "Flip a coin.", answered.wait))

        nursery.start_soon(ask)
        await until(lambda: app.gateway.backend.pool.statistics().parked == 1, seconds=120)
        async with RawClient.connected(url) as other:
            body = {"stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
            answer = await other.ask("POST", CHAT, body)
        assert data_of(answer.body)[-1] == "[DONE]"
        answered.set()
    assert news_of(mine)[:4] == ["approval_required", "approval_decided", "tool_started", "tool_result"]
    assert news_of(mine)[-1] == "resumed"
    endings = [part["finish_reason"] for chunk in mine for part in chunk["choices"] if part["finish_reason"]]
    assert len(endings) == 1
    assert endings[0] in {"stop", "length"}


@pytest.mark.timeout(300)
async def test_nobody_starves_when_all_wait_for_people(start_engine: StartEngine) -> None:
    engine = await start_engine(slots=2)
    answers: list[list[dict[str, Any]]] = []
    deferred: list[float] = []

    async def watch() -> None:
        while True:
            deferred.append((await engine.metrics())["llamacpp:requests_deferred"])
            await trio.sleep(0.1)

    async with gateway_to(engine) as (app, url), trio.open_nursery() as watching:
        watching.start_soon(watch)
        all_wait = trio.Event()

        async def ask(number: int) -> None:
            answers.append(await converse(url, f"Flip coin {number}.", all_wait.wait))

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
            await until(lambda: app.gateway.backend.pool.statistics().parked == 10, seconds=240)
            all_wait.set()
        watching.cancel_scope.cancel()
    assert len(answers) == 10
    assert all("resumed" in news_of(answer) for answer in answers)
    assert set(deferred) == {0}


@pytest.mark.timeout(300)
async def test_two_terminals_suffice_to_see_it() -> None:
    """What docs/how-to/approvals.md tells, with its own commands; of them only the port is changed."""
    page = Page("how-to/approvals.md")
    _, *start = shlex.split(page.blocks("console")[0])
    async with running("trio_admission_web", *start[:-1], "0") as demo:
        first, second = (each.replace("http://127.0.0.1:8000", demo.url) for each in page.blocks("bash"))
        shown = bytearray()
        async with trio.open_nursery() as nursery:
            terminal = partial(trio.run_process, ["bash", "-ec", first], stdout=subprocess.PIPE)
            process = await nursery.start(terminal)
            async for data in process.stdout:
                shown += data
                if b"approval_required" in shown:
                    break
            other = await trio.run_process(["bash", "-ec", second], capture_stdout=True)
            async for data in process.stdout:
                shown += data
        demo.process.terminate()
    assert start == ["demo", "--slots", "1", "--port", "8000"]
    served, _, decided = other.stdout.partition(b"data: [DONE]")  # its own answer, before it decides
    assert len(data_of(served)) > 2
    assert decided.endswith(b'"decision": "allow"}')
    *chunks, end = data_of(bytes(shown))
    assert end == "[DONE]"
    news = [chunk["admission"] for chunk in chunks if "admission" in chunk]
    news = [each for each in news if each["type"] != "returning"]  # if the other's slot was not yet back
    assert [each["type"] for each in news] == [
        "approval_required", "approval_decided", "tool_started", "tool_result", "resumed"
    ]  # fmt: skip
    assert (news[3]["tool"], news[3]["ok"]) == ("calculate", True)
    after = chunks[[chunk.get("admission") for chunk in chunks].index(news[-1]) :]
    assert any(part["delta"].get("content") for chunk in after for part in chunk["choices"])
