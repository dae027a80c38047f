"""What the gateway says to the head of a request, whatever would come behind it, over both protocols."""

from __future__ import annotations

import json

import pytest

from tests.support.gateway import CHAT, api_key, chat
from tests.support.http2_client import http2_to
from tests.support.stage import stage
from trio_admission.testing.fake_llama_server import FakeLlamaServer

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
