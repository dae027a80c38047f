"""Where the body of an HTTP/1.1 answer ends: bytes of a connection in, bytes of the body out.

h11 makes an object of each chunk, and a server that streams sends a chunk for each token; this joins what
has come.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_LINE_LIMIT: Final = 16 * 2**10


class FramingError(Exception):
    """The bytes are no body, or the connection ended before it."""


class Body(Protocol):
    """The rest of an answer."""

    @property
    def ended(self) -> bool:
        """Whether nothing of what may still come belongs to it.

        Raises `FramingError`, if what came behind the bytes that `feed` returned last is no body.
        """

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the connection and return what of them is body. Raises `FramingError`."""

    def end(self) -> None:
        """Take the end of the connection. Raises `FramingError`, if the body is not complete."""


def body_of(method: str, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Body:
    """Return how the body of an answer is framed, by its head: a valid one, its names in lower case."""
    named = dict(headers)
    if method == "HEAD" or status in {204, 304}:
        return SizedBody(0)
    if b"transfer-encoding" in named:
        return ChunkedBody()
    if b"content-length" in named:
        return SizedBody(int(named[b"content-length"]))
    return UnframedBody()


class UnframedBody:
    """A body that the end of the connection ends."""

    def __init__(self) -> None:
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """See `Body`."""
        return data

    def end(self) -> None:
        """See `Body`."""
        self.ended = True


class SizedBody:
    """A body whose length is known."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def ended(self) -> bool:
        """See `Body`."""
        return self._left == 0

    def feed(self, data: bytes) -> bytes:
        """See `Body`."""
        data = data[: self._left]
        self._left -= len(data)
        return data

    def end(self) -> None:
        """See `Body`."""
        if self._left:
            raise FramingError(f"{self._left} bytes are missing")


class ChunkedBody:
    """A body in chunks. Their extensions and the trailers are dropped."""

    def __init__(self) -> None:
        self._ended = False
        self._fault: FramingError | None = None
        self._rest = b""  # the beginning of a line
        self._missing = 0  # bytes of a chunk, its line end included
        self._in_trailers = False

    @property
    def ended(self) -> bool:
        """See `Body`."""
        if self._fault:
            raise self._fault
        return self._ended

    def feed(self, data: bytes) -> bytes:
        """See `Body`."""
        pieces: list[bytes] = []
        try:
            self._take(data, pieces)
        except FramingError as fault:
            if not any(pieces):
                raise
            self._fault = fault  # what came whole is body, whatever else the same read has brought
        return b"".join(pieces)

    def end(self) -> None:
        """See `Body`."""
        if not self.ended:
            raise FramingError("the last chunk is missing")

    def _take(self, data: bytes, pieces: list[bytes]) -> None:
        data, self._rest = self._rest + data, b""
        at = self._take_chunk(data, 0, self._missing, pieces) if self._missing else 0
        while at < len(data) and not self._ended:
            if self._in_trailers:
                at = self._skip_trailer(data, at)
            elif line := _SIZE.match(data, at):
                size, at = int(line[1], 16), line.end()
                if size:
                    at = self._take_chunk(data, at, size + 2, pieces)
                else:
                    self._in_trailers = True
            else:
                at = self._keep(data, at)

    def _take_chunk(self, data: bytes, at: int, size: int, pieces: list[bytes]) -> int:
        """Take ``size`` bytes, of which the last two are a line end, as far as they are there."""
        end = at + size
        line_end = max(at, end - 2)
        pieces.append(data[at:line_end])
        if not b"\r\n"[line_end - end :].startswith(data[line_end:end]):
            raise FramingError("a chunk does not end where it should")
        self._missing = max(0, end - len(data))
        return end

    def _skip_trailer(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            return self._keep(data, at)
        self._ended = end == at
        return end + 2

    def _keep(self, data: bytes, at: int) -> int:
        """Keep the beginning of a line for the next bytes."""
        self._rest = data[at:]
        if len(self._rest) > _LINE_LIMIT or b"\r\n" in self._rest:
            raise FramingError("a line of the framing is wrong")
        return len(data)
