"""A server on a loopback socket in this process, as Hypercorn makes it or as we do."""

from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from trio.testing import wait_all_tasks_blocked

from tests.support.raw_client import RawClient
from trio_admission_web.launcher import KEEP_ALIVE
from trio_admission_web.listening import BACKLOG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from quart_trio import QuartTrio


LARGE = 16 * 1024 * 1024


def get(path: str = "/", *headers: str) -> bytes:
    """Return the bytes of a GET request."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "host: x", *headers, "\r\n")).encode()


def post(path: str, *headers: str) -> bytes:
    """Return the head of a POST request."""
    return get(path, *headers).replace(b"GET", b"POST", 1)


async def index() -> str:
    """Answer at once."""
    return "here"


async def silent() -> str:
    """Never answer, and never read the body."""
    await trio.sleep_forever()
    raise AssertionError


async def events() -> Response:
    """Send one event and no more."""

    async def body() -> AsyncIterator[bytes]:
        yield b"data: x\n\n"
        await trio.sleep_forever()

    return Response(body(), mimetype="text/event-stream")


async def flood() -> Response:
    """Send for ever, as fast as it goes, and do nothing else."""

    async def body() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1024)

    return Response(body())


async def large() -> bytes:
    """Send a large body in one piece."""
    return bytes(LARGE)


async def read() -> str:
    """Read the body whole, and answer with its length."""
    return f"{len(await request.get_data())}"


async def iterate() -> str:
    """Read the body as it comes, and answer with its length."""
    length = 0
    async for data in request.body:
        length += len(data)
    return f"{length}"


def add_views(app: QuartTrio) -> None:
    """Give `app` a view for each way to treat a client, each at its name."""
    app.add_url_rule("/", view_func=index)
    for view in (silent, events, flood, large, read, iterate):
        app.add_url_rule(f"/{view.__name__}", view_func=view, methods=["GET", "POST"])


@dataclass
class Server:
    """A running server. `stop` is what a signal would set."""

    url: str
    stop: trio.Event

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.url.rpartition("/")[2].rsplit(":", 1)
        return host, int(port)

    @asynccontextmanager
    async def client(self, sends: bytes = b"") -> AsyncIterator[RawClient]:
        """Connect, send, and close at the end of the block."""
        async with RawClient.connected(self.url) as client:
            if sends:
                await client.send(sends)
            yield client

    async def status(self, sends: bytes) -> int:
        """Return the status of the answer to `sends`."""
        async with self.client(sends) as client:
            return (await client.read_head()).status


@asynccontextmanager
async def serving(app: QuartTrio, **settings: Any) -> AsyncIterator[Server]:
    """Serve `app` for the block; `settings` are Hypercorn's."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = logging.getLogger("hypercorn.error")
    config.graceful_timeout = 1
    config.backlog = BACKLOG
    config.keep_alive_timeout = KEEP_ALIVE
    for name, value in settings.items():
        setattr(config, name, value)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(partial(serve, app, config, shutdown_trigger=stop.wait))
        await wait_all_tasks_blocked()
        yield Server(urls[0], stop)
        stop.set()


def descriptors() -> int:
    """Return how many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def tasks() -> int:
    """Return how many tasks live in this run."""
    return trio.lowlevel.current_statistics().tasks_living


def resident() -> int:
    """Return the memory of this process, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    """Wait until `condition` holds: the kernel, unlike Trio, does not say when it has passed something on."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.005)
