"""What an HTTP/2 connection sends: bytes that are ready, and answers that wait for room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from hypercorn.events import Event, RawData

from . import transport
from .transport import HangUp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .http2_connection import Connection
    from .http2_stream import RequestStream

AHEAD: Final = 64 * 1024  # bytes that are ready to be written before answers wait


class Outlet:
    """Sends for all streams of a connection.

    Priorities are not looked at, as RFC 9113 allows: all who wait for room are told when there is some, and
    Trio sees to it that it is not always the same who comes first.

    Args:
        connection: Makes frames.
        streams: Those that are there, by number.
        send: Gives the transport what it is to do.
    """

    def __init__(
        self,
        connection: Connection,
        streams: Mapping[int, RequestStream],
        send: Callable[[Event], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._send = send
        self._ready = bytearray()
        self._writer = trio.lowlevel.ParkingLot()
        self._hangs_up = False
        self._closed = False
        self._written = trio.Event()

    @property
    def unwritten(self) -> int:
        """How many bytes are ready and not written yet."""
        return len(self._ready)

    def flush(self) -> None:
        """Have written, soon, what the connection has made."""
        self._ready += self._connection.data_to_send()
        self._writer.unpark_all()

    async def write(self) -> None:
        """Write what is ready for as long as the connection lasts. Nobody else does."""
        while not self._closed:
            if self._ready:
                data, self._ready = bytes(self._ready), bytearray()
                await self._send(RawData(data))
                self.wake()
            elif self._hangs_up:
                await self._send(HangUp())  # which closes it
            else:
                await self._writer.park()
        self._written.set()

    def hang_up(self) -> None:
        """End the connection when all is written that is ready."""
        self._hangs_up = True
        self.flush()

    def close(self) -> None:
        """Write nothing more: the connection has ended."""
        self._closed = True
        self._writer.unpark_all()

    async def written(self) -> None:
        """Wait until the connection has ended, or all is written after `hang_up`."""
        await self._written.wait()

    def wake(self) -> None:
        """Let all look whether they have room now."""
        for stream in self._streams.values():
            stream.sender.unpark_all()

    async def send_body(self, number: int, data: bytes) -> bool:
        """Send a part of an answer, and say whether the client took it or is gone.

        Blocks until all of it is on its way, and gives up when the client has had no room for a piece of
        it for `transport.WRITE_TIMEOUT`.
        """
        for start in range(0, len(data), transport.WRITE_PIECE):
            with trio.move_on_after(transport.WRITE_TIMEOUT) as patience:
                await self._send_piece(number, data[start : start + transport.WRITE_PIECE])
            if patience.cancelled_caught:
                return False
        return True

    async def _send_piece(self, number: int, piece: bytes) -> None:
        while piece and number in self._streams and self._connection.is_open(number):
            room = min(self._connection.room(number), AHEAD - len(self._ready))
            if room > 0:
                self._connection.send_data(number, piece[:room])
                piece = piece[room:]
                self.flush()
            else:
                await self._streams[number].sender.park()
