"""A connection that is kept alive is closed when it has been idle long enough, and when the server stops."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest
import trio
from quart_trio import QuartTrio

from tests.support.serving import Server, add_views, get, post, serving, tasks, until
from trio_admission_web.serving.app import ServingApp


async def make_requests(server: Server, count: int) -> float:
    """Make requests on one connection and return how long the server then leaves it open."""
    async with server.client() as client:
        for _ in range(count):
            await client.send(get())
            assert (await client.read_answer()).complete
        started = trio.current_time()
        assert await client.read_to_end() == b""
        return trio.current_time() - started


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_an_idle_connection_is_closed(count: int) -> None:
    app = ServingApp("app")
    add_views(app)
    async with serving(app, keep_alive_timeout=0.2) as server:
        assert await make_requests(server, count) < 5


async def test_stock_hypercorn_does_not_close_an_idle_connection_that_has_been_used(stock: None) -> None:
    app = QuartTrio("app")
    add_views(app)
    async with serving(app, keep_alive_timeout=0.2, graceful_timeout=0.1) as server:
        with trio.move_on_after(1) as patience:
            await make_requests(server, 1)
    assert patience.cancelled_caught


async def test_an_idle_connection_does_not_hold_up_the_shutdown() -> None:
    app = ServingApp("app")
    add_views(app)
    async with serving(app, keep_alive_timeout=60, graceful_timeout=60) as server, server.client() as client:
        await client.send(get())
        assert (await client.read_answer()).complete
        started = trio.current_time()
        server.stop.set()
        assert await client.read_to_end() == b""
        assert trio.current_time() - started < 5


async def test_half_a_request_head_does_not_hold_up_the_shutdown() -> None:
    app = ServingApp("app")
    async with serving(app, graceful_timeout=60) as server, server.client(b"GET / HT") as client:
        server.stop.set()
        with trio.fail_after(5):
            await client.read_to_end()


async def test_an_answer_given_while_the_server_stops_says_that_the_connection_closes() -> None:
    app = ServingApp("app")
    add_views(app)
    async with serving(app) as server, server.client(post("/read", "content-length: 3")) as client:
        await client.send(b"ab")
        await trio.testing.wait_all_tasks_blocked(0.02)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        await client.send(b"c")
        answer = await client.read_answer()
        assert (answer.body, answer.header("connection")) == (b"3", "close")
        assert await client.read_to_end() == b""


@pytest.mark.parametrize("used", [True, False])
async def test_a_request_that_is_on_its_way_when_the_server_stops_is_served(*, used: bool) -> None:
    app = ServingApp("app")
    add_views(app)
    async with serving(app) as server, server.client() as client:
        if used:
            await client.ask("GET", "/")
        await trio.testing.wait_all_tasks_blocked(0.02)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        answer = await client.ask("GET", "/")
        assert (answer.body, answer.header("connection")) == (b"here", "close")


async def test_a_request_that_came_in_time_is_served_although_the_process_was_too_busy_to_look() -> None:
    app = ServingApp("app")
    add_views(app)
    async with serving(app, keep_alive_timeout=1) as server:
        before = tasks()
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(server.address, timeout=20)) for _ in range(20)
            ]
            await until(lambda: tasks() >= before + 20)
            for client in clients:
                client.sendall(get("/", "connection: close"))
            time.sleep(1.2)  # noqa: ASYNC251 - nobody gets the CPU
            await until(lambda: tasks() == before, 20)
            got = [client.recv(4096) for client in clients]
            assert [each for each in got if not each.endswith(b"here")] == []
