"""The server side of HTTP/1.1, as much of it as llama-server speaks, with every input bounded."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

import trio

from .stream import Stream, reset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HEAD_LIMIT = 64 * 1024
BODY_LIMIT = 100 * 1024 * 1024
KEEP_ALIVE_SECONDS = 5.0
KEEP_ALIVE_REQUESTS = 100
LAST_CHUNK = b"0\r\n\r\n"
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.([01])\Z")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*\Z")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;.*)?\Z")


class BadRequestError(Exception):
    """The bytes are no request that the server takes; it answers `status` without a body and closes."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def response_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a status line and headers, in this order, with the empty line."""
    lines = [
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Frame bytes as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(slots=True, eq=False)
class Connection:
    """What is known of one connection; times are seconds on Trio's clock, None before."""

    number: int
    """Counted from 1 in the order of arrival."""
    opened: float
    """When the server took it."""
    closed: float | None = None
    """When the server was through with it."""
    peer_closed: float | None = None
    """When the client went."""
    peer_close: Literal["fin", "reset"] | None = None
    """How it went: `"fin"` (also a half close) or `"reset"`."""


@dataclass(slots=True, eq=False)
class Request:
    """One request as it came and when its answer went; times are seconds on Trio's clock, None before.

    Only a request that decodes has `slots`, `launched`, `released` and `corrupted`.
    """

    connection: Connection
    """The connection on which it came."""
    method: str
    """As it was sent, such as `POST`."""
    target: str
    """The path with its query, as it was sent."""
    headers: list[tuple[str, str]]
    """Names and values, in the order and case in which they were sent."""
    head: bytes
    """Everything up to the empty line and with it, byte for byte."""
    body: bytes
    """The body, without chunk framing."""
    arrived: float
    """When its last byte was read."""
    number: int = 0
    """Counts the requests that decode, from 1; 0 for others."""
    status: int | None = None
    """The status of its answer."""
    first_byte: float | None = None
    """When the first byte of its answer was sent."""
    last_byte: float | None = None
    """When the latest byte of its answer was sent."""
    launched: float | None = None
    """When it was given its first slot."""
    released: float | None = None
    """When it neither held a slot nor waited for one any more."""
    slots: list[int] = field(default_factory=list)
    """Ids of the slots in which it was decoded."""
    corrupted: bool = False
    """Whether another request, pinned to its busy slot, spoilt its text."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        """What follows the target's first question mark."""
        return self.target.partition("?")[2]

    def header(self, name: str) -> str | None:
        """Return the first header of that name, whatever its case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Wire:
    """One connection: reads requests, writes bytes, and notices while an answer is made that the client left.

    `gone` is set, and `on_gone` called, when that happens. Whoever serves the connection does it in `scope`.
    """

    def __init__(self, stream: Stream, record: Connection) -> None:
        self.record = record
        self.gone = trio.Event()
        self.on_gone: Callable[[], object] | None = None
        self.scope = trio.CancelScope()
        self._stream = stream
        self._buffer = bytearray()

    async def read_request(self) -> Request | None:
        """Wait for the next request; None when the client is gone or was idle for five seconds."""
        head = None
        with trio.move_on_after(KEEP_ALIVE_SECONDS):
            head = await self._until(b"\r\n\r\n", HEAD_LIMIT)
        if head is None:
            return None
        line, *lines = head[:-4].split(b"\r\n")
        if not (matched := _REQUEST_LINE.match(line)):
            raise BadRequestError(400)
        method, target, _ = (part.decode("ascii") for part in matched.groups())
        request = Request(self.record, method, target, [_header(line) for line in lines], head, b"", 0.0)
        body = await self._read_body(request)
        if body is None:
            return None
        request.body, request.arrived = body, trio.current_time()
        return request

    async def watch(self) -> None:
        """Read on while an answer is made, so that the client's leaving is seen at once."""
        while len(self._buffer) <= HEAD_LIMIT and await self._fill():
            pass

    async def send(self, data: bytes) -> None:
        """Send bytes; `trio.BrokenResourceError` when the client is gone."""
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            # The kernel tells of a reset only once: while it told this task, `watch` saw an ordinary end.
            if getattr(error.__cause__, "errno", None) == errno.ECONNRESET:
                self._left("reset")
                self.record.peer_close = "reset"
            raise

    def reset(self) -> None:
        """Reset the connection."""
        reset(self._stream)

    def kill(self) -> None:
        """Reset the connection and end the task that serves it."""
        self.reset()
        self.scope.cancel()

    async def _read_body(self, request: Request) -> bytes | None:
        if (request.header("Expect") or "").lower() == "100-continue":
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if (request.header("Transfer-Encoding") or "").lower() == "chunked":
            return await self._read_chunks()
        length = request.header("Content-Length") or "0"
        if not (length.isascii() and length.isdecimal()):
            raise BadRequestError(400)
        if int(length) > BODY_LIMIT:
            raise BadRequestError(413)
        return await self._exactly(int(length))

    async def _read_chunks(self) -> bytes | None:
        body = bytearray()
        while True:
            line = await self._until(b"\r\n", HEAD_LIMIT)
            if line is None:
                return None
            if not (matched := _SIZE.match(line[:-2])):
                raise BadRequestError(400)
            size = int(matched[1], 16)
            if len(body) + size > BODY_LIMIT:
                raise BadRequestError(413)
            if size == 0:
                break
            data = await self._exactly(size + 2)
            if data is None:
                return None
            if data[-2:] != b"\r\n":
                raise BadRequestError(400)
            body += data[:-2]
        return bytes(body) if await self._skip_trailers() else None

    async def _skip_trailers(self) -> bool:
        size = 0
        while (line := await self._until(b"\r\n", HEAD_LIMIT)) != b"\r\n":
            if line is None:
                return False
            size += len(line)
            if size > HEAD_LIMIT:
                raise BadRequestError(400)
        return True

    async def _until(self, mark: bytes, limit: int) -> bytes | None:
        while (at := self._buffer.find(mark)) < 0:
            if len(self._buffer) > limit:
                raise BadRequestError(400)
            if not await self._fill():
                return None
        return self._take(at + len(mark))

    async def _exactly(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            if not await self._fill():
                return None
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _fill(self) -> bool:
        try:
            data = await self._stream.receive_some(65536)
        except trio.BrokenResourceError:
            self._left("reset")
            return False
        except trio.ClosedResourceError:
            return False  # we closed it ourselves
        if not data:
            self._left("fin")
        self._buffer += data
        return bool(data)

    def _left(self, how: Literal["fin", "reset"]) -> None:
        if self.gone.is_set():
            return
        self.record.peer_closed, self.record.peer_close = trio.current_time(), how
        self.gone.set()
        if self.on_gone is not None:
            self.on_gone()


def _header(line: bytes) -> tuple[str, str]:
    if not (matched := _HEADER.match(line)):
        raise BadRequestError(400)
    return matched[1].decode("ascii"), matched[2].decode("latin-1")
