"""The fake server's side of HTTP/1.1, and its two kinds of connection."""

from __future__ import annotations

import pytest
import trio
from trio.testing import check_half_closeable_stream, wait_all_tasks_blocked

from tests.support.raw_client import RawClient
from trio_admission.testing import until
from trio_admission.testing._fake.stream import MemoryStream, memory_connection
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}
real_time = pytest.mark.trio(run=trio.run)


async def test_a_connection_is_kept_for_five_idle_seconds() -> None:
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        await client.ask("POST", CHAT, HI)
        await trio.sleep(4.9)
        answer = await client.ask("GET", "/health")
        assert answer.header("Keep-Alive") == "timeout=5, max=100"
        idle_since = trio.current_time()
        assert await client.read_to_end() == b""
        assert trio.current_time() == idle_since + 5


async def test_a_connection_ends_after_a_stream_although_it_offered_to_stay() -> None:
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        answer = await client.ask("POST", CHAT, {**HI, "stream": True})
        ended = trio.current_time()
        assert await client.read_to_end() == b""
        assert (answer.header("Keep-Alive"), trio.current_time()) == ("timeout=5, max=100", ended)


async def test_a_connection_ends_after_a_hundred_requests_or_an_error_or_when_asked() -> None:
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        for _ in range(99):
            await client.ask("GET", "/health")
        assert (await client.ask("GET", "/health")).header("Connection") == "close"
        for headers, path in (([], "/nope"), ([("Connection", "Close")], "/health")):
            client = RawClient(server.connect())
            assert (await client.ask("GET", path, headers=headers)).header("Connection") == "close"
            assert await client.read_to_end() == b""
        assert trio.current_time() == 0


async def test_pipelined_requests_are_answered_in_turn() -> None:
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        await client.send(b"GET /health HTTP/1.1\r\n\r\nGET /props HTTP/1.1\r\n\r\n")
        assert (await client.read_answer()).json == {"status": "ok"}
        assert "total_slots" in (await client.read_answer()).json


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_chunked_body_is_put_together(step: int) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    raw = head + b'5;ext=1\r\n{"con\r\n0b \r\ntent":"hi"}\r\n0\r\nTrailer: x\r\n\r\n'
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        for at in range(0, len(raw), step):
            await client.send(raw[at : at + step])
            await wait_all_tasks_blocked()
        assert (await client.read_answer()).json == {"tokens": [0]}
        assert (server.requests[0].body, server.requests[0].head) == (b'{"content":"hi"}', head)
        assert (await client.ask("GET", "/health")).status == 200


async def test_a_body_waits_for_the_server_to_ask_for_it() -> None:
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        await client.send(b"POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await client.read_head()).status == 100
        await client.send(b"{}")
        assert (await client.read_answer()).status == 200


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /health HTTP/2.0\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000, 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 104857601\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 20_000, 400),
    ],
)
async def test_what_is_no_request_is_refused_and_ends_the_connection(raw: bytes, status: int) -> None:
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        await client.send(raw)
        answer = await client.read_answer()
        assert (answer.status, answer.body, answer.header("Connection")) == (status, b"", "close")
        assert server.requests == []


@pytest.mark.parametrize("raw", [b"GET /hea", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc", b""])
async def test_half_a_request_is_no_request(raw: bytes) -> None:
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        await client.send(raw)
        await wait_all_tasks_blocked()
        await client.close()
        await wait_all_tasks_blocked()
        assert (server.requests, server.open_connections) == ([], 0)
        assert server.connections[0].peer_close == "fin"


async def test_half_a_head_is_waited_for_for_five_seconds() -> None:
    async with FakeLlamaServer() as server:
        client = RawClient(server.connect())
        await client.send(b"GET /hea")
        assert await client.read_to_end() == b""
        assert trio.current_time() == 5


async def test_memory_connections_are_streams_in_trio_s_sense() -> None:
    async def make() -> tuple[MemoryStream, MemoryStream]:
        await trio.lowlevel.checkpoint()
        return memory_connection()

    async def make_clogged() -> tuple[MemoryStream, MemoryStream]:
        ours, theirs = await make()
        for one in (ours, theirs):
            with trio.move_on_after(1):
                await one.send_all(bytes(2**20))
        return ours, theirs

    await check_half_closeable_stream(make, make_clogged)


async def test_memory_connections_hold_only_so_much() -> None:
    ours, theirs = memory_connection()
    with trio.move_on_after(1) as sending:
        await ours.send_all(bytes(2**20))
    assert sending.cancelled_caught
    assert len(await theirs.receive_some()) == 256 * 1024


@real_time
async def test_over_tcp_everything_is_the_same() -> None:
    async with FakeLlamaServer(total_slots=1) as server, server.listening() as url:
        async with RawClient.connected(url) as client:
            assert (await client.ask("GET", "/health")).json == {"status": "ok"}
            answer = await client.ask("POST", CHAT, {**HI, "stream": True})
            assert answer.body.endswith(b"data: [DONE]\n\n")
            assert await client.read_to_end() == b""
        assert server.requests[1].released is not None


@real_time
@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_over_tcp_a_client_s_leaving_is_seen_and_named(how: str) -> None:
    async with FakeLlamaServer() as server, server.listening() as url, RawClient.connected(url) as client:
        await client.ask("GET", "/health")
        if how == "fin":
            await client.close()
        else:
            client.reset()
        await until(lambda: not server.open_connections)
        assert server.connections[0].peer_close == how


@real_time
async def test_over_tcp_a_reset_is_named_although_a_write_meets_it_first() -> None:
    async with FakeLlamaServer(default=Script(tokens=1000, interval=0)) as server, server.listening() as url:
        for _ in range(10):
            async with RawClient.connected(url) as client:
                await client.request("POST", CHAT, {**HI, "stream": True})
                await client.read_head()
                client.reset()
                await until(lambda: not server.open_connections)
    assert {connection.peer_close for connection in server.connections} == {"reset"}


@real_time
async def test_over_tcp_a_crash_is_a_reset_and_a_dead_server_takes_nobody() -> None:
    async with FakeLlamaServer() as server, server.listening() as url:
        async with RawClient.connected(url) as client:
            await client.ask("GET", "/health")
            server.crash()
            with pytest.raises(trio.BrokenResourceError):
                await client.read_to_end()
        async with RawClient.connected(url) as client:
            with pytest.raises((trio.BrokenResourceError, EOFError)):
                await client.ask("GET", "/health")
        server.restart()
        async with RawClient.connected(url) as client:
            assert (await client.ask("GET", "/health")).status == 200


@real_time
async def test_a_port_can_be_chosen_and_is_free_again_afterwards() -> None:
    async with FakeLlamaServer() as server:
        async with server.listening() as url:
            port = int(url.rpartition(":")[2])
        async with server.listening(port=port) as again, RawClient.connected(again) as client:
            assert again == url
            assert (await client.ask("GET", "/health")).status == 200
