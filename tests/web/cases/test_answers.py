"""What comes back, on every route: C3 C7 C10 C12 C14 D1 D3 D6 D8 E1 E9 E11 F1 F4 F5 F9 H3 I2."""

from __future__ import annotations

import base64
import json
import logging
import re
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, Reply, api_key, call, chat, connect, gateway, shown
from tests.support.generation import ASKS, MESSAGES, ROUTES, STREAM, Ask
from tests.support.raw_client import events
from tests.support.serving import get, tasks, until
from tests.support.stage import stage
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import Cut, End, FakeLlamaServer, Raw, Script

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.support.raw_client import RawClient
    from trio_admission_web.serving.testing import ServingTestConnection

FULL = AdmissionConfig(max_waiting=1)
INSIDE = re.compile(rb"Traceback|127\.0\.0\.1|llama\.test|/home/|httpx|h11|trio\.|Error\(")


def server(slots: int = 1, **options: Any) -> FakeLlamaServer:
    return FakeLlamaServer(**{"total_slots": slots, "infill": True, "interval": 0.1, **options})


def check_envelope(reply: Reply, ask: Ask) -> None:
    """The error is JSON in the route's dialect, with a request id, and tells nothing of the inside."""
    assert reply.headers["content-type"] == "application/json"
    assert reply.json.get("type") == ("error" if ask.anthropic else None)
    assert isinstance(reply.error["message"], str)
    assert isinstance(reply.error["type"], str)
    assert reply.json["request_id"] == reply.headers["x-request-id"]
    assert not INSIDE.search(reply.body)


@ROUTES
@STREAM
async def test_d1_d3_a_full_line_is_a_status_before_any_byte(
    autojump_clock: MockClock, ask: Ask, *, stream: bool
) -> None:
    async with gateway(server(words=30), admission=FULL) as app, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(call, app, CHAT, chat())
            await wait_all_tasks_blocked()
        reply = await call(app, ask.path, ask.body | {"stream": stream})
    assert (reply.status, reply.seconds, reply.error["code"]) == (429, 0, "queue_full")
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    check_envelope(reply, ask)


def refusing(cause: str) -> dict[str, Any]:
    """Settings with which a request is refused for that cause."""
    known: dict[str, dict[str, Any]] = {
        "invalid_api_key": {"keys": (api_key("mine"),)},
        "permission_denied": {"keys": (api_key("mine", models=("a",)),), "models": ("a", "fake-model")},
        "model_not_found": {"models": ("a", "b")},
        "request_too_large": {"max_body": 10},
        "request_timeout": {"body_deadline": 1.0},
        "queue_timeout": {"admission": AdmissionConfig(max_wait=1.0)},
        "flow_limit": {"keys": (api_key("mine", max_waiting=0),)},
    }
    return known.get(cause, {})


@ROUTES
@pytest.mark.parametrize(
    ("cause", "status"),
    [
        ("invalid_request", 400),
        ("invalid_api_key", 401),
        ("permission_denied", 403),
        ("model_not_found", 404),
        ("not_found", 404),
        ("method_not_allowed", 405),
        ("request_timeout", 408),
        ("request_too_large", 413),
        ("flow_limit", 429),
        ("internal_error", 500),
        ("draining", 503),
        ("queue_timeout", 503),
    ],
)
async def test_d3_every_refusal_is_in_the_dialect_of_its_route(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, ask: Ask, cause: str, status: int
) -> None:
    body: bytes | dict[str, Any] = ask.body | {"model": "fake-model"}
    path, method, headers = ask.path, "POST", shown("mine")
    async with gateway(server(words=30), **refusing(cause)) as app, trio.open_nursery() as nursery:
        if cause in {"queue_timeout", "flow_limit"}:
            nursery.start_soon(partial(call, app, CHAT, chat(), headers=headers))
            await wait_all_tasks_blocked()
        if cause == "invalid_request":
            body = b'{"model": '
        elif cause == "invalid_api_key":
            headers = {}
        elif cause == "not_found":
            path += "/nowhere"
        elif cause == "method_not_allowed":
            method = "PUT"
        elif cause == "internal_error":
            monkeypatch.setattr(app.gateway, "directory", None)
        elif cause == "draining":
            app.gateway.draining = True
        if cause == "request_timeout":
            async with connect(app, path) as connection:
                await connection.send(b"{")
                reply = await read_reply(connection)
        else:
            reply = await call(app, path, body, method=method, headers=headers)
        monkeypatch.undo()
        assert (reply.status, reply.error["code"]) == (status, cause)
        assert ("retry-after" in reply.headers) == (status in {429, 503})
        check_envelope(reply, ask)


async def read_reply(connection: ServingTestConnection) -> Reply:
    """Read an answer whose request is not complete."""
    reply = Reply()
    with suppress(trio.EndOfChannel):
        while True:
            reply.parts.append((0.0, await connection.receive()))
    reply.status, reply.headers = connection.status_code or 0, dict(connection.headers or {})
    return reply


@ROUTES
@STREAM
@pytest.mark.parametrize(
    ("fault", "times", "status"),
    [
        (Raw(End.RESET), 2, 502),  # a connection that is lost before a byte is tried once more
        (Raw(End.CLOSE), 2, 502),
        (Raw(b"\x16\x03\x01garbage\r\n\r\n", End.CLOSE), 1, 502),
        (Raw.answer(200, b"<html>", content_type="text/html"), 1, 502),
        (Raw.answer(200, b""), 1, 502),
        (Raw.answer(204, b""), 1, 502),
        (Raw.answer(307, b"", headers=[("Location", "http://elsewhere.test/")]), 1, 502),
        (Raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", End.CLOSE), 1, 502),
        (Raw(End.SILENCE), 1, 504),
    ],
    ids=["reset", "close", "garbage", "html", "empty", "204", "redirect", "head", "silence"],
)
async def test_d8_e11_what_is_no_answer_is_a_bad_gateway_in_the_dialect(
    autojump_clock: MockClock, ask: Ask, fault: Raw, times: int, status: int, *, stream: bool
) -> None:
    llama = server(words=1)
    llama.script(*[fault] * times)
    admission = AdmissionConfig(keepalive_interval=60)
    async with gateway(llama, first_byte_limit=3.0, admission=admission) as app:
        reply = await call(app, ask.path, ask.body | {"stream": stream})
        assert reply.status == status
        check_envelope(reply, ask)
        assert (await call(app, ask.path, ask.body)).status == 200
    assert llama.total == times + 1


@ROUTES
@STREAM
@pytest.mark.parametrize("how", [End.RESET, End.CLOSE, End.FINISH, End.SILENCE, End.ERROR], ids=str)
async def test_d6_a_broken_stream_never_looks_like_an_end(
    autojump_clock: MockClock, ask: Ask, how: End, *, stream: bool
) -> None:
    llama = server(words=5)
    llama.script(Script(cut=Cut(2, how)))
    async with gateway(llama, idle_limit=5.0) as app:
        reply = await call(app, ask.path, ask.body | {"stream": stream})
        said = (await call(app, "/metrics", method="GET")).body.decode()
        assert (await call(app, ask.path, ask.body)).status == 200
    assert reply.status == 200 if stream else reply.status >= 500
    assert b"error" in reply.body
    assert not re.search(rb'"finish_reason": ?"(stop|length)"|response\.completed|message_stop', reply.body)
    assert f'outcome="answered",route="{ask.path}"' not in said


@ROUTES
@STREAM
async def test_d6_an_error_line_of_old_servers_is_told_in_the_dialect(
    autojump_clock: MockClock, ask: Ask, *, stream: bool
) -> None:
    """SDKs pass over a field that is called `error`: to them the answer would just be short."""
    message = "Context size has been exceeded."
    line = b'error: {"code":500,"message":"%b","type":"server_error"}\n\n' % message.encode()
    llama = server(words=5)
    llama.script(Script(injected={2: line}))
    async with gateway(llama) as app:
        reply = await call(app, ask.path, ask.body | {"stream": stream})
        said = (await call(app, "/metrics", method="GET")).body.decode()
        assert (await call(app, ask.path, ask.body)).status == 200
    assert f'outcome="backend_error",route="{ask.path}"}} 1.0' in said
    assert f'outcome="answered",route="{ask.path}"' not in said
    if not stream:
        assert (reply.status, reply.error["message"]) == (500, message)
        check_envelope(reply, ask)
        return
    *_, last = [event for event in events(reply.body) if event != b"data: [DONE]"]
    assert not re.search(rb"(?m)^error:", reply.body)
    name, _, data = last.rpartition(b"data: ")
    told = json.loads(data)
    if ask.path == "/v1/responses":
        assert (name, told["type"]) == (b"event: response.failed\n", "response.failed")
        told = told["response"]
    else:
        assert (name, told.get("type")) == ((b"event: error\n", "error") if ask.anthropic else (b"", None))
    assert told["error"]["message"] == message


@ROUTES
async def test_c3_comments_of_the_server_stay_comments(autojump_clock: MockClock, ask: Ask) -> None:
    llama = server(words=4)
    plain = Script(tokens=["a", "b", "c"])
    llama.script(
        plain, Script(tokens=["a", "b", "c"], injected={0: b":\n\n", 1: b": WORKING\n\n", 2: b":\n\n"})
    )
    async with gateway(llama) as app:
        first = await call(app, ask.path, ask.body | {"stream": True})
        second = await call(app, ask.path, ask.body | {"stream": True})
    assert count(second) == count(first)
    assert b"data: WORKING" not in second.body
    assert second.body.endswith(ask.end)


def count(reply: Reply) -> int:
    return sum(line.startswith(b"data:") for line in reply.body.splitlines())


@ROUTES
async def test_c7_c12_a_stream_is_never_left_alone_and_never_held_back(
    autojump_clock: MockClock, ask: Ask
) -> None:
    llama = server()
    llama.script(Script(tokens=10), Script(tokens=4, prefill=1.0, pauses={2: 1.0}))
    admission = AdmissionConfig(keepalive_interval=0.2)
    async with gateway(llama, admission=admission) as app, trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, chat())
        await wait_all_tasks_blocked()
        reply = await call(app, ask.path, ask.body | {"stream": True})
    times = [0.0, *(at for at, _ in reply.parts)]
    assert max(later - sooner for sooner, later in pairwise(times)) < 0.4
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert (reply.headers["x-accel-buffering"], "content-length" in reply.headers) == ("no", False)
    assert {"no-cache", "no-transform"} <= set(reply.headers["cache-control"].split(", "))
    assert reply.body.endswith(ask.end)


@ROUTES
async def test_c7_each_event_comes_when_it_is_sent_whoever_waits_and_has_waited(
    autojump_clock: MockClock, ask: Ask
) -> None:
    llama = server(words=20)
    replies: list[Reply] = []
    async with gateway(llama, admission=AdmissionConfig(keepalive_interval=0.25)) as app:
        start = trio.current_time()

        async def one() -> None:
            asked = ask.body | {"stream": True}
            replies.append(await call(app, ask.path, asked, headers={"Accept-Encoding": "gzip, br"}))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
                await wait_all_tasks_blocked()
    for reply, sent in zip(replies, llama.generations, strict=True):
        granted = sent.arrived - start
        times = [at - granted for at, part in reply.parts if b"data: {" in part and at > granted]
        assert {round(each * 10) for each in times} >= set(range(1, 21))  # a token each tenth of a second
        assert max(abs(each - round(each, 1)) for each in times) < 0.01
        assert "content-encoding" not in reply.headers
        assert reply.headers["x-accel-buffering"] == "no"
        assert reply.body.endswith(ask.end)
    waited = [sent.arrived - start for sent in llama.generations]
    assert waited == pytest.approx([0, 2, 4], abs=0.3)


@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}]
)
async def test_c10_usage_comes_if_it_is_asked_for(autojump_clock: MockClock, options: dict[str, Any]) -> None:
    llama = server(words=2)
    async with gateway(llama) as app:
        without = await call(app, CHAT, chat(stream=True, **options))
        within = await call(app, CHAT, chat(stream=True, stream_options={"include_usage": True}))
    assert (without.body.count(b'"usage":{'), within.body.count(b'"usage":{')) == (0, 1)
    assert json.loads(llama.generations[0].body) == chat(stream=True, **options)


@pytest.mark.parametrize(
    "extra",
    [
        {"stream": None},
        {"tools": None, "stop": None},
        {
            "messages": [*MESSAGES, {"role": "assistant", "content": None}, *MESSAGES],
            "unknown": {"a": [1.50]},
        },
    ],
    ids=["stream", "tools", "content"],
)
async def test_f4_what_real_clients_send_goes_on_unchanged(
    autojump_clock: MockClock, extra: dict[str, Any]
) -> None:
    llama = server(words=1)
    sent = json.dumps({"messages": MESSAGES, "stream": True} | extra)
    async with gateway(llama) as app:
        assert (await call(app, CHAT, sent.encode())).status == 200
    got = llama.generations[0].body
    assert json.loads(got).items() >= (json.loads(sent) | {"stream": True}).items()
    if extra.get("stream", True):
        assert got == sent.encode()


SENT = [*ASKS, Ask("/v1/embeddings", {"input": ["a"]})]
FRAMED = pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "sized"])


def head_of(path: str, size: int | None) -> bytes:
    """The head of a request with a body; without a size it comes in chunks."""
    framing = "transfer-encoding: chunked" if size is None else f"content-length: {size}"
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode()


@pytest.mark.parametrize("ask", SENT, ids=str)
@FRAMED
async def test_f1_a_large_body_goes_up_byte_for_byte(ask: Ask, *, chunked: bool) -> None:
    picture = base64.b64encode(Random(1).randbytes(3 * 2**20)).decode()
    raw = json.dumps(ask.body | {"stream": True, "images": [f"data:image/png;base64,{picture}"]}).encode()
    llama = server(words=1, interval=0.001, embeddings=True)
    async with stage(llama) as both, both.server.client() as client:
        await client.send(head_of(ask.path, None if chunked else len(raw)))
        if chunked:
            for at in range(0, len(raw), 1_000_001):
                piece = raw[at : at + 1_000_001]
                await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await client.send(b"0\r\n\r\n")
        else:
            await client.send(raw)
        assert (await client.read_answer()).status == 200
    (got,) = llama.generations
    assert (got.header("Content-Length"), got.header("Transfer-Encoding")) == (str(len(raw)), None)
    assert sha256(got.body).digest() == sha256(raw).digest()


@pytest.mark.parametrize("ask", SENT, ids=str)
@FRAMED
async def test_f1_a_body_that_is_too_large_is_refused_though_the_client_goes_on(
    ask: Ask, *, chunked: bool
) -> None:
    async with stage(server(embeddings=True), max_body=2**20) as both, both.server.client() as client:
        await client.send(head_of(ask.path, None if chunked else 2**40))

        async def go_on() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await client.send(b"10000\r\n%b\r\n" % bytes(2**16))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            answer = await client.read_answer()
            assert both.counts == (0, 0)
            nursery.cancel_scope.cancel()
        assert (answer.status, answer.complete) == (413, True)
        assert (answer.header("connection"), answer.header("content-type")) == ("close", "application/json")
        assert answer.json["error"]["code"] == "request_too_large"
        assert answer.json.get("type") == ("error" if ask.anthropic else None)
    assert not both.llama.generations


@pytest.mark.parametrize(
    "ask",
    [
        *SENT,
        Ask("/v1/messages/count_tokens", {"messages": MESSAGES}),
        Ask("/v1/responses/input_tokens", {"input": "a"}),
        Ask("/tokenize", {"content": "a"}),
    ],
    ids=str,
)
async def test_f5_a_chunked_body_goes_up_with_a_length(ask: Ask) -> None:
    llama = server(words=1, interval=0.001, embeddings=True)
    async with stage(llama) as both, both.server.client() as client:
        raw = json.dumps(ask.body | {"stream": True}).encode()
        chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in raw)
        await client.send(head_of(ask.path, None) + chunks + b"0\r\nX-Trailer: 1\r\n\r\n")
        assert (await client.read_answer()).status == 200
    (got,) = [each for each in llama.requests if each.method == "POST"]
    assert got.header("Transfer-Encoding") is None
    assert got.header("X-Trailer") is None
    assert got.header("Content-Length") == str(len(raw))
    assert got.body == raw


@pytest.mark.parametrize(
    "head",
    [
        b"1.0\r\ntransfer-encoding: chunked",
        b"1.1\r\ncontent-length: 5\r\ncontent-length: 6",
        b"1.1\r\ntransfer-encoding: xchunked",
        b"1.1\r\ntransfer-encoding: chunked, identity",
        b"1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
        b"1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
        b"1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 0",
    ],
)
async def test_i2_an_ambiguous_framing_is_refused_and_ends_the_connection(head: bytes) -> None:
    """What one hop takes for the next request is the body of this one to another: neither is believed."""
    raw = json.dumps(chat()).encode()
    async with stage(server(words=1)) as both, both.server.client() as client:
        first = b"POST " + CHAT.encode() + b" HTTP/" + head + b"\r\nhost: x\r\n\r\n"
        hidden = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(raw)
        await client.send(first + b"0\r\n\r\n" + hidden + raw)
        answer = await client.read_answer()
        assert (answer.status, answer.header("connection")) in {(400, "close"), (501, "close")}
        assert await client.read_to_end() == b""
    assert not both.llama.generations


@pytest.mark.parametrize(
    "request_",
    [
        b"1.1\r\nhost: x\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        b"1.1\r\nhost: x\r\ncontent-length:\r\n\t0\r\n\r\n",
        b"1.1\r\nhost: x\r\nx-other: a\r\n b\r\ncontent-length: 0\r\n\r\n",
        b"1.1\r\nhost: x\ncontent-length: 0\r\n\r\n",
        b"1.1\nhost: x\ncontent-length: 0\n\n",
        b"1.1\r\nhost: x\r\ncontent-length: 0\r\n\n",
        b"1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\n",
        b"1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\n\r\n",
        b"1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\r\n c\r\n\r\n",
        b"1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\n{   }\r\n0\r\n\r\n",
        b"1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{   }XX0\r\n\r\n",
        b"1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\n{   }\n0\n\n",
    ],
)
async def test_i2_ambiguous_lines_are_refused_and_nothing_behind_them_is_a_request(request_: bytes) -> None:
    """Each of these ends elsewhere for whoever reads its lines or its chunks in another way."""
    raw = json.dumps(chat()).encode()
    async with stage(server(words=1)) as both, both.server.client() as client:
        hidden = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(raw)
        await client.send(b"POST " + CHAT.encode() + b" HTTP/" + request_ + hidden + raw)
        answer = await client.read_answer()
        assert (answer.status, answer.header("connection")) == (400, "close")
        assert await client.read_to_end() == b""
    assert not both.llama.generations


async def test_i2_what_comes_behind_a_refusal_is_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """The refused bytes came ahead, so they are looked at just when the client hears its first answer."""
    async with stage(server(words=1)) as both:
        before = tasks()
        for _ in range(20):
            async with both.server.client(get("/health") + b"nonsense\r\n\r\n") as client:
                assert (await client.read_head()).status == 200
                await client.request("POST", CHAT, chat())
                with suppress(trio.BrokenResourceError):  # it hung up before it had read that
                    assert (await client.read_to_end()).count(b"HTTP/1.1 400 ") == 1
            await until(lambda: tasks() == before)
    assert not both.llama.generations
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_i2_chunk_extensions_are_no_ambiguity() -> None:
    raw = json.dumps(chat()).encode()
    async with stage(server(words=1)) as both, both.server.client() as client:
        await client.send(
            b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await client.send(b"%x;a=b\r\n" % len(raw) + raw + b"\r\n0\r\n\r\n")
        assert (await client.read_answer()).status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (CHAT + "/", 404),
        ("/chat/completions", 200),
        (CHAT + "?beta=true", 200),
        ("/v1/chat%2Fcompletions", 200),
        ("/V1/chat/completions", 404),
        ("/" + CHAT, 404),
        ("/%2Fv1/chat/completions", 404),
        ("/v1//chat/completions", 404),
        ("//evil.test" + CHAT, 404),
        (CHAT[1:], 404),
        ("http://x" + CHAT, 200),
        ("http://x/" + CHAT, 404),
    ],
)
async def test_f9_forms_of_an_address(path: str, status: int) -> None:
    async with stage(server(words=1, interval=0.001)) as both, both.server.client() as client:
        answer = await client.ask("POST", path, chat())
        assert answer.status == status
        assert status == 200 or answer.json["error"]["code"] == "not_found"
        assert both.llama.total == (1 if status == 200 else 0)
        if both.llama.total:
            assert both.llama.generations[0].path in {CHAT, "/chat/completions"}


async def test_e1_a_server_that_is_killed_and_comes_back_loses_no_slot(autojump_clock: MockClock) -> None:
    llama = server(4, words=20)
    replies: list[Reply] = []
    async with gateway(llama) as app:

        async def one(delay: float) -> None:
            await trio.sleep(delay)
            replies.append(await call(app, CHAT, chat(stream=True)))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one, 0.0)
            await trio.sleep(0.55)
            llama.crash()
            await trio.sleep(1)
            llama.restart()
            for _ in range(6):
                nursery.start_soon(one, 0.0)
    broken = [each for each in replies if b"bad_gateway" in each.body]
    served = [each for each in replies if each.body.endswith(b"data: [DONE]\n\n") and each not in broken]
    assert (len(broken), len(served)) == (4, 6)


async def test_h3_clients_that_never_end_do_not_hold_up_the_end() -> None:
    async with stage(server(words=100_000, interval=0.01)) as both, both.two_clients() as (endless, half):
        await endless.request("POST", CHAT, chat(stream=True))
        await endless.read_events(await endless.read_head(), 2)
        await half.send(b"POST /v1/chat/completions HT")
        with trio.move_on_after(0.5):
            await both.app.gateway.drain()
        rest = await read_all(endless)
    assert b"draining" in rest


async def read_all(client: RawClient) -> bytes:
    with trio.fail_after(5):
        while b"draining" not in client.received:
            if not await client._fill():
                break
    return bytes(client.received)
