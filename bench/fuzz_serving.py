"""Throw malformed HTTP at a hardened server and report what it did to it.

    python -m bench.fuzz_serving [--requests 30000] [--seed 1] [--http2] [--stock]

Each request is a seed message, damaged at random, sent over a loopback socket in one or two parts, and
dropped at a random moment. Printed are: exceptions that left the server (it would have exited), exceptions
that one connection kept to itself or that the application saw, and the file descriptors and tasks that are
left when all clients have gone. The exit status is 1 if the server died or leaked.

With `--http2` each message is many requests and other frames (`http2_messages`). With `--stock` the server is
Hypercorn as it comes, for comparison.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import socket
import struct
import sys
import time
import traceback
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio
from trio.testing import wait_all_tasks_blocked

from bench.http2_messages import damaged_http2
from trio_admission_web.serving.app import ServingApp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

CLIENTS = 20
PATIENCE = 40.0  # seconds; longer than any deadline of the server


HTTP2_PREFACE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # SETTINGS
    b"\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x84\x86\x41\x01x"  # HEADERS: GET http://x/
)
H2C_UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    b"connection: Upgrade, HTTP2-Settings\r\n\r\n"
)
WEBSOCKET_UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    b"\x81\x85\x01\x02\x03\x04abcde"
)
MANY_CHUNKS = b"5\r\nhello\r\n" * 30 + b"0\r\n\r\n"
SEEDS = (
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello",
    b"POST /slow HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /unread HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + MANY_CHUNKS,
    b"POST /broken HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + MANY_CHUNKS,
    b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    b"GET /slow HTTP/1.0\r\n\r\n",
    b"HEAD /slow HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://x/ HTTP/1.1\r\nhost: x\r\n\r\n",
    HTTP2_PREFACE,
    H2C_UPGRADE,
    WEBSOCKET_UPGRADE,
)
PATHS = ("/", "/slow", "/unread", "/broken", "/nowhere")
INSERTS = (
    b"\r\n",
    b"\n",
    b"\0",
    b"\xff",
    b": ",
    b"content-length: 9\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
)


def damaged(rng: random.Random) -> bytes:
    """Return a seed, sometimes with another behind it, with up to four mutations."""
    data = bytearray(rng.choice(SEEDS))
    if rng.random() < 0.4:
        data += rng.choice(SEEDS)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                del data[at : at + rng.randrange(1, 8)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 6))
            case 3:
                del data[at:]
            case _:
                data[at:at] = rng.choice(INSERTS)
    return bytes(data)


def add_views(app: QuartTrio) -> None:
    """Give `app` a view for each way to treat a body and an answer."""

    async def whole() -> str:
        return f"{len(await request.get_data())}"

    async def slow() -> Response:
        async def events() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield b"data: x\n\n"
                await trio.sleep(0.001)

        return Response(events(), mimetype="text/event-stream")

    async def unread() -> str:
        await trio.sleep(0.005)
        return "done"

    async def broken() -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"data: x\n\n"
            raise RuntimeError("broken on purpose")

        return Response(events(), mimetype="text/event-stream")

    for view in (whole, slow, unread, broken):
        path = "/" if view is whole else f"/{view.__name__}"
        app.add_url_rule(path, view.__name__, view, methods=["GET", "POST", "PUT", "CONNECT"])


async def attack(port: int, rng: random.Random, make: Callable[[random.Random], bytes]) -> None:
    """Be one client."""
    message = make(rng)
    cut = rng.randrange(len(message) + 1) if rng.random() < 0.5 else len(message)
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    except OSError:
        return
    try:
        async with stream:
            for part in (message[:cut], message[cut:]):
                if part:
                    await stream.send_all(part)
                    await trio.sleep(rng.random() * 0.004)
            if rng.random() < 0.4:
                await stream.send_eof()
            with trio.move_on_after(rng.random() * 0.03):
                await stream.receive_some()
                if rng.random() < 0.3:
                    await stream.send_all(make(rng))
                await stream.receive_some()
            if rng.random() < 0.3:  # close with a reset
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


class Failures(logging.Handler):
    """Counts what Hypercorn logs as an exception, by message and place."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and "on purpose" not in "".join(traceback.format_exception(error)):
            self.seen[f"{record.getMessage()}: {describe(error)}"] += 1


def describe(error: BaseException) -> str:
    """Return the type, text and innermost places of the first leaf of `error`."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " > ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}({str(error)[:80]!r}) at {places}"


def descendants(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    """Yield `task` and all tasks below it."""
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from descendants(child)


def where(task: trio.lowlevel.Task) -> str:
    """Return the name of `task` and the innermost places, outside of Trio, where it waits."""
    frames = [frame for frame, _ in task.iter_await_frames() if "/trio/_" not in frame.f_code.co_filename]
    places = [f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" for frame in frames[-4:]]
    return f"{task.name.rsplit('.')[-1]} at {' > '.join(places)}"


def leftovers() -> tuple[int, set[trio.lowlevel.Task]]:
    """Return the number of open descriptors, and the living tasks."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return len(os.listdir("/proc/self/fd")), set(descendants(root))


async def settle(before: tuple[int, set[trio.lowlevel.Task]]) -> tuple[int, list[str]]:
    """Wait until all is as `before`, for at most `PATIENCE`, and return what is left over."""
    started = trio.current_time()
    while True:
        descriptors, tasks = leftovers()
        left = descriptors - before[0], [where(task) for task in tasks - before[1]]
        seconds = trio.current_time() - started
        if left == (0, []) or seconds > PATIENCE:
            print(f"waited {seconds:.1f} s for what was left to end")
            return left
        await trio.sleep(0.2)


async def fuzz(
    app: QuartTrio, requests: int, seed: int, make: Callable[[random.Random], bytes], failures: Failures
) -> bool:
    """Serve `app`, attack it and say whether all is as before."""
    rng = random.Random(seed)
    logger = logging.getLogger("fuzz")
    logger.addHandler(failures)
    logger.propagate = False
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = logger
    config.keep_alive_timeout = 1
    config.graceful_timeout = 1
    config.backlog = 1000
    stop = trio.Event()
    sent = 0

    async def client(port: int) -> None:
        nonlocal sent
        while sent < requests:
            sent += 1
            await attack(port, rng, make)

    try:
        async with trio.open_nursery() as nursery:
            binds = await nursery.start(partial(serve, app, config, shutdown_trigger=stop.wait))
            port = int(binds[0].rsplit(":", 1)[1])
            await wait_all_tasks_blocked()
            before = leftovers()
            async with trio.open_nursery() as clients:
                for _ in range(CLIENTS):
                    clients.start_soon(client, port)
            left = await settle(before)
            stop.set()
    except Exception as error:  # noqa: BLE001 - what left the server is the finding
        print(f"the server DIED after {sent} requests: {describe(error)}")
        return False
    descriptors, tasks = left
    print(f"{sent} requests; leaked descriptors {descriptors}, leaked tasks {len(tasks)}")
    for place in tasks:
        print(f"       {place}")
    return not descriptors and not tasks


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--http2", action="store_true")
    parser.add_argument("--stock", action="store_true")
    options = parser.parse_args()
    app: QuartTrio = QuartTrio("fuzz") if options.stock else ServingApp("fuzz")
    app.logger.disabled = True
    add_views(app)
    failures = Failures()
    started = time.perf_counter()
    make = partial(damaged_http2, paths=PATHS) if options.http2 else damaged
    well = trio.run(fuzz, app, options.requests, options.seed, make, failures)
    for what, count in failures.seen.most_common():
        print(f"{count:6} {what}")
    print(f"{time.perf_counter() - started:.1f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
