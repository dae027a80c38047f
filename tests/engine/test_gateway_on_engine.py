"""The gateway in front of a real language model: what its clients see, and what the engine says of them."""

from __future__ import annotations

import json
import re
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai
import pytest
import trio

from tests.support.engine import CHAT, NO_SYSTEM
from tests.support.raw_client import RawClient, data_of, events
from tests.support.serving import serving, until
from trio_admission import AdmissionConfig
from trio_admission_web import commands
from trio_admission_web.app import App, create_app
from trio_admission_web.settings import BackendSettings, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.engine import RunningEngine
    from tests.support.raw_client import Answer

ENDLESS = 900  # tokens; a context holds 1024


@dataclass
class Gateway:
    """A gateway in front of the engine."""

    url: str
    app: App

    @property
    def counts(self) -> tuple[int, int]:
        """Held and waiting."""
        statistics = self.app.gateway.backend.pool.statistics()
        return statistics.held, statistics.waiting

    async def admission(self) -> dict[str, Any]:
        async with RawClient.connected(self.url) as client:
            found: dict[str, Any] = (await client.ask("GET", "/admission")).json["backends"]["default"]
            return found


@asynccontextmanager
async def gateway_to(engine: RunningEngine, **admission: Any) -> AsyncIterator[Gateway]:
    """Run the gateway; afterwards nothing is held or waits, and the engine is idle."""
    backend = BackendSettings(url=engine.url, api_key=engine.api_key)
    settings = Settings(backends=(backend,), admission=AdmissionConfig(**admission))
    app = create_app(settings)
    async with serving(app) as server:
        gateway = Gateway(server.url, app)
        await until(lambda: app.gateway.backend.pool.statistics().slots == engine.slots)
        yield gateway
        await until(lambda: gateway.counts == (0, 0) and not app.gateway.passages)
    await engine.idle()


def chat(prompt: str, *, tokens: int, stream: bool = True) -> dict[str, Any]:
    """A request whose answer has exactly that many tokens."""
    messages = [NO_SYSTEM, {"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": tokens, "stream": stream, "ignore_eos": True}


async def ask(url: str, body: dict[str, Any], key: str = "none") -> Answer:
    async with RawClient.connected(url) as client:
        return await client.ask("POST", CHAT, body, [("Authorization", f"Bearer {key}")])


@asynccontextmanager
async def occupied(gateway: Gateway, slots: int) -> AsyncIterator[list[RawClient]]:
    """Hold that many slots with answers that do not end; leaving gives them back."""
    async with AsyncExitStack() as stack:
        holders = [await stack.enter_async_context(RawClient.connected(gateway.url)) for _ in range(slots)]
        for number, client in enumerate(holders):
            await client.request("POST", CHAT, chat(f"Tell me story {number}.", tokens=ENDLESS))
        for client in holders:
            await client.read_events(await client.read_head(), 1)
        yield holders


async def collect_deferred(engine: RunningEngine, samples: list[float]) -> None:
    """Look again and again until cancelled. Fast is harmless here: nobody leaves without a stream."""
    while True:
        samples.append((await engine.metrics())["llamacpp:requests_deferred"])
        await trio.sleep(0.05)


async def test_the_line_is_in_the_gateway_and_never_in_the_engine(engine: RunningEngine) -> None:
    answers: list[Answer] = []
    deferred: list[float] = []
    crowds: list[tuple[int, int]] = []
    async with gateway_to(engine) as gateway:

        async def one(number: int) -> None:
            body = chat(f"Count to {number}.", tokens=8, stream=number % 2 == 0)
            answers.append(await ask(gateway.url, body))

        gateway.app.gateway.backend.pool.add_instrument(lambda _event: crowds.append(gateway.counts))
        async with trio.open_nursery() as watching:
            watching.start_soon(collect_deferred, engine, deferred)
            async with trio.open_nursery() as asking:
                for number in range(12):
                    asking.start_soon(one, number)
            watching.cancel_scope.cancel()
    assert [answer.status for answer in answers] == [200] * 12
    assert deferred
    assert set(deferred) == {0}
    assert max(held for held, _ in crowds) == engine.slots
    assert max(waiting for _, waiting in crowds) > 0
    for answer in answers:
        if answer.header("content-type") == "application/json":
            assert answer.json["usage"]["completion_tokens"] == 8
        else:
            assert data_of(answer.body)[-1] == "[DONE]"


async def test_without_the_gateway_the_engine_has_the_line(engine: RunningEngine) -> None:
    async with AsyncExitStack() as stack:
        for number in range(engine.slots + 1):
            client = await stack.enter_async_context(RawClient.connected(engine.url))
            body = chat(f"Tell me story {number}.", tokens=ENDLESS)
            await client.request("POST", CHAT, body, [("Authorization", f"Bearer {engine.api_key}")])
        await engine.until_deferred(1)
    await engine.idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_in_the_middle_stops_the_engine(
    engine: RunningEngine, *, stream: bool
) -> None:
    async with gateway_to(engine) as gateway:
        async with RawClient.connected(gateway.url) as client:
            await client.request("POST", CHAT, chat("Tell me a story.", tokens=ENDLESS, stream=stream))
            if stream:
                await client.read_events(await client.read_head(), 4)
            else:
                await until(lambda: gateway.counts == (1, 0))
                await trio.sleep(1)
            (busy,) = await engine.busy_slots()
        await until(lambda: gateway.counts == (0, 0))
        await engine.idle()
        (state,) = [each for each in await engine.slot_states() if each["id"] == busy]
        assert state["next_token"][0]["n_decoded"] < ENDLESS / 2


async def test_a_client_that_leaves_the_line_never_reaches_the_engine(engine: RunningEngine) -> None:
    async with gateway_to(engine) as gateway, occupied(gateway, engine.slots):
        before = (await engine.metrics())["llamacpp:prompt_tokens_total"]
        for stream in (True, False):
            async with RawClient.connected(gateway.url) as client:
                await client.request("POST", CHAT, chat("long " * 500, tokens=4, stream=stream))
                await until(lambda: gateway.counts == (4, 1))
                line = (await gateway.admission())["line"]
                assert [each["position"] for each in line] == [1]
            await until(lambda: gateway.counts == (4, 0))
        assert len(await engine.busy_slots()) == 4
    after = (await engine.metrics())["llamacpp:prompt_tokens_total"]
    assert after - before < 500


async def test_a_queued_stream_is_kept_alive_with_its_place_until_it_is_served(engine: RunningEngine) -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(gateway_to(engine, keepalive_interval=0.2))
        client = await stack.enter_async_context(RawClient.connected(gateway.url))
        holders = await stack.enter_async_context(occupied(gateway, engine.slots))
        await client.request("POST", CHAT, chat("Say hi.", tokens=4))
        answer = await client.read_head()
        assert answer.status == 200
        queued = await client.read_events(answer, 3)
        assert all(re.fullmatch(rb": queued position=1( estimated_wait=[\d.]+)?", each) for each in queued)
        await holders[0].close()
        while await client.read_more(answer):
            pass
    assert (answer.complete, data_of(answer.body)[-1]) == (True, "[DONE]")
    said = [event for event in events(answer.body) if event.startswith(b"data: {")]
    assert json.loads(said[0][6:])["object"] == "chat.completion.chunk"


async def test_a_full_line_is_refused_while_the_engine_works(engine: RunningEngine) -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(gateway_to(engine, max_waiting=1))
        await stack.enter_async_context(occupied(gateway, engine.slots))
        waiter = await stack.enter_async_context(RawClient.connected(gateway.url))
        await waiter.request("POST", CHAT, chat("Say hi.", tokens=4))
        await until(lambda: gateway.counts == (4, 1))
        refused = await ask(gateway.url, chat("Say hi.", tokens=4))
    assert (refused.status, refused.json["error"]["code"]) == (429, "queue_full")
    assert 1 <= int(refused.header("retry-after") or 0) <= 60


async def test_the_engines_own_refusal_passes_through(engine: RunningEngine) -> None:
    body = chat("hi " * 2000, tokens=4)
    direct = await ask(engine.url, body, engine.api_key)
    async with gateway_to(engine) as gateway:
        passed = await ask(gateway.url, body)
    assert (passed.status, passed.body) == (direct.status, direct.body)
    assert passed.json["error"]["type"] == "exceed_context_size_error"


async def test_a_stream_through_the_gateway_is_the_engines_own(engine: RunningEngine) -> None:
    body = {**chat("Say hi.", tokens=8), "temperature": 0, "cache_prompt": False}
    direct = await ask(engine.url, body, engine.api_key)
    async with gateway_to(engine) as gateway:
        passed = await ask(gateway.url, body)
    ours, theirs = (
        [chunk["choices"] for chunk in data_of(answer.body) if chunk != "[DONE]"]
        for answer in (passed, direct)
    )
    assert ours == theirs


@pytest.mark.parametrize("stream", [True, False])
async def test_the_openai_sdk_talks_to_the_engine_through_the_gateway(
    engine: RunningEngine, *, stream: bool
) -> None:
    def talk(url: str) -> tuple[str, int]:
        messages: Any = [{"role": "user", "content": "Say hi."}]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            if not stream:
                answer = client.chat.completions.create(model="x", messages=messages, max_tokens=8)
                assert answer.usage is not None
                return answer.choices[0].message.content or "", answer.usage.completion_tokens
            chunks = list(
                client.chat.completions.create(
                    model="x",
                    messages=messages,
                    max_tokens=8,
                    stream=True,
                    stream_options={"include_usage": True},
                )
            )
            assert chunks[-1].usage is not None
            text = "".join(each.delta.content or "" for chunk in chunks for each in chunk.choices)
            return text, chunks[-1].usage.completion_tokens

    async with gateway_to(engine) as gateway:
        text, tokens = await trio.to_thread.run_sync(talk, gateway.url)
    assert text.strip()
    assert 1 <= tokens <= 8


@pytest.mark.timeout(300)  # it loads the model twice
async def test_the_demo_answers_one_prompt_and_exits() -> None:
    said = []
    for prompt in ("Name a colour.", "What is a horse?"):
        done = await trio.run_process(
            [sys.executable, "-m", "trio_admission_web", "demo", "--slots", "1", "--once", prompt],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        said.append(done.stdout.decode().strip())
    assert all(said)
    assert said[0] != said[1]


async def test_the_demo_that_fails_says_why(tmp_path: Any) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and no more of a model")
    done = await trio.run_process(
        [sys.executable, "-m", "trio_admission_web", "demo", "--model", str(broken), "--once", "hi"],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"trio-admission: the embedded engine with {broken} did not start" in done.stderr.decode()


async def test_what_the_demo_prints_is_what_the_engine_has_decoded(
    engine: RunningEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two prompts, two answers, and the engine's own counter grows by their tokens, end of text included."""
    printed = []
    async with gateway_to(engine) as gateway:
        before = (await engine.metrics())["llamacpp:tokens_predicted_total"]
        for prompt in ("Why is the sky blue?", "Name a fruit."):
            await commands._ask(gateway.url, prompt)
            printed.append(capsys.readouterr().out.rstrip("\n"))
        decoded = (await engine.metrics())["llamacpp:tokens_predicted_total"] - before
        async with engine.client() as client:
            tokens = [
                len((await client.post("/tokenize", json={"content": text})).json()["tokens"])
                for text in printed
            ]
    assert printed[0] != printed[1]
    assert all(tokens)
    assert (
        sum(tokens) <= decoded <= sum(tokens) + 2 * 3
    )  # text may tokenize a little shorter than it was made
