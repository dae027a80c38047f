"""The gateway over real sockets, in real time: what a client's bytes and its leaving do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import openai
import pytest
import trio

from tests.support.gateway import CHAT, chat
from tests.support.raw_client import RawClient, events
from tests.support.serving import descriptors, until
from tests.support.stage import stage
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script


async def test_a_stream_has_one_framing_and_the_headers_of_one(caplog: pytest.LogCaptureFixture) -> None:
    async with stage(FakeLlamaServer(words=3)) as both, both.server.client() as client:
        answer = await client.ask("POST", CHAT, chat(stream=True), [("Accept-Encoding", "gzip, br")])
        assert (answer.status, answer.complete) == (200, True)
        names = [name.lower() for name, _ in answer.headers]
        assert names.count("x-accel-buffering") == names.count("content-type") == 1
        assert not {"content-length", "content-encoding", "keep-alive"} & set(names)
        assert answer.header("transfer-encoding") == "chunked"
        again = await client.ask("POST", CHAT, chat())  # the connection goes on
        assert (again.status, again.header("content-length")) == (200, str(len(again.body)))


async def test_events_come_one_by_one_as_the_server_sends_them() -> None:
    async with stage(FakeLlamaServer(words=5, interval=0.1)) as both, both.server.client() as client:
        await client.ask("POST", CHAT, chat(stream=True))
    times = [at for at, _ in client.arrivals[1:6]]  # without the head
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert all(0.05 < gap < 0.5 for gap in gaps)


@pytest.mark.parametrize("way", ["close", "reset", "half close", "close after a stray line end"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_in_the_middle_is_missed_at_once(*, way: str, stream: bool) -> None:
    llama = FakeLlamaServer(total_slots=1, words=10_000)
    async with stage(llama) as both, both.server.client() as client:
        await client.request("POST", CHAT, chat(stream=stream))
        if stream:
            await client.read_events(await client.read_head(), 3)
        await until(lambda: both.llama.busy_slots)
        await leave(client, way)
        left = trio.current_time()
        await until(lambda: both.counts == (0, 0))
        await until(lambda: both.llama.generations[0].connection.peer_closed is not None)
        assert trio.current_time() - left < 0.5
        await until(lambda: not both.llama.busy_slots)


@pytest.mark.parametrize("way", ["close", "reset", "half close", "close after a stray line end"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_the_line_gives_up_its_place_at_once(*, way: str, stream: bool) -> None:
    llama = FakeLlamaServer(total_slots=1, words=10_000)
    async with stage(llama) as both, both.two_clients() as (holder, client):
        await holder.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))
        await client.request("POST", CHAT, chat(stream=stream))
        if stream:
            assert await client.read_events(await client.read_head(), 1) == [b": queued position=1"]
        await until(lambda: both.counts == (1, 1))
        await leave(client, way)
        await until(lambda: both.counts == (1, 0), seconds=0.5)
        assert both.llama.total == 1


async def leave(client: RawClient, way: str) -> None:
    if way == "half close":
        await client.half_close()
    elif way == "reset":
        client.reset()
    else:
        if way.endswith("line end"):
            await client.send(b"\r\n")
        await client.close()


async def test_a_refusal_leaves_the_connection_usable() -> None:
    admission = AdmissionConfig(max_wait=0)
    llama = FakeLlamaServer(total_slots=1, words=30)
    async with stage(llama, admission=admission) as both, both.two_clients() as (holder, client):
        await holder.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))
        refused = await client.ask("POST", CHAT, chat(stream=True))
        assert (refused.status, refused.complete) == (503, True)
        await holder.read_answer()
        assert (await client.ask("POST", CHAT, chat(stream=True))).status == 200


async def test_a_reader_that_stops_reading_holds_no_slot() -> None:
    llama = FakeLlamaServer(total_slots=1)
    async with stage(llama, stall_deadline=0.3) as both, both.server.client() as client:
        llama.script(Script(tokens=["x" * 2**20] * 1000))
        await client.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))
        await until(lambda: both.counts == (0, 0))


async def test_many_clients_that_come_and_go_leave_nothing_behind() -> None:
    llama, no_limit = FakeLlamaServer(total_slots=4, words=20, interval=0.002), AdmissionConfig(max_waiting=0)
    async with stage(llama, admission=no_limit) as both:

        async def visit(number: int) -> None:
            async with both.server.client() as client:
                await trio.sleep(number % 50 / 100)
                await client.request("POST", CHAT, chat(stream=number % 3 != 0))
                if number % 4 == 0:
                    answer = await client.read_answer()
                    assert (answer.status, answer.complete) == (200, True)
                else:
                    await trio.sleep(number % 7 / 100)
                    await leave(client, ("close", "reset", "half close")[number % 3])

        open_before = descriptors()
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(visit, number)
        await until(lambda: both.counts == (0, 0) and not both.llama.in_flight)
        assert both.llama.max_in_flight <= 4
        await until(lambda: descriptors() <= open_before)


# ---- the SDK that people use


def ask_sdk(url: str, *, stream: bool) -> list[str]:
    """Ask with the official SDK; blocks."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10)
    messages: Any = [{"role": "user", "content": "Hello"}]
    with client:
        if not stream:
            answer = client.chat.completions.create(model="any", messages=messages)
            return [answer.choices[0].message.content or ""]
        chunks = client.chat.completions.create(model="any", messages=messages, stream=True)
        return [each.delta.content or "" for chunk in chunks for each in chunk.choices]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_openai_sdk_waits_in_line_and_gets_its_answer(*, stream: bool) -> None:
    admission = AdmissionConfig(keepalive_interval=0.05)
    llama = FakeLlamaServer(total_slots=1, words=3, interval=0.15)
    async with stage(llama, admission=admission) as both, both.server.client() as holder:
        await holder.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))
        parts = await trio.to_thread.run_sync(lambda: ask_sdk(both.server.url, stream=stream))
    assert "".join(parts) == "r2w0 r2w1 r2w2"


async def test_the_openai_sdk_understands_a_refusal() -> None:
    admission = AdmissionConfig(max_waiting=1)
    llama = FakeLlamaServer(total_slots=1, words=10_000)
    async with stage(llama, admission=admission) as both, both.two_clients() as (holder, waiter):
        for client in (holder, waiter):
            await client.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 1))
        with pytest.raises(openai.RateLimitError) as caught:
            await trio.to_thread.run_sync(lambda: ask_sdk(both.server.url, stream=True))
    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_the_openai_sdk_sees_an_error_inside_a_stream() -> None:
    admission = AdmissionConfig(max_wait=0.3)
    llama = FakeLlamaServer(total_slots=1, words=10_000)
    async with stage(llama, admission=admission) as both, both.server.client() as holder:
        await holder.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))
        with pytest.raises(openai.APIError, match="No slot became free"):
            await trio.to_thread.run_sync(lambda: ask_sdk(both.server.url, stream=True))


async def test_comments_of_the_line_are_not_events_of_the_stream() -> None:
    llama = FakeLlamaServer(total_slots=1, words=2, interval=0.2)
    async with stage(llama) as both, both.two_clients() as (holder, client):
        await holder.request("POST", CHAT, chat(stream=True))
        await until(lambda: both.counts == (1, 0))
        answer = await client.ask("POST", CHAT, chat(stream=True))
    first, *rest = events(answer.body)
    assert first == b": queued position=1"
    assert all(event.startswith(b"data: ") for event in rest)
    assert rest[-1] == b"data: [DONE]"
