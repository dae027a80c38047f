"""The buffer between the one task that copies an answer and the one response body that drains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

# A generation's end must not wait for its reader, so the buffer holds what one usually is in all.
LIMIT: Final = 4 * 2**20
# What one send to the client takes at most: the server judges by the send whether a client is stuck.
PORTION: Final = 64 * 2**10


class Relay:
    """Bytes for one client: put in by one task, iterated by one other.

    Iterating joins what is waiting into one portion, and when nothing came for ``interval`` seconds it
    gives what ``keepalive`` returns. So there is no timer task: whoever waits for the client's next
    bytes also knows when the client has been left without any. It is a checkpoint only when it waits;
    what is done with a portion is one anyway.

    Everything that is put in must be whole events; that is why a keepalive is always between two.
    """

    def __init__(self, *, interval: float, keepalive: Callable[[], bytes], limit: int = LIMIT) -> None:
        self._interval = interval
        self._keepalive = keepalive
        self._limit = limit
        self._buffer = bytearray()
        self._closed = False
        self._reader = trio.lowlevel.ParkingLot()
        self._writer = trio.lowlevel.ParkingLot()

    def put(self, data: bytes) -> None:
        """Add bytes. Never refuses; see `full`."""
        self._buffer += data
        self._reader.unpark()

    @property
    def full(self) -> bool:
        """Whether more waits for the client than is meant to be kept."""
        return len(self._buffer) > self._limit

    async def room(self, deadline: float) -> None:
        """Wait until the buffer is no longer `full`.

        Raises:
            TooSlowError: The client took nothing for ``deadline`` seconds.
        """
        while self.full:
            with trio.fail_after(deadline):
                await self._writer.park()

    def close(self) -> None:
        """End the iteration after what is in the buffer."""
        self._closed = True
        self._reader.unpark()

    def __aiter__(self) -> Relay:
        return self

    async def __anext__(self) -> bytes:
        while not self._buffer:
            if self._closed:
                raise StopAsyncIteration
            with trio.move_on_after(self._interval) as silence:
                await self._reader.park()
            if silence.cancelled_caught:
                return self._keepalive()
        portion = bytes(self._buffer[:PORTION])
        del self._buffer[:PORTION]
        self._writer.unpark()
        return portion
