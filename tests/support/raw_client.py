"""An HTTP client that shows every byte, and leaves as rudely as it is told to."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import trio

from trio_admission.testing._fake.stream import Stream, reset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def events(body: bytes) -> list[bytes]:
    """Return a stream's complete events, without the blank lines; comments count as events."""
    return _BLANK_LINE.split(body)[:-1]


def data_of(body: bytes) -> list[Any]:
    """Return what each event's data lines say, parsed where they are JSON."""
    lines = [line for event in events(body) for line in event.splitlines() if line.startswith(b"data:")]
    return [_parsed(line.removeprefix(b"data:").strip()) for line in lines]


def keepalives(body: bytes) -> list[bytes]:
    """Return the events that are comments or pings."""
    return [event for event in events(body) if event.startswith((b":", b"event: ping"))]


@dataclass
class Answer:
    """One answer as far as it has come."""

    status: int
    headers: list[tuple[str, str]]
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        """The body without its framing."""
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """Return the first header of that name."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class RawClient:
    """One connection. `received` is every byte that came, `arrivals` when and how many came at once."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.received = bytearray()
        self.arrivals: list[tuple[float, int]] = []
        self._rest = bytearray()

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str) -> AsyncIterator[RawClient]:
        """Connect over TCP; leaving closes the connection."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        async with await trio.open_tcp_stream(parts.hostname, parts.port) as stream:
            yield cls(stream)

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self.stream.send_all(data)

    async def request(
        self, method: str, target: str, body: object = None, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Send a request; a body that is not bytes is sent as JSON."""
        lines = [
            f"{method} {target} HTTP/1.1",
            "Host: test",
            *(f"{name}: {value}" for name, value in headers),
        ]
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        await self.send("\r\n".join([*lines, "\r\n"]).encode() + data)

    async def ask(
        self, method: str, target: str, body: object = None, headers: Iterable[tuple[str, str]] = ()
    ) -> Answer:
        """Send a request and read its whole answer."""
        await self.request(method, target, body, headers)
        return await self.read_answer()

    async def read_until(self, mark: bytes) -> bytes:
        """Read up to and with a mark; EOFError when the connection ends before it."""
        while (at := self._rest.find(mark)) < 0:
            if not await self._fill():
                raise EOFError(bytes(self._rest))
        return self._take(at + len(mark))

    async def read_head(self) -> Answer:
        """Read an answer's status and headers."""
        first, *lines = (await self.read_until(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return Answer(int(first.split(" ")[1]), headers)

    async def read_answer(self) -> Answer:
        """Read an answer to its end; one that was cut is not `complete`."""
        answer = await self.read_head()
        while await self.read_more(answer):
            pass
        return answer

    async def read_events(self, answer: Answer, count: int) -> list[bytes]:
        """Read on until that many events have come; EOFError when the answer ends before."""
        while len(events(answer.body)) < count:
            if not await self.read_more(answer):
                raise EOFError(answer.body)
        return events(answer.body)

    async def read_more(self, answer: Answer) -> bool:
        """Read the next piece of a body; False at its end, proper or not."""
        try:
            if answer.header("Transfer-Encoding") == "chunked":
                return await self._read_chunk(answer)
            return await self._read_plain(answer)
        except EOFError:
            return False

    async def read_to_end(self) -> bytes:
        """Read until the other side closes; `trio.BrokenResourceError` when it resets."""
        while await self._fill():
            pass
        return self._take(len(self._rest))

    async def close(self) -> None:
        """Leave with a FIN."""
        await self.stream.aclose()

    async def half_close(self) -> None:
        """Send a FIN but go on reading."""
        await self.stream.send_eof()

    def reset(self) -> None:
        """Leave with a RST."""
        reset(self.stream)

    async def _read_chunk(self, answer: Answer) -> bool:
        size = int((await self.read_until(b"\r\n")).split(b";")[0], 16)
        while len(self._rest) < size + 2:
            if not await self._fill():
                raise EOFError
        data = self._take(size + 2)
        assert data.endswith(b"\r\n")
        if not size:
            answer.complete = True
            return False
        answer.chunks.append(data[:-2])
        return True

    async def _read_plain(self, answer: Answer) -> bool:
        length = answer.header("Content-Length")
        missing = None if length is None else int(length) - len(answer.body)
        if missing == 0:
            answer.complete = True
            return False
        if not self._rest and not await self._fill():
            answer.complete = length is None
            return False
        answer.chunks.append(
            self._take(len(self._rest) if missing is None else min(missing, len(self._rest)))
        )
        return True

    async def _fill(self) -> bool:
        data = await self.stream.receive_some(65536)
        self.received += data
        self._rest += data
        self.arrivals.append((trio.current_time(), len(data)))
        return bool(data)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode()
