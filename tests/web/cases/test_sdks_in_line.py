"""L1 L3 L7: the official clients, sync and async, through a line: they see what they see without one."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
import trio

from tests.support.gateway import CHAT, chat
from tests.support.serving import until
from tests.support.stage import Stage, stage
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
OF_THE_REQUEST = {"id", "created", "created_at", "completed_at", "timings", "item_id"}
# What the server's slot remembers of the prompt depends on who had it before.
OF_THE_SLOT = {"prompt_tokens_details", "input_tokens_details", "input_tokens", "cache_read_input_tokens"}

# Each call: what the client does, written once for both kinds of client.
CALLS: dict[str, Callable[[Any], Any]] = {
    "chat": lambda sdk: sdk.chat.completions.create(model="m", messages=MESSAGES),
    "chat stream": lambda sdk: sdk.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ),
    "chat helper": lambda sdk: sdk.chat.completions.stream(model="m", messages=MESSAGES),
    "completions": lambda sdk: sdk.completions.create(model="m", prompt="Hello"),
    "completions stream": lambda sdk: sdk.completions.create(model="m", prompt="Hello", stream=True),
    "responses": lambda sdk: sdk.responses.create(model="m", input="Hello"),
    "responses stream": lambda sdk: sdk.responses.create(model="m", input="Hello", stream=True),
    # not `responses.stream`: it stumbles over llama-server's own events, which have no content_index
    "messages": lambda sdk: sdk.messages.create(model="m", messages=MESSAGES, max_tokens=9),
    "messages stream": lambda sdk: sdk.messages.create(
        model="m", messages=MESSAGES, max_tokens=9, stream=True
    ),
    "messages helper": lambda sdk: sdk.messages.stream(model="m", messages=MESSAGES, max_tokens=9),
}


def client(name: str, url: str, *, sync: bool, retries: int = 0) -> Any:
    sdk: Any = anthropic if name.startswith("messages") else openai
    url = url if sdk is anthropic else f"{url}/v1"
    kind, http = sdk.AsyncClient, sdk.DefaultAsyncHttpxClient
    if sync:
        kind, http = sdk.Client, sdk.DefaultHttpxClient
    # There is nothing to verify, and each client would read all certificates for it.
    plain = http(verify=False)
    return kind(base_url=url, api_key="none", max_retries=retries, timeout=20, http_client=plain)


def plain(value: Any) -> Any:
    """What an SDK gave, without what differs from request to request."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if name not in OF_THE_REQUEST | OF_THE_SLOT}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "__dict__"):
        return plain(vars(value))
    return value


def ask_sync(name: str, url: str) -> Any:
    with client(name, url, sync=True) as sdk:
        got = CALLS[name](sdk)
        if name.endswith("helper"):
            with got as stream:
                return plain(list(stream))
        return plain(list(got) if name.endswith("stream") else [got])


async def ask_async(name: str, url: str) -> Any:
    async with client(name, url, sync=False) as sdk:
        got = CALLS[name](sdk)
        if name.endswith("helper"):
            async with got as stream:
                return plain([each async for each in stream])
        got = await got if inspect.isawaitable(got) else got
        return plain([each async for each in got] if name.endswith("stream") else [got])


async def ask(name: str, url: str, *, sync: bool) -> Any:
    if sync:
        return await trio.to_thread.run_sync(ask_sync, name, url)
    return await ask_async(name, url)


def keepalives(both: Stage) -> float:
    """How many the gateway has sent."""
    told = both.app.gateway.metrics.exposition().decode().splitlines()
    return sum(float(line.split()[1]) for line in told if line.startswith("trio_admission_keepalives_total"))


@asynccontextmanager
async def held(both: Stage) -> AsyncIterator[trio.Event]:
    """Take the only slot, until the event is set or the block ends."""
    release = trio.Event()
    async with both.server.client() as holder, trio.open_nursery() as nursery:
        both.llama.script(Script(tokens=100_000, interval=0.05))
        await holder.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))

        async def leave() -> None:
            await release.wait()
            holder.reset()

        nursery.start_soon(leave)
        yield release
        release.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # generators of the SDKs' own
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_an_sdk_gets_in_line_what_it_gets_without_one(*, sync: bool) -> None:
    llama = FakeLlamaServer(total_slots=1)
    llama.default = Script(tokens=["Hello", " Grüß", " dich"])
    admission = AdmissionConfig(keepalive_interval=0.05)
    async with stage(llama, admission=admission) as both:
        without = {name: await ask(name, both.server.url, sync=sync) for name in CALLS}
        within: dict[str, Any] = {}

        async def wait(name: str) -> None:
            within[name] = await ask(name, both.server.url, sync=sync)

        async with held(both) as release, trio.open_nursery() as nursery:
            for name in CALLS:
                nursery.start_soon(wait, name)
            await until(lambda: both.counts == (1, len(CALLS)), seconds=30)
            await until(lambda: keepalives(both) >= 5 * len(CALLS), seconds=30)
            release.set()
        assert llama.max_in_flight == 1
    for name in CALLS:
        assert within[name] == without[name], name
        assert "Grüß" in str(without[name])


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_sdks_that_are_refused_come_again_and_are_served(*, sync: bool) -> None:
    llama = FakeLlamaServer(total_slots=1, words=1, interval=0.2)
    async with stage(llama, admission=AdmissionConfig(max_waiting=1)) as both:
        served: list[str] = []

        async def visit(name: str) -> None:
            await retrying(name, both.server.url, sync=sync)
            served.append(name)

        async with trio.open_nursery() as nursery:
            for name in ("chat", "messages") * 2:
                nursery.start_soon(visit, name)
        assert len(served) == 4
        assert llama.max_in_flight == 1


async def retrying(name: str, url: str, *, sync: bool) -> None:
    if sync:

        def visit() -> None:
            with client(name, url, sync=True, retries=5) as sdk:
                CALLS[name](sdk)

        await trio.to_thread.run_sync(visit)
    else:
        async with client(name, url, sync=False, retries=5) as sdk:
            got: Awaitable[Any] = CALLS[name](sdk)
            await got


async def test_a_mistake_is_not_tried_again() -> None:
    async with stage(FakeLlamaServer()) as both:
        async with client("chat", both.server.url, sync=False, retries=2) as sdk:
            with pytest.raises(openai.BadRequestError) as caught:
                await sdk.chat.completions.create(model="m", messages="Hello")
        assert caught.value.status_code == 400
        assert both.llama.total <= 1


@pytest.mark.parametrize("end", ["", "/"])
async def test_light_calls_of_the_sdks_are_answered_while_the_slot_is_busy(end: str) -> None:
    llama = FakeLlamaServer(total_slots=1, model="org/model:q4")
    async with stage(llama) as both, held(both):
        async with openai.AsyncOpenAI(base_url=both.server.url + "/v1" + end, api_key="k") as sdk:
            assert [each.id async for each in sdk.models.list()] == ["org/model:q4"]
            assert (await sdk.models.retrieve("org/model:q4")).id == "org/model:q4"
        async with anthropic.AsyncAnthropic(base_url=both.server.url + end, api_key="k") as sdk:
            plain = await sdk.messages.count_tokens(model="m", messages=MESSAGES)
            beta = await sdk.beta.messages.count_tokens(
                model="m", messages=MESSAGES, betas=["b-1"], extra_query={"beta": "true"}
            )
            assert plain.input_tokens == beta.input_tokens > 0
        assert both.counts == (1, 0)
    last = [each for each in llama.requests if "count_tokens" in each.target][-1]
    assert last.target == "/v1/messages/count_tokens?beta=true"
    assert "b-1" in (last.header("anthropic-beta") or "")
    assert last.header("anthropic-version")
    assert last.header("x-api-key") is None
