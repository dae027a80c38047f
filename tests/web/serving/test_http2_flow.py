"""HTTP/2: no client can make the server keep much for it, or hold up the others of its connection."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from operator import contains
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response
from trio.testing import wait_all_tasks_blocked
from werkzeug.exceptions import HTTPException

from tests.support.http2_client import WAYS, http2_to
from tests.support.serving import LARGE, add_views, descriptors, resident, serving, tasks, until
from trio_admission_web.serving import transport
from trio_admission_web.serving.app import ServingApp
from trio_admission_web.serving.hardening import install
from trio_admission_web.serving.http2_connection import MAX_STREAMS, WINDOW
from trio_admission_web.serving.http2_stream import Inbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from quart.typing import ResponseReturnValue

    from tests.support.http2_client import Connection, Stream

MIB = 1024 * 1024


@pytest.fixture
def write_timeout(monkeypatch: pytest.MonkeyPatch) -> float:
    seconds = 0.4
    monkeypatch.setattr(transport, "WRITE_TIMEOUT", seconds)
    return seconds


class Counting:
    """An application with a view that counts how much of an endless answer has been taken from it."""

    def __init__(self, **config: Any) -> None:
        self.app = ServingApp("app")
        self.app.config.update(config)
        add_views(self.app)
        self.taken = 0
        self.app.add_url_rule("/counted", view_func=self.view)

        @self.app.errorhandler(HTTPException)
        async def describe(error: HTTPException) -> ResponseReturnValue:
            return error.description or "", error.code or 500

    async def view(self) -> Response:
        async def body() -> AsyncIterator[bytes]:
            while True:
                self.taken += 10_000
                yield bytes(10_000)

        return Response(body())


# ---- answers


@pytest.mark.parametrize("window", [0, 1, 100_000])
async def test_a_client_that_grants_nothing_is_waited_for_with_one_piece_in_hand(window: int) -> None:
    counting = Counting()
    async with serving(counting.app) as server, http2_to(server.url, window=window) as client:
        stream = client.new()
        await stream.request("GET", "/counted")
        granted = min(window, 65_535)  # all that the connection has
        await client.wait(lambda: stream.answer is not None and len(stream.answer.body) == granted)
        await wait_all_tasks_blocked(0.05)
        assert granted <= counting.taken <= granted + 20_000
        assert stream.reset_by is None


async def test_a_client_that_grants_everything_and_does_not_read_is_waited_for_with_little_in_hand() -> None:
    counting = Counting()
    async with serving(counting.app) as server, http2_to(server.url) as client:
        client.reading.cancel()
        client.h2.increment_flow_control_window(2**30)
        stream = client.new()
        await stream.request("GET", "/counted")
        client.h2.increment_flow_control_window(2**30, stream.number)
        await client.flush()
        with trio.fail_after(20):
            await until(lambda: counting.taken)
            await wait_all_tasks_blocked(0.05)
        assert counting.taken < 20 * MIB  # most of it in the kernel's buffers


async def test_room_may_come_with_other_settings() -> None:
    async with serving(Counting().app) as server, http2_to(server.url, window=0) as client:
        stream = client.new()
        await stream.request("GET", "/")
        await stream.read_head()
        await wait_all_tasks_blocked(0.01)
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        await client.flush()
        assert (await stream.read_answer()).body == b"here"


async def test_a_client_that_grants_nothing_for_too_long_loses_that_stream_alone(
    write_timeout: float,
) -> None:
    async with serving(Counting().app) as server, http2_to(server.url, window=1000) as client:
        other = client.new()
        await other.request("GET", "/events")
        await other.read_events(await other.read_head(), 1)
        await wait_all_tasks_blocked()
        before, stalled = tasks(), client.new()
        answer = await stalled.ask("GET", "/flood")
        assert (len(answer.body), stalled.reset_by) == (1000, ErrorCodes.CANCEL)
        await until(lambda: tasks() == before)
        assert (await client.ask("GET", "/")).body == b"here"
        assert not other.ended
        assert other.reset_by is None


async def test_a_client_that_grants_drop_by_drop_loses_its_stream(write_timeout: float) -> None:
    async with serving(Counting().app) as server, http2_to(server.url, window=1000) as client:
        stream = client.new()
        await stream.request("GET", "/flood")
        with trio.fail_after(20):
            while stream.reset_by is None:
                client.h2.increment_flow_control_window(1, stream.number)
                await client.flush()
                await trio.sleep(0.02)
        assert stream.reset_by == ErrorCodes.CANCEL


async def test_a_client_that_takes_slowly_but_steadily_gets_everything(write_timeout: float) -> None:
    async with serving(Counting().app) as server, http2_to(server.url, window=0) as client:
        client.h2.increment_flow_control_window(LARGE)
        stream = client.new()
        await stream.request("GET", "/large")
        answer, started = await stream.read_head(), trio.current_time()
        while not stream.ended:
            client.h2.increment_flow_control_window(64 * 1024, stream.number)
            await client.flush()
            await trio.sleep(0.004)
        assert (len(answer.body), answer.complete) == (LARGE, True)
        assert trio.current_time() - started > 2 * write_timeout


@pytest.mark.parametrize("path", ["/flood", "/large"])
async def test_two_that_take_all_they_get_get_about_the_same(path: str) -> None:
    async with serving(Counting().app) as server, http2_to(server.url) as client:
        streams = [client.new() for _ in range(2)]
        for stream in streams:
            await stream.request("GET", path)

        def sizes() -> list[int]:
            return [len(each.answer.chunks) if each.answer else 0 for each in streams]

        await client.wait(lambda: max(sizes()) > 500)
        assert (await client.ask("GET", "/")).body == b"here"  # and so does a third
        assert min(sizes()) > max(sizes()) / 4


@pytest.mark.parametrize("window", [None, 10])
@pytest.mark.parametrize("way", WAYS[1:])
async def test_a_client_that_leaves_without_reading_is_let_go_at_once(way: str, window: int | None) -> None:
    async with serving(Counting().app) as server:
        before = tasks()
        async with http2_to(server.url, window=window) as client:
            client.reading.cancel()
            await wait_all_tasks_blocked()
            stream = client.new()
            await stream.request("GET", "/flood")
            await until(lambda: tasks() > before)
            await wait_all_tasks_blocked(0.05)
            await stream.leave(way)
            await until(lambda: tasks() == before)


async def test_a_client_that_reads_nothing_at_all_loses_its_connection(write_timeout: float) -> None:
    async with serving(Counting().app) as server:
        before = tasks()
        async with http2_to(server.url) as client:
            client.h2.increment_flow_control_window(2**30)
            client.reading.cancel()
            await wait_all_tasks_blocked()
            stream = client.new()
            await stream.request("GET", "/flood")
            client.h2.increment_flow_control_window(2**30, stream.number)
            await client.flush()
            open_here = descriptors()
            await until(lambda: tasks() > before + 2)
            await until(lambda: (descriptors(), tasks()) == (open_here - 1, before))


async def test_a_client_that_grants_nothing_does_not_hold_up_the_shutdown() -> None:
    async with serving(Counting().app, graceful_timeout=0.1) as server:
        before = tasks()
        async with http2_to(server.url, window=0) as client:
            stream = client.new()
            await stream.request("GET", "/flood")
            await stream.read_head()
            server.stop.set()
            await client.wait(lambda: client.closed)
            await until(lambda: tasks() < before)


# ---- bodies


@asynccontextmanager
async def serving_plainly(app: Callable[[Any, Any, Any], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve an application that is nothing but ASGI."""

    async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await app(scope, receive, send)

    install()
    config, stop = Config(), trio.Event()
    config.bind, config.errorlog = ["127.0.0.1:0"], None
    async with trio.open_nursery() as nursery:
        run = partial(serve, cast("Any", without_lifespan), config, shutdown_trigger=stop.wait)
        (url,) = await nursery.start(run)
        yield url
        stop.set()


async def test_a_client_sends_no_more_than_its_window_until_the_application_takes_it() -> None:
    go_on = trio.Event()

    async def count(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await go_on.wait()
        length, more = 0, True
        while more:
            message = await receive()
            length += len(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % length})

    async with (
        serving_plainly(count) as url,
        http2_to(url) as client,
        trio.open_nursery() as uploads,
    ):
        await client.wait(lambda: client.h2.remote_settings.initial_window_size == WINDOW)
        slow, fast = client.new(), client.new()
        await slow.request("POST", "/slow", end=False)
        uploads.start_soon(partial(slow.send, bytes(3 * MIB), end=True))
        await wait_all_tasks_blocked(0.05)
        assert client.h2.local_flow_control_window(slow.number) == 0
        await fast.request("POST", "/fast", bytes(3 * MIB))  # which has its own
        assert (await fast.read_answer()).body == b"%d" % (3 * MIB)
        go_on.set()
        assert (await slow.read_answer()).body == b"%d" % (3 * MIB)


async def test_bodies_that_no_application_has_taken_use_up_no_window_of_the_connection() -> None:
    go_on, go_on_receive = trio.open_memory_channel[None](0)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await go_on_receive.receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async with serving_plainly(answer) as url, http2_to(url) as client:
        await client.wait(lambda: client.h2.remote_settings.initial_window_size == WINDOW)
        for _ in range(MAX_STREAMS + 10):
            stream = client.new()
            await stream.request("POST", "/", bytes(WINDOW), end=False)
            await wait_all_tasks_blocked()  # all has come
            await go_on.send(None)
            assert (await stream.read_answer()).complete
            client.h2.end_stream(stream.number)


async def test_an_application_that_listens_to_nobody_is_not_held_up_by_a_client_that_has_gone() -> None:
    done = trio.Event()

    async def talk(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
        done.set()

    async with serving_plainly(talk) as url, http2_to(url, window=1000) as client:
        stream = client.new()
        await stream.request("GET", "/")
        await stream.read_head()
        await stream.cancel()
        with trio.fail_after(5):
            await done.wait()


async def test_a_body_that_nobody_reads_takes_no_more_memory_than_the_limit() -> None:
    async with serving(Counting(MAX_CONTENT_LENGTH=MIB).app) as server, http2_to(server.url) as client:
        stream = client.new()
        await stream.request("POST", "/silent", end=False)
        await stream.send(bytes(MIB))
        before = resident()
        for _ in range(40):
            await stream.send(bytes(MIB))
        await wait_all_tasks_blocked(0.01)
        assert resident() - before < 10 * MIB


async def upload(client: Connection, path: str, **headers: str) -> tuple[Stream, int]:
    """Send a body until the server does not want it any more, and return how much that was."""
    stream, sent = client.new(), 0
    await stream.request("POST", path, None, list(headers.items()), end=False)
    try:
        while sent < 1000 * MIB:
            await stream.send(bytes(64 * 1024))
            sent += 64 * 1024
    except trio.BrokenResourceError:
        pass
    return stream, sent


@pytest.mark.parametrize("path", ["/read", "/iterate"])
@pytest.mark.parametrize("headers", [{}, {"content-length": str(1000 * MIB)}], ids=["", "told"])
async def test_a_body_that_is_too_long_is_refused_as_in_http_1(
    path: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LINGER", 0.1)
    async with serving(Counting(MAX_CONTENT_LENGTH=MIB).app) as server, http2_to(server.url) as client:
        for _ in range(2):
            stream, sent = await upload(client, path, **headers)
            assert stream.answer is not None
            assert (stream.answer.status, stream.answer.complete) == (413, True)
            assert stream.answer.body == b"The request body is larger than 1048576 bytes."
            assert sent < 3 * MIB
            await client.wait(partial(contains, client.resets, (stream.number, ErrorCodes.NO_ERROR)))
        assert (await client.ask("GET", "/")).body == b"here"


async def test_who_goes_on_sending_behind_the_answer_is_heard_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LINGER", 60)
    async with serving(Counting(MAX_CONTENT_LENGTH=MIB).app) as server, http2_to(server.url) as client:
        before, stream = resident(), client.new()
        await stream.request("POST", "/read", None, [("content-length", str(40 * MIB))], end=False)
        assert (await stream.read_answer()).status == 413
        for _ in range(40):
            await stream.send(bytes(MIB), regardless=True)
        client.h2.end_stream(stream.number)
        await client.flush()
        assert (await client.ask("GET", "/")).body == b"here"
        assert client.resets == []
        assert resident() - before < 10 * MIB


async def test_a_body_that_does_not_come_in_time_is_refused_as_in_http_1() -> None:
    async with serving(Counting(BODY_TIMEOUT=0.2).app) as server, http2_to(server.url) as client:
        stream = client.new()
        await stream.request("POST", "/read", b"abc", end=False)
        answer = await stream.read_answer()
        assert (answer.status, answer.body) == (408, b"The request body did not arrive within 0.2 s.")


async def test_who_has_gone_is_told_before_what_is_left_of_its_body() -> None:
    inbox = Inbox(lambda _: None)
    await inbox.put({"type": "http.request", "body": b"abc", "more_body": True})
    await inbox.put({"type": "http.disconnect"})
    assert await inbox.receive() == {"type": "http.disconnect"}


async def test_padding_uses_up_no_window() -> None:
    async with serving(Counting().app) as server, http2_to(server.url) as client:
        stream = client.new()
        await stream.request("POST", "/read", end=False)
        for _ in range(3000):  # together far more than the window of a stream
            await client.wait(lambda: client.h2.local_flow_control_window(stream.number) > 256)
            client.h2.send_data(stream.number, b"x", pad_length=255)
            await client.flush()
        client.h2.end_stream(stream.number)
        await client.flush()
        assert (await stream.read_answer()).body == b"3000"
