"""A client that does not read cannot hold anything for long; and what goes to one that does, goes at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
from quart import Response, request
from quart_trio import QuartTrio
from trio.testing import wait_all_tasks_blocked

from tests.support.serving import LARGE, add_views, descriptors, get, serving, tasks, until
from trio_admission_web.serving import transport
from trio_admission_web.serving.app import ServingApp
from trio_admission_web.serving.connection import RequestScope, request_scope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


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
    received = 0
    async with serving(serving_app()) as server, server.client(get("/large")) as client:
        started = trio.current_time()
        while received < LARGE:
            received += len(await client.stream.receive_some(64 * 1024))
            await trio.sleep(0.004)
        assert trio.current_time() - started > 2 * write_timeout


async def test_a_client_that_half_closes_without_reading_is_let_go_at_once() -> None:
    async with serving(serving_app()) as server:
        before = tasks()
        async with server.client(get("/flood")) as client:
            await until(lambda: tasks() > before)
            await wait_all_tasks_blocked(0.05)
            await client.half_close()
            await until(lambda: tasks() == before)


async def test_a_client_that_stops_reading_does_not_hold_up_the_shutdown() -> None:
    async with serving(serving_app(), graceful_timeout=0.1) as server:
        before = tasks()
        async with server.client(get("/flood")):
            await until(lambda: tasks() > before)
            await wait_all_tasks_blocked(0.05)
            server.stop.set()
            await until(lambda: tasks() < before)


@pytest.mark.parametrize("target", ["/", "/nowhere"])
async def test_an_answer_whose_length_is_known_is_one_write(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[bytes] = []
    write = os.write

    def note(descriptor: int, data: bytes) -> int:
        writes.append(bytes(data))
        return write(descriptor, data)

    async with serving(serving_app()) as server, server.client() as client:
        monkeypatch.setattr(os, "write", note)
        answer = await client.ask("GET", target)
        monkeypatch.undo()
    (whole,) = writes
    assert whole.startswith(b"HTTP/1.1 ")
    assert whole.endswith(answer.body)


async def test_the_head_of_a_stream_does_not_wait_for_its_first_event() -> None:
    app = ServingApp("app")

    @app.get("/late")
    async def late() -> Response:
        async def body() -> AsyncIterator[bytes]:
            await trio.sleep_forever()
            yield b""

        return Response(body(), mimetype="text/event-stream")

    async with serving(app) as server, server.client(get("/late")) as client:
        with trio.fail_after(10):
            assert (await client.read_head()).status == 200


async def test_a_request_that_is_cancelled_while_its_head_is_written_is_cut_and_nothing_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = ServingApp("app")
    scopes: list[RequestScope] = []
    write = os.write

    @app.get("/stream")
    async def stream() -> Response:
        async def body() -> AsyncIterator[bytes]:
            while True:
                yield b"more"

        scopes.append(request_scope(request))
        return Response(body(), mimetype="text/event-stream")

    def write_and_cancel(descriptor: int, data: bytes) -> int:
        if data.startswith(b"HTTP/1.1 200"):
            scopes[0].nursery.cancel_scope.cancel()
        return write(descriptor, data)

    async with serving(app) as server, server.client() as client:
        monkeypatch.setattr(os, "write", write_and_cancel)
        answer = await client.ask("GET", "/stream")
        monkeypatch.undo()
    assert (answer.status, answer.complete) == (200, False)
    assert not caplog.records
