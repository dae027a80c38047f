"""What the gateway says to the head of a request, whatever would come behind it, over both protocols."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from tests.support.gateway import CHAT, api_key, chat
from tests.support.http2_client import http2_to
from tests.support.stage import stage
from trio_admission.testing.fake_llama_server import FakeLlamaServer

if TYPE_CHECKING:
    from tests.support.raw_client import Answer

KEY = ("authorization", "Bearer ada")
EXPECT = ("expect", "100-continue")

REFUSED = pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (CHAT, [("content-length", "9")], 401),
        ("/v1/nothing", [KEY, ("content-length", "9")], 404),
        ("/health", [KEY, ("content-length", "9")], 405),
        (CHAT, [KEY, ("content-length", "1000000")], 413),
        (CHAT, [KEY, ("content-length", "9"), ("content-encoding", "gzip")], 400),
    ],
)


def server() -> FakeLlamaServer:
    return FakeLlamaServer(total_slots=1, words=1, interval=0.001)


# ---- who waits to be asked for the body


@REFUSED
async def test_who_is_refused_by_the_head_is_not_asked_for_the_body(
    path: str, headers: list[tuple[str, str]], status: int
) -> None:
    async with stage(server(), keys=(api_key("ada"),), max_body=1000) as both:
        async with both.server.client() as client:
            await client.request("POST", path, None, [EXPECT, *headers])
            answer = await client.read_answer()
            assert (answer.status, answer.header("connection")) == (status, "close")
            assert client.received.count(b"HTTP/1.1 ") == 1
        async with http2_to(both.server.url) as connection:
            stream = connection.new()
            await stream.request("POST", path, None, [EXPECT, *headers], end=False)
            assert ((await stream.read_answer()).status, stream.informed) == (status, [])


async def test_who_is_let_in_is_asked_for_the_body_once() -> None:
    raw = json.dumps(chat()).encode()
    headers = [KEY, EXPECT, ("content-length", str(len(raw)))]
    async with stage(server(), keys=(api_key("ada"),)) as both:
        async with both.server.client() as client:
            for _ in range(2):
                await client.request("POST", CHAT, None, headers)
                assert (await client.read_head()).status == 100
                for part in (raw[:9], raw[9:]):
                    await client.send(part)
                assert (await client.read_answer()).status == 200
        async with http2_to(both.server.url) as connection:
            stream = connection.new()
            await stream.request("POST", CHAT, None, headers, end=False)
            await connection.wait(lambda: stream.informed == ["100"])
            await stream.send(raw[:9])
            await stream.send(raw[9:], end=True)
            assert ((await stream.read_answer()).status, stream.informed) == (200, ["100"])


# ---- what is no request

LINE = b"GET /health HTTP/1.1\r\n"
NO_REQUESTS = {
    "no host": (LINE + b"\r\n", 400),
    "length that is none": (b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n", 400),
    "two framings of a head alone": (
        b"HEAD /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n",
        400,
    ),
    "NUL": (LINE + b"host: x\r\nx: a\0b\r\n\r\n", 400),
    "folded line": (LINE + b"host: x\r\nx: a\r\n b\r\n\r\n", 400),
    "target": (b"GET http://[::1/v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "too long": (LINE + b"host: x\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", 431),
    "coding": (b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 501),
    "version": (b"GET /health HTTP/3.0\r\nhost: x\r\n\r\n", 505),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
}


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    told = [each.facts for each in caplog.records if hasattr(each, "facts")]
    return [(each["id"], each["route"], each["outcome"]) for each in told]


def check_refusal(answer: Answer, status: int) -> str:
    """It is an error like any other, and its id is returned."""
    error = answer.json["error"]
    kind = "api_error" if status == 501 else "invalid_request_error"
    assert (answer.status, error["code"], error["type"]) == (status, "invalid_request", kind)
    assert answer.header("content-type") == "application/json"
    assert answer.header("content-length") == str(len(answer.body))
    assert answer.json["request_id"] == answer.header("x-request-id")
    return str(answer.header("x-request-id"))


@pytest.mark.parametrize(("raw", "status"), NO_REQUESTS.values(), ids=NO_REQUESTS)
async def test_what_is_no_request_is_refused_like_what_is(
    raw: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with stage(server()) as both, both.server.client() as client:
        await client.send(raw)
        answer = await client.read_answer()
        name = check_refusal(answer, status)
        assert answer.header("connection") == "close"
        assert await client.read_to_end() == b""
        metrics = both.app.gateway.metrics.exposition()
    assert lines(caplog) == [(name, "other", "invalid_request")]
    assert b'trio_admission_requests_total{outcome="invalid_request",route="other"} 1.0' in metrics


@pytest.mark.parametrize(
    ("headers", "status"), [([("connection", "close")], 400), ([("x", "y" * 17_000)], 431)]
)
async def test_what_is_no_request_of_http2_is_refused_like_what_is(
    headers: list[tuple[str, str]], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with stage(server()) as both, http2_to(both.server.url) as connection:
        answer = await connection.new().ask("GET", "/health", None, headers)
        name = check_refusal(answer, status)
        assert (await connection.ask("GET", "/health")).status == 200
    assert lines(caplog) == [(name, "other", "invalid_request")]


@pytest.mark.parametrize(("method", "window"), [("HEAD", None), ("GET", 0)])
async def test_who_takes_no_body_is_told_the_status_alone(method: str, window: int | None) -> None:
    async with stage(server()) as both, http2_to(both.server.url, window=window) as connection:
        answer = await connection.new().ask(method, "/health", None, [("connection", "close")])
        assert (answer.status, answer.header("content-length"), answer.complete) == (400, "0", True)


async def test_a_body_that_breaks_is_the_end_of_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with stage(server()) as both, both.server.client() as client:
        await client.request("POST", CHAT, None, [("x-request-id", "mine"), ("transfer-encoding", "chunked")])
        await client.send(b"5\r\n{    XX")
        answer = await client.read_answer()
        assert check_refusal(answer, 400) == "mine"
        assert answer.header("connection") == "close"
        assert await client.read_to_end() == b""
    assert lines(caplog) == [("mine", CHAT, "invalid_request")]
