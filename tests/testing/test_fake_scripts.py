"""The faults that a test can script."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.raw_client import Answer, RawClient, data_of, events, keepalives
from tests.support.upstream import upstream_transport
from trio_admission.testing.fake_llama_server import Cut, End, FakeLlamaServer, Raw, Reply, Script, pieces_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}
STREAM = {**HI, "stream": True}


@pytest.fixture
async def server() -> AsyncIterator[FakeLlamaServer]:
    async with FakeLlamaServer(interval=1) as server:
        yield server


def client_of(server: FakeLlamaServer, *replies: Reply) -> RawClient:
    server.script(*replies)
    return RawClient(server.connect())


async def stream_of(server: FakeLlamaServer, script: Script, path: str = CHAT, body: object = None) -> Answer:
    return await client_of(server, script).ask("POST", path, body or STREAM)


async def test_scripts_are_used_in_the_order_of_arrival_then_the_default(server: FakeLlamaServer) -> None:
    server.script(Script(tokens=["one"]), Raw.answer(418, "tea"))
    server.default = Script(tokens=["rest"])
    contents: list[Any] = []
    for _ in range(3):
        answer = await RawClient(server.connect()).ask("POST", CHAT, HI)
        tea = answer.status == 418
        contents.append(answer.body if tea else answer.json["choices"][0]["message"]["content"])
    assert contents == ["one", b"tea", "rest"]


@pytest.mark.parametrize(
    ("path", "body", "begin"),
    [
        (CHAT, STREAM, "assistant"),
        ("/v1/messages", STREAM, "message_start"),
        ("/v1/responses", {"input": "hi", "stream": True}, "response.created"),
    ],
)
async def test_an_answer_without_a_word_begins_like_any_other(
    server: FakeLlamaServer, path: str, body: object, begin: str
) -> None:
    answer = await stream_of(server, Script(tokens=0), path, body)
    first, *rest = data_of(answer.body)
    assert begin in str(first)
    assert begin not in str(rest)


async def test_words_that_an_answer_has_not_come_to_cost_nothing() -> None:
    tracemalloc.start()
    try:
        async with FakeLlamaServer(words=10**6, interval=1) as server:
            client = RawClient(server.connect())
            await client.request("POST", CHAT, STREAM)
            await client.read_events(await client.read_head(), 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * 2**20


async def test_a_reset_comes_after_the_tokens(server: FakeLlamaServer) -> None:
    client = client_of(server, Script(tokens=5, cut=Cut(2, End.RESET)))
    await client.request("POST", CHAT, STREAM)
    answer = await client.read_head()
    with pytest.raises(trio.BrokenResourceError):
        await client.read_events(answer, 9)
    assert len(data_of(answer.body)) == 3  # the role and two tokens
    assert (trio.current_time(), server.in_flight, server.max_in_flight) == (3, 0, 1)


async def test_a_close_leaves_the_body_without_its_last_chunk(server: FakeLlamaServer) -> None:
    answer = await stream_of(server, Script(cut=Cut(2, End.CLOSE)))
    assert (len(data_of(answer.body)), answer.complete) == (3, False)


async def test_a_finish_ends_the_body_without_the_terminal_event(server: FakeLlamaServer) -> None:
    answer = await stream_of(server, Script(cut=Cut(2, End.FINISH)))
    assert (len(data_of(answer.body)), answer.complete) == (3, True)


async def test_silence_keeps_slot_and_connection_until_the_client_leaves(server: FakeLlamaServer) -> None:
    client = client_of(server, Script(cut=Cut(2, End.SILENCE)))
    await client.request("POST", CHAT, STREAM)
    await trio.sleep(1000)
    assert (server.in_flight, server.requests[0].last_byte) == (1, 2)
    await client.close()
    await wait_all_tasks_blocked()
    assert (server.in_flight, server.requests[0].released) == (0, 1000)


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        (CHAT, STREAM, b'data: {"error":{"code":500,'),
        ("/v1/completions", {"prompt": "a", "stream": True}, b'data: {"error":{"code":500,'),
        ("/v1/responses", {"input": "a", "stream": True}, b'data: {"error":{"code":500,'),
        ("/v1/messages", STREAM, b'event: error\ndata: {"code":500,'),
    ],
)
async def test_an_error_after_the_first_byte_is_in_band(
    server: FakeLlamaServer, path: str, body: object, last: bytes
) -> None:
    answer = await stream_of(server, Script(cut=Cut(2, End.ERROR)), path, body)
    assert events(answer.body)[-1].startswith(last)
    assert (answer.status, answer.complete) == (200, True)


async def test_an_error_of_a_plain_request_is_a_status(server: FakeLlamaServer) -> None:
    answer = await stream_of(server, Script(cut=Cut(2, End.ERROR)), CHAT, HI)
    assert (answer.status, answer.json["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize("how", [End.CLOSE, End.FINISH, End.RESET])
async def test_a_cut_plain_request_has_no_answer(server: FakeLlamaServer, how: End) -> None:
    client = client_of(server, Script(cut=Cut(2, how)))
    await client.request("POST", CHAT, HI)
    if how is End.RESET:
        with pytest.raises(trio.BrokenResourceError):
            await client.read_to_end()
    else:
        assert await client.read_to_end() == (b"0\r\n\r\n" if how is End.FINISH else b"")
    assert trio.current_time() == 3


async def test_bytes_can_be_put_between_the_events(server: FakeLlamaServer) -> None:
    injected = {0: b": hello\n\n", 1: b"error: legacy\n\n", 2: b":\n\n:\n\n", 3: b": bye\n\n"}
    answer = await stream_of(server, Script(tokens=3, injected=injected))
    assert len(keepalives(answer.body)) == 4
    assert events(answer.body)[0] == b": hello"
    assert events(answer.body)[3] == b"error: legacy"
    assert events(answer.body)[-3] == b": bye"  # before the finish and [DONE]


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
async def test_lines_can_end_as_a_test_wants(server: FakeLlamaServer, newline: bytes) -> None:
    answer = await stream_of(server, Script(tokens=["a"], newline=newline), "/v1/messages")
    assert b"\n" not in answer.body.replace(b"\r\n", b"") if newline == b"\r\n" else b"\n" not in answer.body
    assert next(event["type"] for event in data_of(answer.body)) == "message_start"


async def test_a_write_can_be_split_at_any_byte(server: FakeLlamaServer) -> None:
    answer = await stream_of(server, Script(tokens=["é"], split=pieces_of(1)))
    assert {len(chunk) for chunk in answer.chunks} == {1}
    assert data_of(answer.body)[1]["choices"][0]["delta"] == {"content": "é"}
    client = client_of(
        server, Script(tokens=["x"], split=lambda data: [b"", data[:10], data[10:]], split_gap=5)
    )
    await client.request("POST", CHAT, STREAM)
    whole = await client.read_head()
    await client.read_more(whole)
    assert len(whole.body) == 10
    started = trio.current_time()
    await client.read_more(whole)
    assert trio.current_time() == started + 5


async def test_an_answer_can_carry_more_headers(server: FakeLlamaServer) -> None:
    for body in (HI, STREAM):
        answer = await stream_of(server, Script(headers=[("X-Extra", "1")]), CHAT, body)
        assert answer.header("x-extra") == "1"


async def test_an_answer_can_be_given_whole(server: FakeLlamaServer) -> None:
    moved = Raw.answer(307, headers=[("Location", "http://elsewhere/")])
    page = Raw.answer(200, "<html>", content_type="text/html")
    odd = Raw.answer(529, {"error": "busy"})
    client = client_of(server, moved, page, odd)
    assert (await client.ask("POST", CHAT, HI)).header("Location") == "http://elsewhere/"
    answer = await client.ask("POST", CHAT, HI)
    assert (answer.header("Content-Type"), answer.body) == ("text/html", b"<html>")
    assert (await client.ask("POST", CHAT, HI)).status == 529
    assert (len(server.connections), server.in_flight, server.max_in_flight) == (1, 0, 1)
    assert [request.status for request in server.requests] == [307, 200, 529]


async def test_a_wrong_length_leaves_the_client_waiting_or_with_rubbish(server: FakeLlamaServer) -> None:
    short = await client_of(server, Raw.answer(200, b"{}", content_length=10).then(End.CLOSE)).ask(
        "POST", CHAT, HI
    )
    assert (short.body, short.complete) == (b"{}", False)
    client = client_of(server, Raw.answer(200, b"{} rubbish", content_length=2).then(End.CLOSE))
    assert (await client.ask("POST", CHAT, HI)).body == b"{}"
    assert await client.read_to_end() == b" rubbish"


async def test_a_stream_can_be_given_byte_by_byte(server: FakeLlamaServer) -> None:
    raw = Raw.stream(b"data: 1\n\n", 4.0, b"data: 2\n\n", b"data: [DO", End.FINISH)
    answer = await client_of(server, raw).ask("POST", CHAT, STREAM)
    assert (answer.chunks, answer.complete) == ([b"data: 1\n\n", b"data: 2\n\n", b"data: [DO"], True)
    assert trio.current_time() == 4
    assert server.requests[0].released == 4


async def test_framing_can_be_broken(server: FakeLlamaServer) -> None:
    broken = Raw.stream(b"data: 1\n\n").then(b"zz\r\nno chunk\r\n", End.CLOSE)
    server.script(
        broken,
        Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", End.RESET),
        Raw(b"\x00\xffgarbage", End.CLOSE),
    )
    async with httpx2.AsyncClient(transport=upstream_transport(server), base_url="http://llama") as client:
        for expected in (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.RemoteProtocolError):
            with pytest.raises(expected):
                await client.post(CHAT, json=STREAM)


async def test_headers_can_come_slowly_or_never(server: FakeLlamaServer) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    client = client_of(
        server, Raw(*(step for byte in head for step in (0.5, bytes([byte]))), b"{}"), Raw(End.SILENCE)
    )
    assert (await client.ask("POST", CHAT, HI)).json == {}
    assert trio.current_time() == len(head) / 2
    await client.request("POST", CHAT, HI)
    with trio.move_on_after(1000) as waited:
        await client.read_to_end()
    assert waited.cancelled_caught
    assert server.in_flight == 1
    await client.close()
    await wait_all_tasks_blocked()
    assert (server.in_flight, server.open_connections) == (0, 0)


async def test_a_raw_answer_ends_when_its_client_leaves(server: FakeLlamaServer) -> None:
    client = client_of(server, Raw(1000.0, b"late"))
    await client.request("POST", CHAT, HI)
    await trio.sleep(1)
    client.reset()
    await wait_all_tasks_blocked()
    assert (server.in_flight, server.requests[0].connection.peer_close) == (0, "reset")
    assert server.requests[0].released == 1


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_raw_answer_that_nobody_takes_is_over(server: FakeLlamaServer, how: str) -> None:
    client = client_of(server, Raw.stream(*[b"x" * 1000] * 1000, End.FINISH))
    await client.request("POST", CHAT, STREAM)
    await wait_all_tasks_blocked()
    assert server.in_flight == 1  # the connection is full
    if how == "fin":
        await client.close()
    else:
        client.reset()
    await wait_all_tasks_blocked()
    assert (server.in_flight, server.open_connections) == (0, 0)


async def test_a_generation_goes_on_whatever_its_client_reads(server: FakeLlamaServer) -> None:
    client = client_of(server, Script(tokens=["x" * 10_000] * 100, interval=0.1))
    await client.request("POST", CHAT, STREAM)
    await trio.sleep(20)
    assert server.requests[0].released == pytest.approx(10)
    assert data_of((await client.read_answer()).body)[-1] == "[DONE]"


async def test_a_client_that_has_its_answer_is_no_longer_counted(server: FakeLlamaServer) -> None:
    server.interval = 0
    for reply in (
        Script(),
        Raw.answer(200, {}),
        Script(cut=Cut(2, End.FINISH)),
        Raw.stream(b"x", End.FINISH),
    ):
        for body in (HI, STREAM):
            answer = await client_of(server, reply).ask("POST", CHAT, body) if body is STREAM else None
            if answer is not None:
                await stream_of(server, Script(tokens=1), CHAT, HI)
    assert server.max_in_flight == 1


def test_an_engine_s_error_is_not_for_raw_answers() -> None:
    with pytest.raises(ValueError, match="Script"):
        Raw(End.ERROR)
