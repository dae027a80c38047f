"""Gateways in front of gateways, and in circles."""

from __future__ import annotations

import signal
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.command import Command, running
from tests.support.gateway import CHAT, call, chat, gateway, gateway_to
from tests.support.raw_client import RawClient
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Request
from trio_admission_web.upstream import OUR_NAME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

SERVED = [("GET", "/health"), ("GET", "/ready"), ("GET", "/props"), ("GET", "/v1/models"), ("POST", CHAT)]


@pytest.mark.parametrize(("method", "path"), SERVED)
async def test_a_request_that_has_come_back_is_refused(
    autojump_clock: MockClock, method: str, path: str
) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        before = len(server.requests)
        for via, is_refused in ((f"other, {OUR_NAME}", True), ("other", False)):
            body = chat() if method == "POST" else b""
            reply = await call(app, path, body, method=method, headers={"Admission-Via": via})
            assert (reply.status == 508) is is_refused
            assert is_refused is (len(server.requests) == before) or path == "/health"


async def test_all_that_is_sent_on_says_through_whom_it_has_come(autojump_clock: MockClock) -> None:
    def via(request: Request) -> list[str]:
        return [value for name, value in request.headers if name.lower() == "admission-via"]

    a, b = FakeLlamaServer(), FakeLlamaServer()
    async with gateway_to((a, {"name": "a"}), (b, {"name": "b"})) as app:
        assert all(via(each) == [OUR_NAME] for each in (*a.requests, *b.requests))
        a.requests.clear()
        b.requests.clear()
        for method, path in SERVED[2:]:
            body = chat() if method == "POST" else b""
            await call(app, path, body, method=method, headers={"Admission-Via": "other"})
        await wait_all_tasks_blocked()
        asked = [*a.requests, *b.requests]
    assert {each.path for each in asked} == {"/props", "/v1/models", CHAT}
    assert all(sorted(via(each)) == sorted([OUR_NAME, "other"]) for each in asked)


@asynccontextmanager
async def gateway_at(port: int, upstream: str) -> AsyncIterator[Command]:
    """Start one in a process of its own, by Hypercorn's command, so that it does not know its own address."""
    hypercorn = ("hypercorn", "-k", "trio", "-b", f"127.0.0.1:{port}", "trio_admission_web.asgi:app")
    async with running(*hypercorn, sign=b".* Running on", TRIO_ADMISSION_UPSTREAM=upstream) as command:
        yield command
        command.process.send_signal(signal.SIGTERM)


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@pytest.mark.parametrize("gateways", [1, 2])
async def test_a_circle_is_told_and_serves_nobody_and_is_no_flood(gateways: int) -> None:
    first, second = free_ports()
    ports = (first, second)[:gateways]
    async with AsyncExitStack() as stack:
        for port, upstream in zip(ports, reversed(ports), strict=True):
            command = await stack.enter_async_context(gateway_at(port, f"http://127.0.0.1:{upstream}"))
        for port in ports:
            async with RawClient.connected(f"http://127.0.0.1:{port}") as client:
                ready = await client.ask("GET", "/ready")
                assert ready.status == 503
                assert "leads back to this gateway" in ready.json["error"]["message"]
        async with RawClient.connected(command.url) as client:
            for method, path in SERVED[2:]:
                answer = await client.ask(method, path, chat() if method == "POST" else None)
                assert (answer.status, answer.json["error"]["code"]) == (508, "loop_detected")
    assert command.said.count(b"leads back to this gateway") == 1
    assert command.said.count(b"\n") < 50
