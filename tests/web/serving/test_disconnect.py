"""A client that goes away is noticed at once, whatever it has sent, and leaves nothing behind."""

from __future__ import annotations

import pytest
import trio
from quart import Response, request
from quart_trio import QuartTrio
from trio.testing import wait_all_tasks_blocked

from tests.support.serving import add_views, descriptors, get, post, serving, tasks, until
from trio_admission_web.serving.app import ServingApp
from trio_admission_web.serving.connection import RequestScope, request_scope
from trio_admission_web.serving.http1 import MAX_AHEAD

TRAILERS = {"nothing": b"", "newline": b"\r\n", "request": get(), "flood": bytes(2 * MAX_AHEAD)}
trailers = pytest.mark.parametrize("trailer", TRAILERS.values(), ids=TRAILERS)


def serving_app() -> ServingApp:
    app = ServingApp("app")
    add_views(app)
    return app


@trailers
@pytest.mark.parametrize("header", ["x: y", "connection: close"])
async def test_clients_that_leave_in_mid_answer_leave_nothing_behind(header: str, trailer: bytes) -> None:
    head = post("/events", header)
    async with serving(serving_app(), keep_alive_timeout=60) as server:
        before = descriptors(), tasks()
        for _ in range(20):
            async with server.client(head + trailer) as client:
                await client.read_until(b"data: x")
        await until(lambda: (descriptors(), tasks()) == before)


async def test_stock_hypercorn_never_notices_a_client_that_sent_a_newline_too_many(stock: None) -> None:
    app = QuartTrio("app")
    add_views(app)
    async with serving(app, graceful_timeout=0.1) as server:
        before = descriptors()
        async with server.client(post("/events") + b"\r\n") as client:
            await client.read_until(b"data: x")
        with pytest.raises(trio.TooSlowError):
            await until(lambda: descriptors() == before, seconds=0.5)


@pytest.mark.parametrize("leave", ["close", "half_close", "reset"])
async def test_a_silent_view_is_cancelled_when_its_client_leaves(leave: str) -> None:
    async with serving(serving_app()) as server:
        before = tasks()
        async with server.client(get("/silent")) as client:
            await until(lambda: tasks() > before + 2)  # the connection, the view
            ended = getattr(client, leave)()
            if ended is not None:
                await ended
            await until(lambda: tasks() == before)


async def test_many_clients_that_leave_at_once_leave_no_task() -> None:
    async with serving(serving_app(), backlog=1000) as server:
        before = descriptors(), tasks()
        async with trio.open_nursery() as nursery:

            async def wait_in_vain() -> None:
                async with server.client(get("/silent") + b"\r\n"):
                    await trio.sleep_forever()

            for _ in range(100):
                nursery.start_soon(wait_in_vain)
            await until(lambda: tasks() >= before[1] + 3 * 100)
            nursery.cancel_scope.cancel()
        await until(lambda: (descriptors(), tasks()) == before)


async def test_a_client_that_closes_an_idle_connection_frees_it_at_once() -> None:
    async with serving(serving_app(), keep_alive_timeout=60) as server:
        before = descriptors(), tasks()
        async with server.client(get()) as client:
            await client.read_answer()
            await wait_all_tasks_blocked(0.02)
        await until(lambda: (descriptors(), tasks()) == before)


async def test_requests_that_are_sent_ahead_are_answered_in_order() -> None:
    ahead = get("/") + post("/read", "content-length: 3") + b"abc" + get("/none", "connection: close")
    async with serving(serving_app()) as server, server.client(ahead) as client:
        answers = [await client.read_answer() for _ in range(3)]
        assert await client.read_to_end() == b""
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert answers[1].body == b"3"


async def test_an_answer_outlives_a_client_that_sends_too_far_ahead() -> None:
    async with serving(serving_app()) as server, server.client(get("/large")) as client:
        await client.read_head()
        await client.send(get() * (2 * MAX_AHEAD // len(get())))
        rest = await client.read_to_end()  # no second answer, and no reset
    assert rest.endswith(bytes(1024))


class Watched:
    """An application whose requests show their scopes, and how the tasks in their nurseries ended."""

    def __init__(self) -> None:
        self.app = ServingApp("app")
        self.scopes: list[RequestScope] = []
        self.ended: list[bool] = []
        self.app.add_url_rule("/<kind>", view_func=self.view)

    async def view(self, kind: str) -> str | Response:
        scope = request_scope(request)
        self.scopes.append(scope)
        await scope.nursery.start(self.work)
        if kind == "silent":
            await trio.sleep_forever()
        return "done"

    async def work(self, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            self.ended.append(self.scopes[-1].disconnected)


async def test_a_request_takes_its_nursery_with_it_when_the_client_leaves() -> None:
    watched = Watched()
    async with serving(watched.app) as server:
        async with server.client(get("/silent")):
            await until(lambda: watched.scopes)
        await until(lambda: watched.ended)
    assert watched.ended == [True]


async def test_a_request_takes_its_nursery_with_it_when_it_is_answered() -> None:
    watched = Watched()
    async with serving(watched.app) as server, server.client(get("/quick")) as client:
        assert (await client.read_answer()).body == b"done"
        await until(lambda: watched.ended)
    assert watched.ended == [False]


async def test_a_request_that_the_server_cuts_has_not_lost_its_client() -> None:
    watched = Watched()
    async with serving(watched.app, graceful_timeout=0) as server, server.client(get("/silent")):
        await until(lambda: watched.scopes)
        server.stop.set()
        await until(lambda: watched.ended)
    assert watched.ended == [False]
