"""A request body is bounded in bytes and in time while it arrives, whoever reads it, and nobody too."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
from quart import request
from trio.testing import wait_all_tasks_blocked
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge, RequestTimeout

from tests.support.serving import Server, add_views, post, resident, serving, tasks, until
from trio_admission_web.serving.app import ServingApp
from trio_admission_web.serving.body import BoundedBody
from trio_admission_web.serving.connection import request_scope

if TYPE_CHECKING:
    from quart.typing import ResponseReturnValue
    from trio.testing import MockClock

    from tests.support.raw_client import Answer

MIB = 1024 * 1024
CHUNK = b"10000\r\n" + bytes(64 * 1024) + b"\r\n"
CHUNKED = "transfer-encoding: chunked"
reading = pytest.mark.parametrize("path", ["/read", "/iterate"])


def app_with(**config: object) -> ServingApp:
    """Return an application that answers an HTTPException with its description."""
    app = ServingApp("app")
    app.config.update(config)
    add_views(app)

    @app.errorhandler(HTTPException)
    async def describe(error: HTTPException) -> ResponseReturnValue:
        return error.description or "", error.code or 500

    return app


async def upload(server: Server, path: str, chunks: int) -> tuple[Answer, int]:
    """Send up to `chunks` chunks until the answer is there, and return it with the number that were sent."""
    sent = 0
    async with server.client(post(path, CHUNKED)) as client, trio.open_nursery() as nursery:

        async def send() -> None:
            nonlocal sent
            for _ in range(chunks):
                await client.send(CHUNK)
                sent += 1

        nursery.start_soon(send)
        answer = await client.read_answer()
        nursery.cancel_scope.cancel()
    return answer, sent


@reading
async def test_a_body_that_says_that_it_is_too_long_is_refused_before_it_comes(path: str) -> None:
    app, head = app_with(MAX_CONTENT_LENGTH=10), post(path, "content-length: 11")
    async with serving(app) as server, server.client(head) as client:
        answer = await client.read_answer()
    assert (answer.status, answer.body) == (413, b"The request body is larger than 10 bytes.")
    assert answer.header("connection") == "close"


@reading
async def test_a_chunked_body_is_refused_as_soon_as_it_is_too_long(path: str) -> None:
    async with serving(app_with(MAX_CONTENT_LENGTH=MIB)) as server:
        answer, sent = await upload(server, path, chunks=3200)
    assert (answer.status, answer.body) == (413, b"The request body is larger than 1048576 bytes.")
    assert sent < 320  # what was on its way when the answer was given


@reading
async def test_a_chunked_body_within_the_limit_is_read(path: str) -> None:
    app, whole = app_with(MAX_CONTENT_LENGTH=MIB), post(path, CHUNKED) + 16 * CHUNK + b"0\r\n\r\n"
    async with serving(app) as server, server.client(whole) as client:
        assert (await client.read_answer()).body == b"1048576"


async def test_a_body_that_nobody_reads_takes_no_more_memory_than_the_limit() -> None:
    app, head = app_with(MAX_CONTENT_LENGTH=MIB), post("/silent", CHUNKED)
    async with serving(app) as server, server.client(head) as client:
        await client.send(CHUNK)
        before = resident()
        for _ in range(640):
            await client.send(CHUNK)
        await wait_all_tasks_blocked(0.01)
        assert resident() - before < 10 * MIB


async def test_a_request_that_fails_does_not_strand_the_client_that_is_still_sending() -> None:
    app = app_with()

    @app.post("/fail")
    async def fail() -> str:
        request_scope(request).nursery.start_soon(crash)
        try:
            await trio.sleep_forever()
            return ""
        finally:  # nobody takes the body any more, and Hypercorn's queue of it fills up
            with trio.CancelScope(shield=True):
                await trio.sleep(0.2)

    async def crash() -> None:
        raise RuntimeError

    async with serving(app) as server:
        before = tasks()
        async with server.client(post("/fail", CHUNKED)) as client:
            with trio.fail_after(3), suppress(trio.BrokenResourceError):
                while True:
                    await client.send(CHUNK)
        await until(lambda: tasks() == before)


async def test_a_refused_client_that_goes_on_sending_still_gets_its_answer() -> None:
    app, head = app_with(MAX_CONTENT_LENGTH=10), post("/read", "content-length: 4194304")
    async with serving(app) as server, server.client(head) as client:
        await wait_all_tasks_blocked(0.01)
        await client.send(bytes(4 * MIB))
        assert (await client.read_answer()).status == 413
        assert await client.read_to_end() == b""


@reading
async def test_a_body_that_does_not_come_in_time_is_refused(path: str) -> None:
    app, head = app_with(BODY_TIMEOUT=0.2), post(path, "content-length: 1000")
    async with serving(app) as server, server.client(head) as client, trio.open_nursery() as nursery:

        async def drip() -> None:
            while True:
                await client.send(b"x")
                await trio.sleep(0.02)

        nursery.start_soon(drip)
        answer = await client.read_answer()
        nursery.cancel_scope.cancel()
    assert (answer.status, answer.body) == (408, b"The request body did not arrive within 0.2 s.")
    assert answer.header("connection") == "close"


async def test_a_body_that_came_in_time_may_be_read_late(autojump_clock: MockClock) -> None:
    app = app_with(BODY_TIMEOUT=1)

    @app.before_request
    async def wait() -> None:
        await trio.sleep(10)

    answer = await app.test_client().post("/read", data=b"abc")
    assert (answer.status_code, await answer.get_data()) == (200, b"3")


async def test_a_body_can_be_awaited_again() -> None:
    body = BoundedBody(None, None)
    body.set_result(b"abc")
    assert [await body, await body] == [b"abc", b"abc"]
    body.clear()
    assert await body == b""


async def test_iteration_ends_a_body_that_ended_while_it_waited() -> None:
    body, seen = BoundedBody(None, None), []

    async def read() -> None:
        seen.extend([data async for data in body])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for data in (b"a", b"bc"):
            await wait_all_tasks_blocked()
            body.append(data)
        await wait_all_tasks_blocked()
        body.set_complete()
    assert seen == [b"a", b"bc"]


async def test_the_limit_counts_what_has_been_read_already() -> None:
    body = BoundedBody(None, 3)
    body.append(b"ab")
    assert await anext(body) == b"ab"
    body.append(b"cd")
    with pytest.raises(RequestEntityTooLarge):
        await anext(body)


async def test_the_first_error_of_a_body_stands() -> None:
    body = BoundedBody(None, 3)
    body.append(b"abcd")
    body.fail(RequestTimeout())
    with pytest.raises(RequestEntityTooLarge):
        await body
