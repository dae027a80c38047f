"""Where the body of an answer ends, whatever pieces it comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from tests.support.gateway import CHAT, call, chat, gateway
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Raw
from trio_admission_web.framing import ChunkedBody, FramingError, SizedBody, UnframedBody, body_of

if TYPE_CHECKING:
    from trio.testing import MockClock

PIECES = st.lists(st.binary(min_size=1, max_size=12), max_size=6)
CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def chunked(pieces: list[bytes], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    chunks = [b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces]
    return b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


def feed(body: ChunkedBody, data: bytes, cuts: list[int]) -> bytes:
    """Feed it in pieces of these sizes, the last one again and again."""
    read, at, left = b"", 0, list(cuts)
    while not body.ended and at < len(data):
        size = left.pop(0) if len(left) > 1 else left[0]
        read += body.feed(data[at : at + size])
        at += size
    return read


@given(
    PIECES,
    st.sampled_from([b"", b" ", b";a=b", b'\t;a="b;c"']),
    st.sampled_from([b"", b"X: y\r\nZ:\r\n"]),
    CUTS,
)
def test_chunks_are_joined_however_they_are_cut(
    pieces: list[bytes], extension: bytes, trailers: bytes, cuts: list[int]
) -> None:
    body = ChunkedBody()
    assert feed(body, chunked(pieces, extension, trailers), cuts) == b"".join(pieces)
    assert body.ended
    body.end()


@given(PIECES, CUTS, st.data())
def test_a_body_that_breaks_off_is_not_complete(
    pieces: list[bytes], cuts: list[int], data: st.DataObject
) -> None:
    whole = chunked(pieces)
    body = ChunkedBody()
    feed(body, whole[: data.draw(st.integers(0, len(whole) - 1))], cuts)
    assert not body.ended
    with pytest.raises(FramingError):
        body.end()


@given(PIECES, CUTS)
def test_what_comes_after_the_last_chunk_is_not_body(pieces: list[bytes], cuts: list[int]) -> None:
    body = ChunkedBody()
    assert feed(body, chunked(pieces) + b"HTTP/1.1 200 OK\r\n\r\n", cuts) == b"".join(pieces)


@pytest.mark.parametrize(
    "wrong",
    [
        b"x\r\n",
        b"\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5_0\r\n",
        b"-1\r\n",
        b"1234567890123456\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\n\n",
        b"5\r\nhello\rX",
        b"5;" + b"x" * 20_000,
        b"0\r\n" + b"x" * 20_000,
    ],
)
@pytest.mark.parametrize("cut", [1, 3, 100_000])
def test_what_is_no_chunk_is_refused(wrong: bytes, cut: int) -> None:
    begin = max(len(wrong) - 5_000, cut)  # a line is looked at again with each piece
    with pytest.raises(FramingError):
        feed(ChunkedBody(), wrong, [begin, cut])


@given(PIECES, st.sampled_from([b"x\r\n", b"\r\n", b"-1\r\n", b"5_0\r\n"]), CUTS)
def test_what_came_whole_before_a_fault_is_body_however_it_is_cut(
    pieces: list[bytes], wrong: bytes, cuts: list[int]
) -> None:
    data, body, read = chunked(pieces).removesuffix(b"0\r\n\r\n") + wrong, ChunkedBody(), b""
    with pytest.raises(FramingError):
        while not body.ended:
            size = cuts.pop(0) if len(cuts) > 1 else cuts[0]
            read += body.feed(data[:size])
            data = data[size:]
    assert read == b"".join(pieces)
    with pytest.raises(FramingError):
        body.end()


async def test_events_that_came_whole_reach_the_client_before_it_is_told(autojump_clock: MockClock) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"sky"}}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    llama = FakeLlamaServer()
    llama.script(Raw(head + b"%x\r\n%s\r\nx\r\n" % (len(event), event)))  # and leaves the connection open
    async with gateway(llama) as app:
        reply = await call(app, CHAT, chat(stream=True))
    assert (reply.status, reply.seconds) == (200, 0)
    assert reply.body.startswith(event)
    assert b'"bad_gateway"' in reply.body.removeprefix(event)


@given(PIECES, st.integers(0, 80))
def test_a_body_of_known_size_has_that_size(pieces: list[bytes], size: int) -> None:
    body, whole = SizedBody(size), b"".join(pieces)
    assert b"".join(body.feed(piece) for piece in pieces) == whole[:size]
    assert body.ended == (len(whole) >= size)
    if body.ended:
        body.end()
    else:
        with pytest.raises(FramingError):
            body.end()


def test_the_head_says_how_a_body_is_framed() -> None:
    sized, both = [(b"content-length", b"3")], [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    assert isinstance(body_of("GET", 200, both), ChunkedBody)  # RFC 9112: the length does not count then
    assert body_of("GET", 200, sized).feed(b"1234") == b"123"
    assert body_of("HEAD", 200, sized).ended
    assert body_of("GET", 204, both).ended
    unframed = body_of("GET", 200, [])
    assert isinstance(unframed, UnframedBody)
    assert unframed.feed(b"all") == b"all"
    unframed.end()
    assert unframed.ended
