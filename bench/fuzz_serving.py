"""Throw malformed HTTP at a hardened server and report what it did to it.

    python -m bench.fuzz_serving [--requests 30000] [--seed 1] [--http2] [--stock | --gateway]

Each request is a seed message, damaged at random, sent over a loopback socket in one or two parts, and
dropped at a random moment. Printed are: exceptions that left the server (it would have exited), exceptions
that one connection kept to itself or that the application saw, and the file descriptors and tasks that are
left when all clients have gone. The exit status is 1 if the server died or leaked.

With `--http2` each message is many requests and other frames (`http2_messages`). With `--stock` the server is
Hypercorn as it comes, for comparison.

With `--gateway` the application is the gateway in front of a fake llama-server on loopback that has few
slots, and most seeds are requests for its own routes, whose bodies are damaged too. Then nothing may be held,
waiting, parked or in flight upstream either, and a fault of the gateway's own is a failure.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import socket
import struct
import sys
import time
import traceback
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio
from trio.testing import wait_all_tasks_blocked

from bench.http2_messages import damaged_http2
from tests.support.gateway import chat, settings_for
from tests.support.generation import ASKS, MESSAGES
from tests.support.tools import PLACES
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script, ToolCall
from trio_admission_web.app import App, create_app
from trio_admission_web.serving.app import ServingApp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from trio_admission.testing.fake_llama_server import Request

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

ASKS_TOOL = chat(
    stream=True, admission={"tools": ["find"]}
)  # the fake server calls it, and a person has to agree
GATEWAY_REQUESTS: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    *(("POST", ask.path, ask.body | {"stream": stream}) for ask in ASKS for stream in (True, False)),
    *(("POST", "/v1/chat/completions", ASKS_TOOL) for _ in range(5)),
    ("POST", "/v1/embeddings", {"input": ["a", "b"]}),
    ("POST", "/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("POST", "/tokenize", {"content": "a"}),
    ("POST", "/admission/approvals/x", {"decision": "allow"}),
    ("GET", "/admission/approvals", None),
    ("DELETE", "/admission/requests/x", None),
    ("DELETE", "/admission/requests/x", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/fake-model", None),
    ("GET", "/admission", None),
    ("GET", "/metrics", None),
    ("OPTIONS", "/v1/chat/completions", None),
)
GATEWAY_HEADERS = (
    "",
    "",
    "x-request-id: x\r\n",
    "x-request-id: x\r\n",
    "connection: close\r\n",
    "expect: 100-continue\r\n",
    "admission-resume: x\r\n",
    "authorization: Bearer x\r\n",
)
JSON_INSERTS = (b"null", b"[", b"{}", b'"', b"\\ud800", b"1e999", b"-1", b",", b'"stream": "x", ')


def damaged(rng: random.Random) -> bytes:
    """Return a seed, sometimes with another behind it, with up to four mutations."""
    data = rng.choice(SEEDS)
    if rng.random() < 0.4:
        data += rng.choice(SEEDS)
    return damage(rng, data, INSERTS)


def damaged_for_gateway(rng: random.Random) -> bytes:
    """Return a request for the gateway, sometimes with another behind it, half of the time with mutations."""
    data = gateway_request(rng)
    if rng.random() < 0.4:
        data += gateway_request(rng)
    return damage(rng, data, INSERTS) if rng.random() < 0.5 else data  # else few would get behind the framing


def gateway_request(rng: random.Random) -> bytes:
    """Return a seed, mostly a well-framed request for one of the gateway's routes."""
    if rng.random() < 0.2:
        return rng.choice(SEEDS)
    method, path, body = rng.choice(GATEWAY_REQUESTS)
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{rng.choice(GATEWAY_HEADERS)}".encode()
    if body is None:
        return head + b"\r\n"
    data = json.dumps(body).encode()
    if rng.random() < 0.3:
        data = damage(rng, data, JSON_INSERTS)
    if rng.random() < 0.3:
        return head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    return head + b"content-length: %d\r\n\r\n%b" % (len(data), data)


def damage(rng: random.Random, sound: bytes, inserts: Sequence[bytes]) -> bytes:
    """Return the bytes with up to four mutations."""
    data = bytearray(sound)
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
                data[at:at] = rng.choice(inserts)
    return bytes(data)


@dataclass(frozen=True)
class Target:
    """What is attacked. `busy` says what of it is not at rest; clients stay that many seconds at most."""

    app: QuartTrio
    stay: float = 0.03
    busy: Callable[[], list[str]] = list


@asynccontextmanager
async def toy(*, stock: bool) -> AsyncIterator[Target]:
    """Make an application that has a view for each way to treat a client."""
    app: QuartTrio = QuartTrio("fuzz") if stock else ServingApp("fuzz")
    app.logger.disabled = True
    add_views(app)
    yield Target(app)


@asynccontextmanager
async def gateway() -> AsyncIterator[Target]:
    """Make the gateway, in front of a fake server that runs for the block."""

    async def reply(request: Request) -> Script | None:
        await trio.lowlevel.checkpoint()
        calls = request.path == "/v1/chat/completions" and b'"find"' in request.body
        if not calls or b'"tool_calls"' in request.body:
            return None
        return Script(tokens=0, tool_calls=[ToolCall("find", ['{"what":', '"x"}'])])

    llama = FakeLlamaServer(total_slots=4, words=4, interval=0.001, embeddings=True, infill=True, reply=reply)
    admission = AdmissionConfig(keepalive_interval=0.01, max_waiting=12)
    async with llama, llama.listening() as url:
        app = create_app(
            settings_for(url, admission=admission, grace=0.005, tools=PLACES, approval_ttl=0.02, max_parked=4)
        )
        yield Target(app, 0.2, partial(busy_parts, app, llama))
        print(f"{llama.total} requests came to the server behind, at most {llama.max_in_flight} at once")
        print(f"outcomes: {json.dumps(outcomes(app))}")


def busy_parts(app: App, llama: FakeLlamaServer) -> list[str]:
    """Return what of the gateway and of the server behind it is not at rest, or not known yet."""
    now = app.gateway.backend.pool.statistics()
    counts = {
        "held": now.held,
        "waiting": now.waiting,
        "parked": now.parked,
        "returning": now.returning,
        "passages": len(app.gateway.passages),
        "in flight upstream": llama.in_flight,
        "connections upstream": llama.open_connections,
        "slots unknown": llama.total_slots - now.slots,
    }
    return [f"{count} {name}" for name, count in counts.items() if count]


def outcomes(app: App) -> dict[str, int]:
    """Return how many requests have ended in each way."""
    ends: Counter[str] = Counter()
    for line in app.gateway.metrics.exposition().decode().splitlines():
        if line.startswith("trio_admission_requests_total{"):
            ends[line.partition('outcome="')[2].partition('"')[0]] += int(float(line.rsplit(" ", 1)[1]))
    return dict(ends)


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


async def attack(port: int, rng: random.Random, make: Callable[[random.Random], bytes], stay: float) -> None:
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
            with trio.move_on_after(rng.random() * stay):
                await stream.receive_some()
                if rng.random() < 0.3:
                    await stream.send_all(make(rng))
                while await stream.receive_some():
                    pass
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


async def settle(
    before: tuple[int, set[trio.lowlevel.Task]], busy: Callable[[], list[str]]
) -> tuple[int, list[str], list[str]]:
    """Wait until all is as `before`, for at most `PATIENCE`, and return what is left over."""
    started = trio.current_time()
    while True:
        descriptors, tasks = leftovers()
        left = descriptors - before[0], [where(task) for task in tasks - before[1]], busy()
        seconds = trio.current_time() - started
        if left == (0, [], []) or seconds > PATIENCE:
            print(f"waited {seconds:.1f} s for what was left to end")
            return left
        await trio.sleep(0.2)


async def fuzz(
    target: Target, requests: int, seed: int, make: Callable[[random.Random], bytes], failures: Failures
) -> bool:
    """Serve the target, attack it and say whether all is as before."""
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
            await attack(port, rng, make, target.stay)

    try:
        async with trio.open_nursery() as nursery:
            binds = await nursery.start(partial(serve, target.app, config, shutdown_trigger=stop.wait))
            port = int(binds[0].rsplit(":", 1)[1])
            await wait_all_tasks_blocked()
            while target.busy():  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.01)
            before = leftovers()
            async with trio.open_nursery() as clients:
                for _ in range(CLIENTS):
                    clients.start_soon(client, port)
            left = await settle(before, target.busy)
            stop.set()
    except Exception as error:  # noqa: BLE001 - what left the server is the finding
        print(f"the server DIED after {sent} requests: {describe(error)}")
        return False
    descriptors, tasks, busy = left
    print(f"{sent} requests; leaked descriptors {descriptors}, leaked tasks {len(tasks)}")
    for each in (*tasks, *busy):
        print(f"       {each}")
    return not descriptors and not tasks and not busy


async def run(options: argparse.Namespace, failures: Failures) -> bool:
    """Do what the command line says."""
    make: Callable[[random.Random], bytes] = damaged_for_gateway if options.gateway else damaged
    if options.http2:
        paths = tuple(path for _, path, _ in GATEWAY_REQUESTS) if options.gateway else PATHS
        make = partial(damaged_http2, paths=paths)
    async with gateway() if options.gateway else toy(stock=options.stock) as target:
        well = await fuzz(target, options.requests, options.seed, make, failures)
    return well and not (options.gateway and failures.seen)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--http2", action="store_true")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--stock", action="store_true")
    which.add_argument("--gateway", action="store_true")
    options = parser.parse_args()
    failures = Failures()
    logging.getLogger().addHandler(failures)
    started = time.perf_counter()
    well = trio.run(run, options, failures)
    for what, count in failures.seen.most_common():
        print(f"{count:6} {what}")
    print(f"{time.perf_counter() - started:.1f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
