"""A request body that is bounded while it arrives, whether or not anybody reads it.

Quart 0.22 forgets the bytes that were iterated over when it looks at the limit; Quart 0.23 looks at it only
after the whole body is in memory, and not at all if no view reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio
from quart_trio.wrappers import TrioRequest
from quart_trio.wrappers.request import TrioBody
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

# In the state of a request's ASGI scope: what tells the client that its body is wanted, if it waits for that.
WANTED: Final = "body_wanted"


class BoundedBody(TrioBody):
    """A body of at most `max_content_length` bytes; it can be awaited whole or iterated over, not both.

    Whoever reads it gets the error of `fail`, or a 413 as soon as the body is known to be too long; what
    arrives after that is thrown away.

    Attributes:
        wanted: Is called once, when somebody has to wait for the body; None = nobody needs to know.
    """

    def __init__(self, expected_content_length: int | None, max_content_length: int | None) -> None:
        # The base class's state differs between Quart's versions, and none of it is used here.
        self._limit = max_content_length
        self._received = 0
        self._unread = bytearray()
        self._whole: bytes | None = None
        self._ended = False
        self._error: HTTPException | None = None
        self._readers = trio.lowlevel.ParkingLot()
        self.wanted: Callable[[], Awaitable[None]] | None = None
        if expected_content_length is not None:
            self._check(expected_content_length)

    def append(self, data: bytes) -> None:
        """Take the next bytes from the client."""
        self._received += len(data)
        self._check(self._received)
        if self._error is None:
            self._unread += data
            self._readers.unpark_all()

    def set_complete(self) -> None:
        """Say that the body has ended."""
        self._ended = True
        self._readers.unpark_all()

    def set_result(self, data: bytes) -> None:
        """Take a whole body at once, as Quart's test helpers do."""
        self.append(data)
        self.set_complete()

    def fail(self, error: HTTPException) -> None:
        """Raise `error` in whoever reads the body, now or later, and throw the body away.

        Does nothing if the body is complete or has failed.
        """
        if self._error is None and not self._ended:
            self._error = error
            self._unread.clear()
            self._readers.unpark_all()

    def clear(self) -> None:
        """Forget the body, to give its memory back."""
        self._unread.clear()
        self._whole = b""

    def __await__(self) -> Generator[Any, None, bytes]:
        """Wait for the whole body."""
        return self._read_whole().__await__()

    def __aiter__(self) -> BoundedBody:
        """Iterate over the body as it arrives."""
        return self

    async def __anext__(self) -> bytes:
        """Wait for more of the body."""
        while not self._unread and not self._ended:
            await self._wait()
        self._raise_error()
        if not self._unread:
            raise StopAsyncIteration
        data = bytes(self._unread)
        self._unread.clear()
        return data

    async def _read_whole(self) -> bytes:
        while not self._ended:
            await self._wait()
        self._raise_error()
        if self._whole is None:
            self._whole = bytes(self._unread)
            self._unread.clear()
        return self._whole

    async def _wait(self) -> None:
        self._raise_error()
        if self.wanted is None:
            await self._readers.park()
        else:
            tell, self.wanted = self.wanted, None
            await tell()  # meanwhile the body may have come: nobody parks without another look

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _check(self, length: int) -> None:
        if self._limit is not None and length > self._limit:
            self.fail(RequestEntityTooLarge(f"The request body is larger than {self._limit} bytes."))


class BoundedRequest(TrioRequest):
    """A request with a bounded body."""

    body_class = BoundedBody
