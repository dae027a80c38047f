"""HTTP/2, as safe as our HTTP/1, in the place of Hypercorn's.

Hypercorn 0.18's takes a whole connection down for a late frame on one stream, and buffers without bound for a
client that grants no window.

Three kinds of task share a connection. Its reader takes what comes and waits for nobody. Its writer writes
what is ready. And each request's own task waits until the client has room for the next piece of its answer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Response, StreamClosed
from hypercorn.typing import ConnectionState

from . import transport
from .body import WANTED
from .http2_connection import Connection, Patience, read_head
from .http2_outlet import AHEAD, Outlet
from .http2_stream import RequestStream
from .refusal import refusal, refuser_of
from .transport import Leave

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from h2.events import Event as FrameEvent
    from hypercorn.config import Config
    from hypercorn.protocol.events import Event as StreamEvent
    from hypercorn.typing import AppWrapper, WorkerContext

    from .http2_connection import Header
    from .transport import RequestTasks

MAX_UNWRITTEN: Final = 4 * AHEAD  # bytes; who does not take them may not ask for more


class HTTP2Protocol:
    """One HTTP/2 connection."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        task_group: RequestTasks,
        connection_state: ConnectionState,
        ssl: bool,  # noqa: FBT001 - Hypercorn's order
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
    ) -> None:
        self._refuser = refuser_of(app)
        self._config = config
        self._context = context
        self._tasks = task_group
        self._state = connection_state
        self._send = send
        self._connection = Connection(config.h11_max_incomplete_size)
        self._streams: dict[int, RequestStream] = {}
        self._outlet = Outlet(self._connection, self._streams, send)
        self._make_stream = partial(
            RequestStream,
            app=app,
            config=config,
            context=context,
            tasks=task_group,
            ssl=ssl,
            client=client,
            server=server,
            send=self.stream_send,
        )
        self._last = 0  # stream that was let in
        self._patience = Patience()
        self._leaving = False  # nothing more is read, and nobody else is answered

    async def initiate(self) -> None:
        """Begin the connection."""
        self._connection.initiate_connection()
        self._outlet.flush()
        self._tasks.spawn(self._outlet.write)

    async def handle(self, event: Event) -> None:
        """Take what the transport has read, or its word that the connection ends.

        Only `Leave` blocks: until the client has been told.
        """
        if isinstance(event, RawData):
            if not self._leaving:
                await self._take(event.data)
        elif isinstance(event, Leave):
            await self._leave()
            await self._outlet.written()
        elif isinstance(event, Closed):
            self._outlet.close()
            await self._end()

    async def stream_send(self, event: StreamEvent) -> None:
        """Send a part of an answer; nothing, if its client has gone.

        Only a body blocks: until the client has room for it, or has had none for so long that it is cut.
        """
        number = event.stream_id
        if isinstance(event, StreamClosed):
            await self._finish(number)
        elif not self._connection.is_open(number) or number not in self._streams:
            pass
        elif isinstance(event, Response):
            self._streams[number].has_begun = True
            self._send_head(number, event.status_code, event.headers)
        elif isinstance(event, Body):
            if not await self._outlet.send_body(number, event.data):
                self._connection.reset_if_open(number, ErrorCodes.CANCEL)
                await self._close(number)
        elif isinstance(event, EndBody):
            self._streams[number].answered = True
            self._connection.end_stream(number)
        self._outlet.flush()
        if isinstance(event, Body):
            # The only checkpoint of an application that does nothing but send, and be it to nobody.
            await trio.lowlevel.checkpoint()

    # ---- what comes

    async def _take(self, data: bytes) -> None:
        try:
            events = self._connection.receive_data(data)
        except ProtocolError:  # h2 has said so to the client
            await self._end()
            return
        if any(isinstance(each, ConnectionTerminated) for each in events):  # h2 lets nothing be sent any more
            await self._end()
            return
        for event in events:
            await self._act_on(event)
        self._outlet.flush()
        if self._outlet.unwritten > MAX_UNWRITTEN:
            await self._send(Closed())
        elif not self._patience.outlasts(events):
            await self._leave(ErrorCodes.ENHANCE_YOUR_CALM)

    async def _act_on(self, event: FrameEvent) -> None:
        match event:
            case RequestReceived():
                await self._begin(event)
            case DataReceived():
                await self._take_body(event)
            case StreamEnded() if event.stream_id in self._streams:
                await self._streams[event.stream_id].handle(EndBody(stream_id=event.stream_id))
            case StreamReset():
                await self._close(event.stream_id)
            case WindowUpdated() if event.stream_id:
                if event.stream_id in self._streams:
                    self._streams[event.stream_id].sender.unpark_all()
            case WindowUpdated() | RemoteSettingsChanged():
                self._outlet.wake()

    async def _begin(self, event: RequestReceived) -> None:
        number, headers = event.stream_id, list(event.headers)
        if not self._connection.is_open(number):  # reset by what came right behind
            return
        if self._context.terminated.is_set():
            # Not served, which this says: its client may safely ask somebody else.
            self._connection.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        self._last = number
        complete = event.stream_ended is not None
        head = read_head(headers, self._config.h11_max_incomplete_size, complete=complete)
        if isinstance(head, int):
            self._refuse(number, head, is_bodiless=(b":method", b"HEAD") in headers)
            self._hear_out(number)
            return
        method, target = head
        state = self._state
        if not complete and (b"expect", b"100-continue") in headers:
            state = ConnectionState({**state, WANTED: partial(self._ask_for_body, number)})
        give_back = partial(self._give_back, number)
        stream = self._streams[number] = self._make_stream(stream_id=number, give_back=give_back)
        await self._send(Updated(idle=False))
        await stream.begin(method, target, headers, state)
        if stream.closed:  # Hypercorn has answered: it is not for this server's name
            await self._finish(number)
        await self._context.mark_request()

    async def _ask_for_body(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is not None and not stream.has_begun and self._connection.is_open(number):
            self._connection.send_headers(number, [(b":status", b"100")])
            self._outlet.flush()

    async def _take_body(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            self._give_back(event.stream_id, event.flow_controlled_length)
            return
        self._give_back(event.stream_id, event.flow_controlled_length - len(event.data))
        if event.data:
            await stream.handle(Body(stream_id=event.stream_id, data=event.data))

    def _give_back(self, number: int, count: int) -> None:
        if not self._leaving:
            self._connection.acknowledge_received_data(count, number)
            self._outlet.flush()

    # ---- what goes

    def _refuse(self, number: int, status: int, *, is_bodiless: bool) -> None:
        room = 0 if is_bodiless else self._connection.room(number)
        headers, body = refusal(self._refuser, status, room=room)
        self._send_head(number, status, headers, end=not body)
        if body:
            self._connection.send_data(number, body, end_stream=True)

    def _send_head(self, number: int, status: int, headers: list[Header], *, end: bool = False) -> None:
        head = [(b":status", b"%d" % status), *headers, *self._config.response_headers("h2")]
        self._connection.send_headers(number, head, end_stream=end)

    # ---- what ends

    async def _finish(self, number: int) -> None:
        """End a stream whose application has ended its answer, or itself."""
        if number not in self._streams:
            return
        if self._streams[number].answered:
            self._hear_out(number)
        else:
            self._connection.reset_if_open(number, ErrorCodes.INTERNAL_ERROR)
        await self._close(number)

    def _hear_out(self, number: int) -> None:
        """Throw away for a while what comes of a body after the answer, then say that it is not wanted.

        As HTTP/1 does: there are clients that look at no answer, or at none behind a reset, while they send.
        """
        if self._connection.is_open(number):
            self._tasks.spawn(self._reset_later, number)

    async def _reset_later(self, number: int) -> None:
        with trio.move_on_after(transport.LINGER):
            await self._outlet.written()
        self._connection.reset_if_open(number, ErrorCodes.NO_ERROR)
        self._outlet.flush()

    async def _close(self, number: int) -> None:
        """Forget a stream, and tell its application."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        stream.sender.unpark_all()
        await stream.handle(StreamClosed(stream_id=number))
        if self._streams or self._leaving:
            return
        if self._context.terminated.is_set():
            await self._leave()
        else:
            await self._send(Updated(idle=True))

    async def _leave(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Say which requests were let in, so that the others may be sent elsewhere, and end."""
        if not self._leaving:
            self._connection.close_connection(code, last_stream_id=self._last)
            await self._end()

    async def _end(self) -> None:
        self._leaving = True
        for number in list(self._streams):
            await self._close(number)
        self._outlet.hang_up()
