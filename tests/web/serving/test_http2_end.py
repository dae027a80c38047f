"""The end of an HTTP/2 connection, when it has been idle long enough and when the server stops, is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from h2.errors import ErrorCodes
from trio.testing import wait_all_tasks_blocked

from tests.support.http2_client import http2_to
from tests.support.serving import add_views, descriptors, serving, tasks, until
from tests.support.tls import make_trust
from trio_admission_web.serving.app import ServingApp

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.http2_client import Connection


def serving_app() -> ServingApp:
    app = ServingApp("app")
    add_views(app)
    return app


async def told(client: Connection) -> tuple[int, int]:
    """Return the last stream and the code that the server has told at the end."""
    await client.wait(lambda: client.closed)
    assert client.terminated is not None
    assert client.terminated.error_code is not None
    return client.terminated.last_stream_id or 0, client.terminated.error_code


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_an_idle_connection_is_closed(count: int) -> None:
    async with serving(serving_app(), keep_alive_timeout=0.2) as server:
        before = descriptors(), tasks()
        async with http2_to(server.url) as client:
            for _ in range(count):
                assert (await client.ask("GET", "/")).complete
            assert await told(client) == (max(0, 2 * count - 1), ErrorCodes.NO_ERROR)
        await until(lambda: (descriptors(), tasks()) == before)


async def test_a_connection_is_not_idle_while_one_of_its_requests_is_there() -> None:
    async with serving(serving_app(), keep_alive_timeout=0.2) as server, http2_to(server.url) as client:
        stream = client.new()
        await stream.request("GET", "/silent")
        for _ in range(4):
            assert (await client.ask("GET", "/")).complete
            await trio.sleep(0.1)
        assert client.terminated is None
        await stream.cancel()
        assert (await told(client))[0] == 9


async def test_half_a_header_block_does_not_keep_a_connection() -> None:
    async with serving(serving_app(), keep_alive_timeout=0.2) as server, http2_to(server.url) as client:
        await client.send(b"\x00\x00\x10\x01\x04\x00\x00\x00\x01half")
        await told(client)


async def test_an_idle_connection_does_not_hold_up_the_shutdown() -> None:
    settings = {"keep_alive_timeout": 60, "graceful_timeout": 60}
    async with serving(serving_app(), **settings) as server, http2_to(server.url) as client:
        assert (await client.ask("GET", "/")).complete
        started = trio.current_time()
        server.stop.set()
        assert await told(client) == (1, ErrorCodes.NO_ERROR)
        assert trio.current_time() - started < 5


async def test_a_server_that_stops_lets_requests_finish_and_says_that_it_serves_no_others() -> None:
    async with serving(serving_app(), graceful_timeout=60) as server, http2_to(server.url) as client:
        reading, silent, late = client.new(), client.new(), client.new()
        await reading.request("POST", "/read", b"ab", end=False)
        await silent.request("GET", "/events")
        await silent.read_events(await silent.read_head(), 1)
        await wait_all_tasks_blocked(0.02)
        server.stop.set()
        await wait_all_tasks_blocked(0.02)
        await late.request("GET", "/")
        with pytest.raises(EOFError):
            await late.read_head()
        assert late.reset_by == ErrorCodes.REFUSED_STREAM  # so that it may be sent elsewhere
        await reading.send(b"c", end=True)
        answer = await reading.read_answer()
        assert (answer.body, answer.complete, answer.header("connection")) == (b"3", True, None)
        assert not silent.ended
        assert client.terminated is None  # httpx2 would give up what still runs
        await silent.cancel()
        assert await told(client) == (silent.number, ErrorCodes.NO_ERROR)


async def test_what_a_server_cuts_when_it_stops_does_not_look_like_an_end() -> None:
    async with serving(serving_app(), graceful_timeout=0.1) as server, http2_to(server.url) as client:
        stream = client.new()
        await stream.request("GET", "/events")
        await stream.read_events(await stream.read_head(), 1)
        server.stop.set()
        assert not (await stream.read_answer()).complete


async def test_who_sends_when_the_connection_ends_still_hears_of_it_in_tls(tmp_path: Path) -> None:
    chain, key, trusting = make_trust(tmp_path)
    trusting.set_alpn_protocols(["h2"])
    async with (
        serving(serving_app(), certfile=chain, keyfile=key) as server,
        http2_to(server.url, tls=trusting) as client,
    ):
        assert (await client.ask("GET", "/")).complete
        server.stop.set()
        await client.wait(lambda: client.terminated)
        await client.send(bytes(100_000))  # was on its way
        assert await told(client) == (1, ErrorCodes.NO_ERROR)
        assert not client.broken  # a reset could have destroyed what was told
