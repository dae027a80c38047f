"""One request of an HTTP/2 connection, and what of it waits for the application or for the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import trio
from hypercorn.protocol.events import Request
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.utils import filter_pseudo_headers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config
    from hypercorn.typing import (
        AppWrapper,
        ASGIReceiveEvent,
        ASGISendEvent,
        ConnectionState,
        HTTPRequestEvent,
        HTTPScope,
        Scope,
        TaskGroup,
    )

    from .transport import RequestTasks


class Inbox:
    """What a client has sent of one request, until the application takes it.

    The client's window bounds it, so putting something in never blocks who reads for all the requests of a
    connection. A client that has gone is told before what is left of its body.

    Args:
        give_back: Is told how many bytes have been taken, or thrown away.
    """

    def __init__(self, give_back: Callable[[int], None]) -> None:
        self._give_back = give_back
        self._body = bytearray()
        self._complete = False
        self._told_complete = False
        self._gone = False
        self._reader = trio.lowlevel.ParkingLot()

    async def put(self, message: ASGIReceiveEvent) -> None:
        """Add what has come. Never blocks."""
        if message["type"] == "http.disconnect":
            self._gone = True
        else:
            message = cast("HTTPRequestEvent", message)
            self._body += message["body"]
            self._complete = not message["more_body"]
        self._reader.unpark_all()

    async def receive(self) -> ASGIReceiveEvent:
        """Wait for what comes next, and take all that is there of the body."""
        await trio.lowlevel.checkpoint()
        while not (self._gone or self._body or (self._complete and not self._told_complete)):
            await self._reader.park()
        if self._gone:
            return {"type": "http.disconnect"}
        body = bytes(self._body)
        self.throw_away()
        self._told_complete = self._complete
        return {"type": "http.request", "body": body, "more_body": not self._complete}

    def throw_away(self) -> None:
        """Forget what is there of the body."""
        count = len(self._body)
        self._body.clear()
        if count:
            self._give_back(count)


class RequestStream(HTTPStream):
    """Hypercorn's request, fed by an inbox.

    Attributes:
        has_begun: Whether the head of the answer has been sent.
        answered: Whether the whole answer has been sent.
        sender: Where the one who sends the answer waits for room.
    """

    def __init__(self, *, tasks: RequestTasks, give_back: Callable[[int], None], **parts: Any) -> None:
        super().__init__(task_group=cast("TaskGroup", self), **parts)
        self._tasks = tasks
        self._inbox = Inbox(give_back)
        self.has_begun = False
        self.answered = False
        self.sender = trio.lowlevel.ParkingLot()

    async def begin(
        self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], state: ConnectionState
    ) -> None:
        """Start the application."""
        await self.handle(
            Request(
                stream_id=self.stream_id,
                headers=filter_pseudo_headers(headers),
                http_version="2",
                method=method.decode("ascii").upper(),
                raw_path=target,
                state=state,
            )
        )

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start `app` and return what feeds it, as Hypercorn asks its task group."""
        del self.task_group  # is asked once, and would keep all this until the next garbage collection
        request_scope = cast("HTTPScope", scope)
        request_scope["extensions"] = {}  # pushes, early hints and trailers, which nobody here sends

        async def run_to_the_end(*args: Any) -> None:
            try:
                await app(*args)
            finally:
                self._inbox.throw_away()

        self._tasks.start_app(run_to_the_end, config, scope, self._inbox.receive, send)
        return self._inbox.put
