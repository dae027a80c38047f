"""What the application class changes about Quart-Trio."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import trio
from hypercorn.utils import LifespanFailureError
from quart import Response
from quart_trio import QuartTrio

from tests.support.serving import get, serving, tasks
from trio_admission_web.serving.app import ServingApp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hypercorn.typing import ASGISendEvent, HTTPScope
    from trio.testing import MockClock

    from trio_admission_web.serving.testing import ServingTestConnection

SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/slow",
    "query_string": b"",
    "headers": [],
}


def add_slow_view(app: QuartTrio) -> None:
    """Add a view whose answer takes 200 seconds."""

    @app.get("/slow")
    async def slow() -> Response:
        async def body() -> AsyncIterator[bytes]:
            for _ in range(20):
                await trio.sleep(10)
                yield b"x"

        return Response(body())


@pytest.mark.parametrize(("app_class", "whole"), [(ServingApp, True), (QuartTrio, False)])
async def test_an_answer_may_take_as_long_as_it_takes(
    app_class: type[QuartTrio], whole: bool, autojump_clock: MockClock
) -> None:
    app = app_class("app")
    add_slow_view(app)
    messages = []

    async def note(message: ASGISendEvent) -> None:
        messages.append(message)

    await app(cast("HTTPScope", dict(SCOPE)), trio.sleep_forever, note)
    assert (messages[-1].get("more_body") is False) is whole


async def test_the_test_client_survives_its_own_disconnect(autojump_clock: MockClock) -> None:
    app = ServingApp("app")
    add_slow_view(app)
    with trio.fail_after(100):
        async with cast("ServingTestConnection", app.test_client().request("/slow")) as client:
            assert await client.receive() == b"x"
            await client.disconnect()
            await client.disconnect()
    assert trio.current_time() < 100


async def test_the_test_client_shows_the_error_of_a_test_that_has_disconnected() -> None:
    app = ServingApp("app")
    add_slow_view(app)
    with pytest.raises(ExceptionGroup) as failed, trio.fail_after(100):
        async with cast("ServingTestConnection", app.test_client().request("/slow")) as client:
            await client.disconnect()
            raise LookupError("in the test")
    assert failed.value.subgroup(LookupError)


async def test_a_test_that_is_cancelled_takes_its_request_along(autojump_clock: MockClock) -> None:
    app = ServingApp("app")
    add_slow_view(app)
    before = tasks()
    with trio.move_on_after(5) as scope:
        async with cast("ServingTestConnection", app.test_client().request("/slow")):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert tasks() == before


async def test_a_background_task_lives_until_shutdown() -> None:
    app, ended = ServingApp("app"), trio.Event()

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    @app.before_serving
    async def start() -> None:
        app.nursery.start_soon(work)

    async with serving(app) as server:
        assert await server.status(get()) == 404
        assert not ended.is_set()
    assert ended.is_set()


async def test_the_crash_of_a_background_task_ends_the_server() -> None:
    app = ServingApp("app")

    async def work() -> None:
        raise LookupError("crashed")

    @app.before_serving
    async def start() -> None:
        app.nursery.start_soon(work)

    with pytest.raises(ExceptionGroup) as died:
        async with serving(app):
            await trio.sleep_forever()
    assert died.value.subgroup(
        lambda error: isinstance(error, LifespanFailureError) and "LookupError('crashed')" in str(error)
    )


async def test_a_failing_start_ends_the_server_under_its_own_name() -> None:
    app = ServingApp("app")

    @app.before_serving
    async def start() -> None:
        raise LookupError("no model")

    with pytest.raises(ExceptionGroup) as died:
        async with serving(app):
            raise AssertionError
    assert died.value.subgroup(lambda error: str(error) == "Lifespan failure in startup. 'no model'")
