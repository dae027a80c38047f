"""What the gateway costs: beside a direct connection and beside a naive relay, in one run.

    python bench/gateway.py [--rounds 5] [--json FILE]

Four processes on loopback: this one, the client; a scripted upstream that costs next to nothing; the gateway
as ``trio-admission serve`` runs it; and the relay that one would write in twenty lines with Quart-Trio and
httpx2 on stock Hypercorn. Rounds are interleaved, so that a busy machine is busy for all of them. CPU time is
that of the process in question, all threads, from the kernel. Printed are the rows of the design's table with
the ratio to reach; the exit status is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import httpx2
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request
from quart_trio import QuartTrio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

CHAT = "/v1/chat/completions"
SLOTS = 4
EVENT = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
}
LAST = EVENT | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
WHOLE = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ONE, END = chunk(event(EVENT)), chunk(event(LAST)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"connection: close\r\n\r\n"
)


# ---- the upstream


async def answer_one(stream: trio.SocketStream) -> None:
    """Answer the requests of one connection; a body says how many events, and how fast."""
    rest = b""
    while True:
        while b"\r\n\r\n" not in rest:
            data = await stream.receive_some(65536)
            if not data:
                return
            rest += data
        head, rest = rest.split(b"\r\n\r\n", 1)
        first, *lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(rest) < length:
            rest += await stream.receive_some(65536)
        body, rest = json.loads(rest[:length] or b"{}"), rest[length:]
        if body.get("stream"):
            await stream.send_all(STREAM_HEAD)
            await send_events(stream, body.get("events", 1), body.get("interval", 0))
            return
        told: Any = WHOLE
        if first.startswith(b"get"):
            told = [] if b"/slots" in first else {"total_slots": SLOTS, "status": "ok"}
        data = json.dumps(told).encode()
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
            + data
        )


async def send_events(stream: trio.SocketStream, count: int, interval: float) -> None:
    if not interval:
        for _ in range(count // 100):
            await stream.send_all(ONE * 100)
        await stream.send_all(ONE * (count % 100) + END)
        return
    due = trio.current_time()
    for _ in range(count):
        due += interval
        await trio.sleep_until(due)
        await stream.send_all(ONE)
    await stream.send_all(END)


async def run_upstream(port: int) -> None:
    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError):
                await answer_one(stream)

    await trio.serve_tcp(handle, port, host="127.0.0.1")


# ---- the naive relay


async def run_naive(port: int, upstream: str) -> None:
    app = QuartTrio(__name__)
    client = httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None), trust_env=False)

    @app.post(CHAT)
    async def relay() -> Response:
        asked = client.build_request(
            "POST",
            upstream + CHAT,
            content=await request.get_data(),
            headers={"content-type": "application/json"},
        )
        answer = await client.send(asked, stream=True)

        async def copy() -> AsyncIterator[bytes]:
            try:
                async for data in answer.aiter_raw():
                    yield data
            finally:
                await answer.aclose()

        return Response(copy(), answer.status_code, content_type=answer.headers["content-type"])

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    await serve(app, config)


# ---- the client


class Connection:
    """One connection of the client; a new one after an answer that closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: trio.SocketStream | None = None

    async def ask(self, **body: Any) -> float:
        """Send a request, read the whole answer, and return the seconds until its body began."""
        if self._stream is None:
            self._stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = json.dumps({"messages": [{"role": "user", "content": "Hello"}], **body}).encode()
        start = time.perf_counter()
        await self._stream.send_all(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (CHAT.encode(), len(data), data)
        )
        if body.get("stream"):
            first = await self._read_stream(start)
            await self.close()
        else:
            first = await self._read_whole(start)
        return first

    async def _read_stream(self, start: float) -> float:
        assert self._stream is not None
        first, tail = 0.0, b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = await self._stream.receive_some(2**18)
            if not data:
                raise RuntimeError("the answer broke off")
            if not first and b"data:" in data:
                first = time.perf_counter() - start
            tail = (tail + data)[-16:]
        return first

    async def _read_whole(self, start: float) -> float:
        assert self._stream is not None
        parser, first = h11.Connection(h11.CLIENT), 0.0
        parser.send(h11.Request(method="POST", target=CHAT, headers=[("host", "x"), ("content-length", "0")]))
        parser.send(h11.EndOfMessage())
        while True:
            got = parser.next_event()
            if got is h11.NEED_DATA:
                parser.receive_data(await self._stream.receive_some(2**16))
            elif isinstance(got, h11.Data):
                first = first or time.perf_counter() - start
            elif isinstance(got, h11.Response):
                if got.status_code != 200:
                    raise RuntimeError(f"status {got.status_code}")
            elif isinstance(got, h11.EndOfMessage):
                return first

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


async def at_once(count: int, work: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(work)


# ---- what is measured


@dataclass
class Process:
    """A process and its port."""

    pid: int
    port: int

    def cpu(self) -> float:
        """Seconds of CPU that it has used, all threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def memory(self) -> int:
        """Bytes of resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_ready(port: int) -> bool:
    """Whether somebody answers there, and does not say that he is not ready, which the gateway alone does."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code != 503
    except httpx2.TransportError:
        return False


@contextmanager
def running(*command: str) -> Iterator[Process]:
    """Run a process that listens on the port that is put for PORT."""
    port = free_port()
    told = [part.replace("PORT", str(port)) for part in command]
    child = subprocess.Popen([sys.executable, *told], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not is_ready(port):
            if time.monotonic() > deadline or child.poll() is not None:
                raise RuntimeError(f"it does not come up: {' '.join(told)}")
            time.sleep(0.05)
        yield Process(child.pid, port)
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def gateway_to(upstream: Process, *options: str) -> tuple[str, ...]:
    url = f"http://127.0.0.1:{upstream.port}"
    return ("-m", "trio_admission_web", "serve", "--upstream", url, "--port", "PORT", *options)


def paced(process: Process, seconds: float) -> float:
    """CPU seconds for each event of 4 streams with 100 events a second."""
    events = round(seconds * 100)
    before = process.cpu()
    trio.run(at_once, SLOTS, lambda: Connection(process.port).ask(stream=True, events=events, interval=0.01))
    return (process.cpu() - before) / (SLOTS * events)


def burst(process: Process, events: int) -> float:
    """CPU seconds for each event of 4 streams as fast as they go."""
    before = process.cpu()
    trio.run(at_once, SLOTS, lambda: Connection(process.port).ask(stream=True, events=events))
    return (process.cpu() - before) / (SLOTS * events)


def short(process: Process, requests: int) -> float:
    """CPU seconds for each short request; twice as many clients as slots, on connections that stay open."""

    async def client() -> None:
        connection = Connection(process.port)
        for _ in range(requests):
            await connection.ask(stream=False)
        await connection.close()

    before = process.cpu()
    trio.run(at_once, 2 * SLOTS, client)
    return (process.cpu() - before) / (2 * SLOTS * requests)


def first_bytes(process: Process, requests: int) -> list[float]:
    """Seconds from a request to the first event, one after the other, each on a new connection."""

    async def ask() -> list[float]:
        return [await Connection(process.port).ask(stream=True, events=1) for _ in range(requests)]

    return trio.run(ask)


def memory(upstream: Process, streams: int) -> float:
    """Bytes for each stream that waits in the line."""

    async def wait_in_line(process: Process) -> float:
        async with trio.open_nursery() as nursery:
            for _ in range(SLOTS):
                nursery.start_soon(
                    lambda: Connection(process.port).ask(stream=True, events=10**6, interval=1)
                )
            await trio.sleep(1)
            await queue(process, 50)  # what the first ones load and keep
            before = process.memory()
            after = await queue(process, streams)
            nursery.cancel_scope.cancel()
            return (after - before) / streams
        raise AssertionError

    async def queue(process: Process, count: int) -> int:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(lambda: Connection(process.port).ask(stream=True))
                await trio.sleep(0.004)
            await trio.sleep(2)
            used = process.memory()
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        return used

    with running(*gateway_to(upstream, "--max-waiting", "0")) as process:
        return trio.run(wait_in_line, process)


@dataclass
class Row:
    """One line of the table."""

    what: str
    gateway: float
    naive: float | None
    unit: str
    ratio: float
    reach: str
    met: bool


def measure(rounds: int) -> list[Row]:
    own = str(Path(__file__).resolve())
    seen: dict[str, list[float]] = {}

    def note(name: str, *values: float) -> None:
        seen.setdefault(name, []).extend(values)

    with ExitStack() as stack:
        upstream = stack.enter_context(running(own, "--role", "upstream", "--port", "PORT"))
        url = f"http://127.0.0.1:{upstream.port}"
        naive = stack.enter_context(running(own, "--role", "naive", "--port", "PORT", "--upstream", url))
        gateway = stack.enter_context(running(*gateway_to(upstream)))
        both = {"gateway": gateway, "naive": naive}
        for process in both.values():  # imports, caches
            short(process, 10), first_bytes(process, 10)
        for number in range(rounds):
            for name, process in list(both.items())[:: 1 if number % 2 else -1]:
                note(f"paced {name}", paced(process, 2.0))
                note(f"burst {name}", burst(process, 5000))
                note(f"short {name}", short(process, 25))
            for _ in range(4):
                for name, process in {"direct": upstream, **both}.items():
                    note(f"first {name}", *first_bytes(process, 15))
        queued = memory(upstream, 500)
    middle = {name: statistics.median(values) for name, values in seen.items()}

    def row(what: str, key: str, reach: float, scale: float, unit: str, base: float = 0.0) -> Row:
        one, other = middle[f"{key} gateway"] - base, middle[f"{key} naive"] - base
        ratio = one / other
        return Row(what, one * scale, other * scale, unit, ratio, f"<= {reach}x", ratio <= reach)

    events = row("burst: events per CPU second", "burst", 1, 1, "1/s")
    events.gateway, events.naive = 1 / middle["burst gateway"], 1 / middle["burst naive"]
    events.ratio, events.reach = events.gateway / events.naive, ">= 4x"
    events.met = events.ratio >= 4
    return [
        row("paced, 4 x 100 events/s: CPU per event", "paced", 1.0, 1e6, "us"),
        events,
        row("first byte added to a direct one", "first", 1.2, 1e3, "ms", middle["first direct"]),
        row("CPU per short request, queue included", "short", 1.2, 1e3, "ms"),
        Row(
            "memory of a queued stream",
            queued / 1024,
            None,
            "KB",
            queued / 48 / 1024,
            "<= 48 KB",
            queued <= 48 * 1024,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the rows to a file")
    parser.add_argument("--role", choices=("upstream", "naive"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--upstream", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "upstream":
        trio.run(run_upstream, args.port)
    elif args.role == "naive":
        trio.run(run_naive, args.port, args.upstream)
    rows = measure(args.rounds)
    print(f"{'':42}{'gateway':>12}{'naive':>12}       {'ratio':>8}   reach")
    for row in rows:
        naive = "-" if row.naive is None else f"{row.naive:.2f}"
        print(
            f"{row.what:42}{row.gateway:12.2f}{naive:>12} {row.unit:4}  {row.ratio:7.2f}x   {row.reach}"
            f"{'' if row.met else '   MISSED'}"
        )
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
