"""A client that does not read cannot hold anything for long."""

from __future__ import annotations

import socket

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import wait_all_tasks_blocked

from tests.support.serving import LARGE, add_views, descriptors, get, serving, tasks, until
from trio_admission_web.serving import transport
from trio_admission_web.serving.app import ServingApp


@pytest.fixture
def write_timeout(monkeypatch: pytest.MonkeyPatch) -> float:
    seconds = 0.4
    monkeypatch.setattr(transport, "WRITE_TIMEOUT", seconds)
    return seconds


def serving_app() -> ServingApp:
    app = ServingApp("app")
    add_views(app)
    return app


async def test_a_client_that_stops_reading_loses_its_connection(write_timeout: float) -> None:
    async with serving(serving_app()) as server:
        before = tasks()
        async with server.client(get("/flood")):
            open_here = descriptors()
            await until(lambda: tasks() > before)
            await until(lambda: (descriptors(), tasks()) == (open_here - 1, before))


async def test_stock_hypercorn_holds_the_task_of_a_client_that_stops_reading(stock: None) -> None:
    app = QuartTrio("app")
    add_views(app)
    async with serving(app, graceful_timeout=0.1) as server:
        before = tasks()
        async with server.client(get("/flood")):
            await until(lambda: tasks() > before)
            with pytest.raises(trio.TooSlowError):
                await until(lambda: tasks() == before, seconds=0.8)


async def test_a_client_that_reads_slowly_but_steadily_gets_everything(write_timeout: float) -> None:
    # Fast at first, so that the kernel grows its send buffer to megabytes; then slow.
    piece = 64 * 1024
    received = 0
    async with serving(serving_app()) as server:
        with trio.socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, piece)
            await client.connect(server.address)
            await client.send(get("/large"))
            while data := await client.recv(piece):
                received += len(data)
                if 4 * 1024 * 1024 < received < 7 * 1024 * 1024:
                    await trio.sleep(0.02)
                elif received > LARGE:  # body and head
                    break
    assert received > LARGE


async def test_a_client_that_half_closes_without_reading_is_let_go_at_once() -> None:
    async with serving(serving_app()) as server:
        before = tasks()
        async with server.client(get("/flood")) as client:
            await until(lambda: tasks() > before)
            await wait_all_tasks_blocked(0.05)
            await client.half_close()
            await until(lambda: tasks() == before, seconds=1)


async def test_a_client_that_stops_reading_does_not_hold_up_the_shutdown() -> None:
    async with serving(serving_app(), graceful_timeout=0.1) as server:
        before = tasks()
        async with server.client(get("/flood")):
            await until(lambda: tasks() > before)
            await wait_all_tasks_blocked(0.05)
            server.stop.set()
            await until(lambda: tasks() < before, seconds=1)
