"""A real engine that is killed, and one whose slots share a cache that is too small for all at once."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.support.engine import CHAT, NO_SYSTEM
from tests.support.processes import children
from tests.support.raw_client import Answer, RawClient, data_of
from tests.support.serving import descriptors, serving, until
from trio_admission_web.app import create_app
from trio_admission_web.settings import BackendSettings, Settings
from trio_admission_web.supervision import Patience

if TYPE_CHECKING:
    from tests.engine.conftest import StartEngine
    from trio_admission_web.app import App

KILLS = 10
EAGER = Patience(first_pause=0.1, steady=0, brief=0)
"""It is started again at once, however often it is killed."""


def chat(prompt: str, tokens: int) -> dict[str, Any]:
    """A stream of exactly that many tokens."""
    messages = [NO_SYSTEM, {"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": tokens, "stream": True, "ignore_eos": True}


def reasons(answer: Answer) -> list[str]:
    """The finish reasons in a stream."""
    chunks = [each for each in data_of(answer.body) if isinstance(each, dict)]
    found = [choice["finish_reason"] for chunk in chunks for choice in chunk.get("choices", ())]
    return [each for each in found if each is not None]


class Crowd:
    """Clients of one gateway, and what became of them."""

    def __init__(self, app: App, url: str) -> None:
        self._app = app
        self._url = url
        self.answers: dict[str, Answer] = {}
        self.order: list[str] = []
        """Who stood in the line, in the order of arrival."""
        app.gateway.backend.pool.add_instrument(self._look)

    async def ask(self, name: str, tokens: int) -> None:
        """Ask, and read the whole answer."""
        async with RawClient.connected(self._url) as client:
            self.answers[name] = await client.ask(
                "POST", CHAT, chat(f"Tell me about {name}.", tokens), [("X-Request-Id", name)]
            )

    def _look(self, _event: object) -> None:
        line = [each.id for each in self._app.gateway.line(self._app.gateway.backend)]
        self.order += [each for each in line if each not in self.order]
        # Whoever leaves the line leaves it at its head, so what is left is always the end of it.
        assert line == self.order[len(self.order) - len(line) :]


async def test_ten_kills_under_load_lose_nobody_who_was_in_the_line() -> None:
    backend = BackendSettings(gguf="default", slots=2, context_per_slot=1024)
    app = create_app(Settings(backends=(backend,)), patience=EAGER)
    pool = app.gateway.backend.pool
    others = set(children(os.getpid()))
    ports = set()
    async with serving(app) as server:
        await until(lambda: app.gateway.backend.condition.serves, 60)
        baseline = descriptors()
        crowd = Crowd(app, server.url)
        for number in range(KILLS):
            queued = [f"queued-{number}-{each}" for each in range(4)]
            [engine] = set(children(os.getpid())) - others
            ports.add(app.gateway.backend.upstream.url)
            async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
                running = []
                for each in range(2):
                    client = await stack.enter_async_context(RawClient.connected(server.url))
                    await client.request("POST", CHAT, chat(f"Count to {each}.", 900))
                    running.append((client, await client.read_head()))
                for client, answer in running:
                    await client.read_events(answer, 2)
                for place, name in enumerate(queued, 1):
                    nursery.start_soon(crowd.ask, name, 3)
                    await until(lambda: pool.statistics().waiting == place)  # noqa: B023 - awaited at once
                os.kill(engine, signal.SIGKILL)
                for client, answer in running:
                    while await client.read_more(answer):
                        pass
                    assert b'"code":"bad_gateway"' in answer.body
                    assert not reasons(answer)
                    assert data_of(answer.body)[-1] == "[DONE]"
            assert crowd.order[-4:] == queued
            assert [reasons(crowd.answers[name]) for name in queued] == [["length"]] * 4
        counts = pool.statistics()
        assert (counts.held, counts.waiting, counts.free) == (0, 0, 2)
        assert not app.gateway.passages
        await until(lambda: descriptors() <= baseline)
    assert len(ports) == KILLS  # each process had a port of its own
    assert set(children(os.getpid())) <= others


@pytest.mark.parametrize("through_gateway", [False, True], ids=["directly", "through the gateway"])
async def test_a_shared_cache_that_is_too_small_for_all(
    start_engine: StartEngine, *, through_gateway: bool
) -> None:
    engine = await start_engine(slots=2, context_per_slot=128, kv_unified=True)
    backend = BackendSettings(url=engine.url, api_key=engine.api_key, kv_cache="unified")
    app = create_app(Settings(backends=(backend,)))
    answers: list[Answer] = []
    async with serving(app) as server:
        await until(lambda: app.gateway.backend.condition.serves)
        assert app.gateway.backend.pool.statistics().kv_tokens == 256
        url = server.url if through_gateway else engine.url

        async def ask(prompt: str) -> None:
            async with RawClient.connected(url) as client:
                key = [("Authorization", f"Bearer {engine.api_key}")]
                answers.append(await client.ask("POST", CHAT, chat(prompt, 60), key))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(partial(ask, f"Story {number}: {'once upon a time ' * 25}"))
    ends = [reasons(each) for each in answers]
    if through_gateway:
        assert ends == [["length"]] * 3
    else:
        assert [] in ends
        assert any(b"Context size has been exceeded" in each.body for each in answers)
