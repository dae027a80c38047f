"""The HTTP client of one server: what it sends, and what it calls each failure."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import network_of
from trio_admission.testing._fake.stream import memory_connection
from trio_admission.testing.fake_llama_server import End, FakeLlamaServer, Raw
from trio_admission_web.problems import ProblemError
from trio_admission_web.settings import BackendSettings
from trio_admission_web.upstream import Upstream, passed_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trio_admission.testing.fake_llama_server import Request

CHAT = "/v1/chat/completions"
BODY = b'{"messages":[],"stream":true}'


@asynccontextmanager
async def client_of(server: FakeLlamaServer, **settings: Any) -> AsyncIterator[Upstream]:
    async with server:
        upstream = Upstream(
            BackendSettings(**{"url": "http://llama.test:81/base/"} | settings),
            network_of({"llama.test": server}),
        )
        yield upstream


def answer_with(server: FakeLlamaServer, *replies: Raw) -> None:
    """Answer whatever is asked, in this order; then as the server would."""
    left = list(replies)

    async def reply(_request: Request) -> Raw | None:
        return left.pop(0) if left else None

    server.reply = reply


def test_what_a_client_says_of_itself_stays_here() -> None:
    headers = [
        (b"host", b"gateway"),
        (b"authorization", b"Bearer gw-SECRET1"),
        (b"x-api-key", b"gw-SECRET2"),
        (b"api-key", b"gw-SECRET3"),
        (b"proxy-authorization", b"x"),
        (b"cookie", b"a=b"),
        (b"origin", b"http://page"),
        (b"x-conversation-id", b"1"),
        (b"connection", b"close, X-Hop"),
        (b"x-hop", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"3"),
        (b"expect", b"100-continue"),
        (b"upgrade", b"h2c"),
        (b"accept-encoding", b"gzip"),
        (b"x-request-id", b"1"),
        (b"anthropic-beta", b"tools"),
        (b"content-type", b"text/plain"),
    ]
    assert passed_on(headers) == [(b"anthropic-beta", b"tools"), (b"content-type", b"text/plain")]


async def test_a_request_goes_out_with_the_gateways_own_headers(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(api_key="up-SECRET")
    settings = {"url": "http://llama.test:81", "api_key": "up-SECRET"}
    sent: dict[str, Any] = {"headers": [(b"x-a", b"1")], "query": b"a=%2F&b", "body": BODY}
    async with client_of(server, **settings) as upstream, upstream.open("POST", CHAT, **sent) as answer:
        assert answer.is_event_stream
    assert server.requests[0].head == (
        b"POST /v1/chat/completions?a=%2F&b HTTP/1.1\r\n"
        b"host: llama.test:81\r\nconnection: close\r\naccept-encoding: identity\r\n"
        b"authorization: Bearer up-SECRET\r\ncontent-length: 29\r\nx-a: 1\r\n\r\n"
    )
    assert server.requests[0].body == BODY


async def test_an_address_may_have_a_path(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with client_of(server) as upstream:
        assert (await upstream.fetch("GET", "/health")).status == 404
    assert server.requests[0].target == "/base/health"


async def test_leaving_an_answer_closes_its_connection_at_once(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(interval=1.0)
    async with client_of(server, url="http://llama.test") as upstream:
        start = trio.current_time()
        async with upstream.open("POST", CHAT, body=BODY) as answer:
            await anext(answer)
        await wait_all_tasks_blocked()
        assert server.connections[0].peer_closed == start + 1.0


@pytest.mark.parametrize("when", ["before the head", "in the middle"])
async def test_a_cancelled_request_closes_its_connection_at_once(
    autojump_clock: MockClock, when: str
) -> None:
    server = FakeLlamaServer(prefill=5.0, interval=5.0)
    async with client_of(server, url="http://llama.test") as upstream:
        if when == "before the head":
            answer_with(server, Raw(End.SILENCE))
        start = trio.current_time()
        with trio.move_on_after(12.0):
            async with upstream.open("POST", CHAT, body=BODY) as answer:
                async for _ in answer:
                    pass
        await wait_all_tasks_blocked()
        assert server.connections[0].peer_closed == start + 12.0


async def test_each_request_has_a_connection_of_its_own_and_is_sent_once(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(words=1)
    async with client_of(server, url="http://llama.test") as upstream:
        for _ in range(2):
            assert (await upstream.fetch("GET", "/health")).status == 200
            async with upstream.open("POST", CHAT, body=BODY) as answer:
                async for _data in answer:
                    pass
        for way in (End.CLOSE, End.RESET):
            answer_with(server, Raw(way), Raw(way))
            with pytest.raises(ProblemError) as caught:
                await upstream.fetch("POST", "/tokenize", body=b"{}")
            assert caught.value.problem.code == "bad_gateway"
            server.reply = None
        assert len(server.connections) == len(server.requests) == 6
        await wait_all_tasks_blocked()
        assert not server.open_connections


async def test_a_refusal_before_the_body_was_read_is_heard(autojump_clock: MockClock) -> None:
    """A server may answer 413 and close while a large body is still on its way."""
    there, here = memory_connection()

    async def refuse() -> None:
        await there.receive_some(1000)
        await there.send_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
        await there.aclose()

    async def network(_host: str, _port: int) -> trio.abc.Stream:
        return here

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        upstream = Upstream(BackendSettings(url="http://llama.test"), network)
        answer = await upstream.fetch("POST", CHAT, body=b"x" * 2**20)
    assert (answer.status, answer.body) == (413, b"no")


async def test_only_reading_is_timed(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    settings = {"url": "http://llama.test", "first_byte_limit": 10.0, "idle_limit": 10.0}
    async with client_of(server, **settings) as upstream:
        said = [b"data: %d\n\n" % number for number in range(3)]
        server.script(Raw.stream(9.0, said[0], 39.0, said[1], 9.0, said[2], End.FINISH))
        async with upstream.open("POST", CHAT, body=BODY) as answer:
            for expected in said:
                assert await anext(answer) == expected
                await trio.sleep(30)  # the caller may take its time


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = b"9\r\ndata: 1\n\n\r\n"
COMMENT = b"3\r\n:\n\n\r\n"
PING = b"16\r\nevent: ping\ndata: {}\n\n\r\n"


def dripping(piece: bytes, *, seconds: float = 3.0) -> list[bytes | float]:
    """So many pieces that they outlast every limit, each in less time than any limit."""
    return [seconds, piece] * 100


@pytest.mark.parametrize(
    ("steps", "begun", "limit"),
    [
        ([step for byte in HEAD for step in (3.0, bytes([byte]))], False, 20.0),
        (dripping(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), False, 20.0),
        ([HEAD, *dripping(COMMENT)], False, 20.0),
        ([HEAD, *dripping(PING)], False, 20.0),
        ([HEAD, *dripping(b"0")], False, 20.0),
        ([HEAD, FIRST, *dripping(COMMENT)], True, 10.0),
        ([HEAD, FIRST, *dripping(PING)], True, 10.0),
        ([HEAD, FIRST, *dripping(b"0")], True, 10.0),
        ([HEAD, 15.0, FIRST, 8.0, FIRST, *dripping(COMMENT)], True, 33.0),
    ],
    ids=[
        "a head by bytes",
        "hints",
        "comments",
        "pings",
        "a size by digits",
        "comments after an event",
        "pings after an event",
        "a size after an event",
        "from the last event on",
    ],
)
async def test_what_is_no_event_does_not_put_a_limit_off(
    autojump_clock: MockClock, steps: list[bytes | float], limit: float, *, begun: bool
) -> None:
    server = FakeLlamaServer()
    settings = {"url": "http://llama.test", "first_byte_limit": 20.0, "idle_limit": 10.0}
    async with client_of(server, **settings) as upstream:
        server.script(Raw(*steps, End.SILENCE))
        start, has_begun = trio.current_time(), False
        with pytest.raises(ProblemError) as caught:
            async with upstream.open("POST", CHAT, body=BODY) as answer:
                async for _ in answer:
                    has_begun = answer.has_begun
    assert caught.value.problem.code == "upstream_timeout"
    assert trio.current_time() - start == pytest.approx(limit)
    assert has_begun == begun


async def test_an_event_that_comes_slowly_is_no_silence(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    settings = {"url": "http://llama.test", "first_byte_limit": 20.0, "idle_limit": 10.0}
    async with client_of(server, **settings) as upstream:
        slowly: list[bytes | float] = [9.0, b"a"] * 10
        server.script(Raw.stream(b"data: ", *slowly, b"\n\n", End.FINISH))
        async with upstream.open("POST", CHAT, body=BODY) as answer:
            assert b"".join([data async for data in answer]) == b"data: aaaaaaaaaa\n\n"


async def test_an_answer_that_is_read_whole_is_bounded(autojump_clock: MockClock) -> None:
    endless = Raw.stream(*[b"x" * 2**20] * 17, End.FINISH)
    server = FakeLlamaServer()
    async with client_of(server, url="http://llama.test") as upstream:
        answer_with(server, endless)
        with pytest.raises(ProblemError) as caught:
            await upstream.fetch("GET", "/v1/models")
        assert caught.value.problem.code == "bad_gateway"


async def test_a_server_that_cannot_be_reached_in_time_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose backlog is full takes no more connections and says nothing."""
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        async with await trio.open_tcp_stream("127.0.0.1", port):
            upstream = Upstream(BackendSettings(url=f"http://127.0.0.1:{port}", connect_limit=0.05))
            with pytest.raises(ProblemError) as caught:
                await upstream.fetch("GET", "/health")
    assert caught.value.problem.code == "upstream_timeout"


async def test_a_port_where_nobody_listens_is_a_bad_gateway() -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        upstream = Upstream(BackendSettings(url=f"http://127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(ProblemError) as caught:
            await upstream.fetch("GET", "/health")
    assert caught.value.problem.code == "bad_gateway"
