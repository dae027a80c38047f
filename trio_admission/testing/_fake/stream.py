"""Connections in memory that behave like sockets: bounded, half-closeable, and able to be reset."""

from __future__ import annotations

import operator
import socket
import struct
from typing import TypeAlias

import trio

_BUFFER = 256 * 1024  # about what the kernel holds for a loopback connection


class _Pipe:
    """One direction of a connection. Every change wakes whoever waits in `changed`, and it looks again."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False  # the writer sends no more
        self.unread = False  # the reader is gone
        self.was_reset = False
        self.changed = trio.lowlevel.ParkingLot()


class _OneAtATime:
    """Refuses to be entered by a second task."""

    def __init__(self) -> None:
        self._busy = False

    def __enter__(self) -> None:
        if self._busy:
            raise trio.BusyResourceError("another task is using this end of the stream")
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False


class MemoryStream(trio.abc.HalfCloseableStream):
    """One end of an in-memory connection.

    It holds 256 KiB in each direction, then `send_all` waits for the reader. One task may send and one may
    receive at a time; more get `trio.BusyResourceError`.
    """

    def __init__(self, inbox: _Pipe, outbox: _Pipe) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._closed = False
        self._sending = _OneAtATime()
        self._receiving = _OneAtATime()

    @property
    def readable(self) -> bool:
        """Whether `receive_some` would return or raise at once, as a socket's readability tells."""
        return bool(self._inbox.data) or self._inbox.ended or self._inbox.was_reset

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes; `trio.BrokenResourceError` when the other end was closed or reset."""
        with self._sending:
            await trio.lowlevel.checkpoint()
            rest = memoryview(data)
            while True:
                self._check_sending()
                room = _BUFFER - len(self._outbox.data)
                self._outbox.data += rest[:room]
                rest = rest[room:]
                self._outbox.changed.unpark_all()
                if not rest:
                    return
                await self._outbox.changed.park()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room."""
        with self._sending:
            await trio.lowlevel.checkpoint()
            self._check_sending()
            while len(self._outbox.data) >= _BUFFER:
                await self._outbox.changed.park()
                self._check_sending()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes; b"" after the other end closed, `trio.BrokenResourceError` after it reset."""
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        inbox = self._inbox
        with self._receiving:
            await trio.lowlevel.checkpoint()
            while not self._closed and not self.readable:
                await inbox.changed.park()
        if self._closed:
            raise trio.ClosedResourceError("this end is closed")
        if inbox.was_reset and not inbox.data:
            raise trio.BrokenResourceError("connection reset by peer")
        taken = bytes(inbox.data[:max_bytes])
        del inbox.data[: len(taken)]
        inbox.changed.unpark_all()
        return taken

    async def send_eof(self) -> None:
        """Close the sending half; the other end reads b"" after what was sent."""
        with self._sending:
            self._check_sending(ended_is_fine=True)
            self._outbox.ended = True
            self._outbox.changed.unpark_all()
            await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close both halves."""
        self.close()
        await trio.lowlevel.checkpoint()

    def reset(self) -> None:
        """Close at once, so that the other end sees a reset connection after what was sent."""
        self._outbox.was_reset = True
        self.close()

    def close(self) -> None:
        """Close both halves, without a checkpoint."""
        self._closed = self._outbox.ended = self._inbox.unread = True
        self._outbox.changed.unpark_all()
        self._inbox.changed.unpark_all()

    def _check_sending(self, *, ended_is_fine: bool = False) -> None:
        if self._closed or (self._outbox.ended and not ended_is_fine):
            raise trio.ClosedResourceError("this end is closed for sending")
        if self._outbox.unread:
            raise trio.BrokenResourceError("the other end is closed")


Stream: TypeAlias = trio.SocketStream | MemoryStream


def memory_connection() -> tuple[MemoryStream, MemoryStream]:
    """Return the two ends of a new in-memory connection."""
    there, back = _Pipe(), _Pipe()
    return MemoryStream(back, there), MemoryStream(there, back)


def close(stream: Stream) -> None:
    """Close a connection at once, without a checkpoint: no error can be lost on the way out."""
    if isinstance(stream, MemoryStream):
        stream.close()
    else:
        stream.socket.close()


def reset(stream: Stream) -> None:
    """Close a connection at once, so that its other end sees a reset (RST)."""
    if isinstance(stream, MemoryStream):
        stream.reset()
    else:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.socket.close()
