"""The gateway over HTTP/2: the same answers as over HTTP/1, and whoever leaves takes everything along."""

from __future__ import annotations

import logging
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest
import trio
from h2.errors import ErrorCodes
from hyperframe.frame import RstStreamFrame
from trio.testing import wait_all_tasks_blocked

from tests.support.command import running
from tests.support.gateway import CHAT, chat
from tests.support.http2_client import WAYS, http2_to
from tests.support.raw_client import RawClient, data_of, events, keepalives
from tests.support.serving import descriptors, post, tasks, until
from tests.support.stage import Stage, stage
from tests.support.tools import PLACES
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Request, Script, ToolCall
from trio_admission_web.relay import LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.http2_client import Connection, Stream
    from tests.support.raw_client import Answer

CALLS = Script(tokens=0, tool_calls=[ToolCall("find", ['{"what": "x"}'])])
MESSAGES = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}], "stream": True}

# ---- who leaves, in whatever phase of a request

LEAVING = [("HTTP/1.1", "close"), *(("HTTP/2", way) for way in WAYS)]
PHASES = ("upload", "line", "before the head", "prefill", "middle", "parked", "end")


@asynccontextmanager
async def client_of(url: str, version: str) -> AsyncIterator[Stream | RawClient]:
    """Connect, for one request."""
    if version == "HTTP/2":
        async with http2_to(url) as connection:
            yield connection.new()
    else:
        async with RawClient.connected(url) as client:
            yield client


async def reach(phase: str, both: Stage, client: Stream | RawClient, holder: RawClient) -> None:
    """Make a request and see it come to a phase."""
    if phase == "upload":
        before = tasks()
        if isinstance(client, RawClient):
            await client.send(post(CHAT, "content-length: 100") + b"{")
        else:
            await client.request("POST", CHAT, b"{", end=False)
        await until(lambda: tasks() >= before + 2)  # the request, and who watches its client
        return
    if phase == "line":
        await holder.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))
    tools = {"admission": {"tools": ["find"]}} if phase == "parked" else {}
    await client.request("POST", CHAT, chat(stream=True, **tools))
    if phase == "before the head":
        await until(lambda: both.llama.in_flight)
    elif phase == "end":
        assert (await client.read_answer()).complete
    else:
        await client.read_events(await client.read_head(), 3 if phase == "middle" else 1)
    if phase == "parked":
        await until(lambda: both.app.gateway.backend.pool.statistics().parked)


async def leave(client: Stream | RawClient, way: str) -> None:
    """Leave in that way."""
    if isinstance(client, RawClient):
        if way == "reset":
            client.reset()
        else:
            await (client.close() if way == "close" else client.half_close())
    elif way == "cancel" and client.ended:
        await client.connection.send(RstStreamFrame(client.number, error_code=8).serialize())
    else:
        await client.leave(way)


@pytest.mark.parametrize(("version", "way"), LEAVING, ids=[" ".join(each) for each in LEAVING])
@pytest.mark.parametrize("phase", PHASES)
async def test_whoever_leaves_takes_everything_along(
    phase: str, version: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    release = trio.Event()

    async def hold(request: Request) -> None:
        if phase == "before the head" and request.path == CHAT:
            await release.wait()

    scripts = {"prefill": Script(prefill=0.3), "end": Script(tokens=2), "parked": CALLS}
    llama = FakeLlamaServer(total_slots=1, words=10_000, interval=0.005, reply=hold, slots_endpoint=False)
    admission = AdmissionConfig(keepalive_interval=0.05)
    async with stage(llama, admission=admission, tools=PLACES) as both, both.server.client() as holder:
        await holder.ask("GET", "/v1/models")
        await wait_all_tasks_blocked()
        before = descriptors(), tasks()
        if phase in scripts:
            llama.script(scripts[phase])
        async with client_of(both.server.url, version) as client:
            await reach(phase, both, client, holder)
            await leave(client, way)
            release.set()
            others = int(phase == "line")
            await until(lambda: both.counts == (others, 0) and llama.in_flight <= others)
            await until(lambda: len(both.app.gateway.passages) == others)
            statistics = both.app.gateway.backend.pool.statistics()
            assert (statistics.parked, statistics.returning) == (0, 0)
            if way == "cancel" and not isinstance(client, RawClient):
                assert (await client.connection.ask("GET", "/v1/models")).status == 200
        if phase != "line":
            await until(lambda: descriptors() <= before[0] and tasks() == before[1])
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def come(connection: Connection, count: int) -> list[Stream]:
    """Make that many requests for streams, and see all of them begin."""
    streams = [connection.new() for _ in range(count)]
    for stream in streams:
        await stream.request("POST", CHAT, chat(stream=True))
    for stream in streams:
        await stream.read_events(await stream.read_head(), 1)
    return streams


async def test_resets_of_those_who_wait_and_run_are_nothing_to_the_others() -> None:
    llama = FakeLlamaServer(total_slots=2, words=10_000, interval=0.005, slots_endpoint=False)
    async with stage(llama) as both, http2_to(both.server.url) as client:
        decoded, kept = [await come(client, 1) for _ in range(2)]
        waiting = await come(client, 18)
        assert both.counts == (2, 18)
        for stream in (*waiting[:10], *decoded):
            await stream.cancel()
        await until(lambda: both.counts == (2, 7))
        await until(lambda: llama.total == 3)
        assert not any(each.ended or each.reset_by for each in (*kept, *waiting[10:]))
        assert llama.max_in_flight == 2


@pytest.mark.parametrize("way", ["reset", "go away"])
async def test_a_connection_that_ends_takes_all_its_requests_along_and_no_other(way: str) -> None:
    llama = FakeLlamaServer(total_slots=2, words=10_000, interval=0.005, slots_endpoint=False)
    async with (
        stage(llama) as both,
        http2_to(both.server.url) as staying,
        http2_to(both.server.url) as leaving,
    ):
        (kept,), _ = await come(staying, 1), await come(leaving, 1)
        *_, last = await come(leaving, 4)
        uploading = leaving.new()
        await uploading.request("POST", CHAT, b"{", end=False)
        (waiting,) = await come(staying, 1)
        assert both.counts == (2, 5)
        await last.leave(way)
        await until(lambda: both.counts == (2, 0))
        await waiting.read_events(await waiting.read_head(), 5)
        assert not kept.ended
        assert llama.total == 3


# ---- what is answered


async def test_a_stream_is_the_same_bytes_as_in_http_1() -> None:
    async with (
        stage(FakeLlamaServer(total_slots=1, words=5)) as both,
        http2_to(both.server.url) as client,
        both.server.client() as plain,
    ):
        for path, body in ((CHAT, chat(stream=True)), (CHAT, chat()), ("/v1/messages", MESSAGES)):
            one, two = await plain.ask("POST", path, body), await client.ask("POST", path, body)
            assert (one.status, one.complete, two.status, two.complete) == (200, True, 200, True)
            assert shape(two) == shape(one)
            assert names(two) == names(one) - {"transfer-encoding"}


async def test_a_refusal_is_the_same_as_in_http_1() -> None:
    preflight = [("origin", "https://a.test"), ("access-control-request-method", "POST")]
    requests: list[tuple[str, str, object, list[tuple[str, str]]]] = [
        ("GET", "/nowhere", None, []),
        ("GET", "//metrics", None, []),
        ("GET", CHAT, None, []),
        ("POST", CHAT, b"{", []),
        ("POST", "/v1/messages", b"{", []),
        ("POST", CHAT, {}, []),
        ("POST", CHAT, chat(), [("content-encoding", "gzip")]),
        ("POST", CHAT, bytes(2**20), []),
        ("OPTIONS", CHAT, None, preflight),
    ]
    allowed = ("https://a.test",)
    async with (
        stage(FakeLlamaServer(), max_body=2**19, allowed_origins=allowed) as both,
        http2_to(both.server.url) as client,
    ):
        for method, path, body, headers in requests:
            headers.append(("x-request-id", "mine"))
            two = await client.ask(method, path, body, headers)
            async with both.server.client() as plain:
                one = await plain.ask(method, path, body, headers)
            assert (two.status, two.body, two.header("x-request-id")) == (one.status, one.body, "mine")
            assert names(two) == names(one) - {"connection"}


def shape(answer: Answer) -> list[str]:
    """What events an answer has, without the numbers and names of the server's requests."""
    return [
        re.sub(rb"r\d+w|\d+(\.\d+)?(e-\d+)?", b"", each).decode() for each in events(answer.body + b"\n\n")
    ]


def names(answer: Answer) -> set[str]:
    return {name.lower() for name, _ in answer.headers}


@pytest.mark.parametrize("count", [6, 60])
async def test_many_streams_of_one_connection_wait_and_are_served(count: int) -> None:
    llama = FakeLlamaServer(total_slots=4, words=3, interval=0.005)
    async with stage(llama) as both, http2_to(both.server.url) as client:
        streams = [client.new() for _ in range(count)]
        for stream in streams:
            await stream.request("POST", CHAT, chat(stream=True))
        for stream in streams:
            answer = await stream.read_answer()
            assert (answer.status, answer.complete) == (200, True)
            assert data_of(answer.body)[-1] == "[DONE]"
            assert all(each.startswith(b": queued position=") for each in keepalives(answer.body))
        assert llama.total == count
        assert llama.max_in_flight <= 4


async def test_the_slot_is_free_when_generation_ends_although_its_reader_grants_nothing() -> None:
    llama = FakeLlamaServer(total_slots=1)
    async with stage(llama) as both, http2_to(both.server.url, window=1000) as client:
        llama.script(Script(tokens=["x" * 10_000] * (LIMIT // 2 // 10_000), interval=0))
        stalled, after = client.new(), client.new()
        await stalled.request("POST", CHAT, chat(stream=True))
        await until(lambda: llama.total == 1 and both.counts == (0, 0))
        await after.request("POST", CHAT, chat(max_tokens=1, stream=False))
        assert (await after.read_answer()).complete
        answer = await stalled.read_head()
        assert (len(answer.body), stalled.ended, stalled.reset_by) == (1000, False, None)


async def test_a_reader_that_grants_nothing_while_there_is_ever_more_loses_its_slot() -> None:
    llama = FakeLlamaServer(total_slots=1)
    async with stage(llama, stall_deadline=0.3) as both, http2_to(both.server.url, window=1000) as client:
        llama.script(Script(tokens=["x" * 2**20] * 1000))
        await client.new().request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))
        await until(lambda: both.counts == (0, 0))


# ---- the SDK, and the commands


def ask_sdk(url: str, count: int) -> list[str]:
    """Ask with the official SDK for some streams at once, over one connection; blocks."""
    with (
        httpx2.Client(http1=False, http2=True) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client,
        ThreadPoolExecutor(count) as threads,
    ):
        messages: Any = [{"role": "user", "content": "Hello"}]

        def ask(_: int) -> str:
            chunks = client.chat.completions.create(model="any", messages=messages, stream=True)
            return "".join(each.delta.content or "" for chunk in chunks for each in chunk.choices)

        return list(threads.map(ask, range(count)))


@pytest.mark.parametrize("count", [1, 6])
async def test_the_openai_sdk_waits_in_line_over_one_connection(count: int) -> None:
    llama = FakeLlamaServer(total_slots=1, words=3, interval=0.02)
    async with stage(llama, admission=AdmissionConfig(keepalive_interval=0.05)) as both:
        answers = await trio.to_thread.run_sync(ask_sdk, both.server.url, count)
    assert sorted(answers) == [f"r{n}w0 r{n}w1 r{n}w2" for n in range(1, count + 1)]


async def test_a_signal_lets_running_streams_finish_and_refuses_new_ones() -> None:
    async with (
        FakeLlamaServer(total_slots=1, words=100, interval=0.02) as llama,
        llama.listening() as upstream,
    ):
        serve = ("trio_admission_web", "serve", "--port", "0", "--upstream", upstream)
        async with running(*serve) as command, http2_to(command.url) as client:
            running_one, waiting = await come(client, 2)
            command.process.send_signal(signal.SIGTERM)
            while (await client.ask("GET", "/ready")).status == 200:
                pass
            answer = await client.ask("POST", CHAT, chat(stream=True))
            code = answer.json["error"]["code"]
            assert (answer.status, code, answer.complete) == (503, "draining", True)
            assert int(answer.header("retry-after") or 0) > 0
            for stream in (running_one, waiting):
                assert data_of((await stream.read_answer()).body)[-1] == "[DONE]"
            await client.wait(lambda: client.closed)
            assert client.terminated is not None
            assert client.terminated.error_code == ErrorCodes.NO_ERROR
            assert client.terminated.last_stream_id == client.h2.highest_outbound_stream_id
        assert command.process.returncode == 0
        assert b"Traceback" not in command.said


async def test_the_command_of_hypercorn_speaks_it() -> None:
    async with FakeLlamaServer() as llama, llama.listening() as upstream:
        command = ("hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "trio_admission_web.asgi:app")
        async with (
            running(*command, sign=rb".*Running on", TRIO_ADMISSION_UPSTREAM=upstream) as server,
            http2_to(server.url) as client,
        ):
            assert data_of((await client.ask("POST", CHAT, chat(stream=True))).body)[-1] == "[DONE]"
            server.process.send_signal(signal.SIGTERM)
            await client.wait(lambda: client.closed)
            assert client.terminated is not None
