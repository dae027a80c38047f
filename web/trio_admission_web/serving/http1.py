"""HTTP/1 of Hypercorn, whose reader never stops reading, and which is left only by who begins in HTTP/2.

h11 believes `Transfer-Encoding` where `Content-Length` stands beside it. Who is in front may believe the
other, so that a part of the body is a request to one of us; it is refused. So are lines that go on in the
next one or end in a bare LF, which h11 takes and who is in front may read in another way.

Hypercorn 0.18 stops reading when a client sends ahead of its answer: it then sees no disconnect, and the
socket and the task stay for ever. And an `Upgrade` to websocket or h2c with the wrong bytes behind it makes
it fail.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import h11
import trio
from h11._receivebuffer import ReceiveBuffer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Response
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ConnectionState

from .body import WANTED
from .connection import MALFORMED
from .refusal import refusal, refuser_of
from .transport import HangUp

if TYPE_CHECKING:
    from hypercorn.protocol.events import Event as StreamEvent
    from hypercorn.typing import ASGIReceiveEvent

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"  # the part of it that looks like a request
MAX_AHEAD = 64 * 1024  # bytes kept of what a client sends before it has its answer

_LOOSE_LINES = re.compile(rb"(?<!\r)\n|\n[ \t]")


class StrictBuffer(ReceiveBuffer):
    """What has come, of which only lines that everybody tells apart in the same way are taken as a head."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a whole head, or of the trailers behind a body.

        Raises:
            h11.LocalProtocolError: A line goes on in the next one, or ends in a bare LF. h11 turns this into
                what is the client's fault.
        """
        data = bytes(self)
        lines = super().maybe_extract_lines()
        if lines is not None and _LOOSE_LINES.search(data, 0, len(data) - len(self)):
            raise h11.LocalProtocolError("ambiguous lines")
        return lines


class PlainConnection(h11.Connection):
    """HTTP/1 that offers no upgrades, and asks for more bytes where h11 would ask to be left alone.

    Attributes:
        may_be_preface: Whether the client may go on in HTTP/2, if it has begun so.
    """

    may_be_preface = False

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._receive_buffer = StrictBuffer()

    def next_event(self) -> Any:
        """Return the next event; `NEED_DATA` also when the request is complete and its answer is not.

        Raises:
            H2ProtocolAssumedError: The client speaks HTTP/2; with what it has said.
        """
        # Behind a request that said "close" nothing counts, nor behind what cannot be understood.
        if self.their_state in {h11.MUST_CLOSE, h11.ERROR}:
            return h11.NEED_DATA
        event = super().next_event()
        if event is h11.PAUSED:
            return h11.NEED_DATA
        if isinstance(event, h11.Request):
            may_be_preface, self.may_be_preface = self.may_be_preface, False
            if not event.http_version.startswith(b"1."):
                if may_be_preface and _is_preface(event):
                    raise H2ProtocolAssumedError(PREFACE + self.trailing_data[0])
                raise h11.RemoteProtocolError("not HTTP/1", error_status_hint=505)
            if _has(event, b"transfer-encoding") and (  # RFC 9112, 6.1
                _has(event, b"content-length") or event.http_version == b"1.0"
            ):
                raise h11.RemoteProtocolError("ambiguous framing", error_status_hint=400)
            if _has(event, b"upgrade"):
                return h11.Request(
                    method=event.method,
                    target=event.target,
                    http_version=event.http_version,
                    headers=[(name, value) for name, value in event.headers if name != b"upgrade"],
                )
        return event


def _is_preface(event: h11.Request) -> bool:
    first_line = event.method, event.target, event.http_version
    return first_line == (b"PRI", b"*", b"2.0") and not event.headers


def _has(event: h11.Request | h11.Response, name: bytes) -> bool:
    return any(each.lower() == name for each, _ in event.headers.raw_items())  # a list, unlike the headers


class HTTP1Protocol(H11Protocol):
    """One HTTP/1 connection. A request that is sent ahead of an answer waits in a bounded buffer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connection: h11.Connection = PlainConnection(self.config.h11_max_incomplete_size)
        self.connection.may_be_preface = not self.ssl  # there it has been agreed on
        self.connection_state = ConnectionState({**self.connection_state, WANTED: self._ask_for_body})
        self._parsing = trio.Lock()  # held by the reader, or by who goes on with what was sent ahead
        self._overrun = False  # bytes that came ahead had to be thrown away
        self._refused = False  # nothing that comes behind what is no request is one
        self._head = b""  # of an answer, whose body is next

    async def handle(self, event: Event) -> None:
        """Take what the transport has read. Blocks while the application's queue is full."""
        if isinstance(event, RawData):
            if event.data and not self._keeps(len(event.data)):
                return
            async with self._parsing:
                if not self._refused:
                    await super().handle(event)
        else:
            await super().handle(event)

    async def stream_send(self, event: StreamEvent) -> None:
        """Send a part of the answer; say `close` in its head if the connection cannot outlive it."""
        if isinstance(event, Response) and (
            self.connection.their_state in {h11.SEND_BODY, h11.ERROR} or self.context.terminated.is_set()
        ):
            event = replace(event, headers=[*event.headers, (b"connection", b"close")])
        await super().stream_send(event)
        if isinstance(event, Body):
            # The only checkpoint of an application that does nothing but send. Behind a head there must be
            # none: Hypercorn, if cancelled before it has noted the head, would send another one.
            await trio.lowlevel.checkpoint()

    async def _send_h11_event(self, event: h11.Event) -> None:
        """Write a part of the answer. A head that says how long the body is goes with the body's beginning.

        For a short answer that is one write instead of three, and most of what it costs to send it.
        """
        try:
            data = self._head + (self.connection.send(event) or b"")
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        self._head = b""
        if isinstance(event, h11.Response) and _has(event, b"content-length"):
            self._head = data
        elif data:
            await self.send(RawData(data))

    def _keeps(self, count: int) -> bool:
        if self.connection.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._overrun = self._overrun or self._sent_ahead() + count > MAX_AHEAD
        return not self._overrun

    def _sent_ahead(self) -> int:
        return len(self.connection.trailing_data[0])

    async def _handle_events(self) -> None:
        """Act on what has come. Unlike Hypercorn's, this invites no body that the answer may not wait for."""
        while True:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return
            if isinstance(event, h11.Request):
                await self.send(Updated(idle=False))
                await self._create_stream(event)
            elif isinstance(event, h11.Data) and self.stream is not None:
                await self.stream.handle(Body(stream_id=STREAM_ID, data=event.data))
            elif isinstance(event, h11.EndOfMessage) and self.stream is not None:
                await self.stream.handle(EndBody(stream_id=STREAM_ID))
            else:
                return

    async def _refuse(self, status: int) -> None:
        """End the connection behind what cannot be understood, but let who can still be told know."""
        if self.connection.trailing_data[1] or (self.stream is not None and self.stream.closed):
            await self.send(Closed())  # the client has left in the middle of a body, or has its answer
        elif isinstance(self.stream, HTTPStream):
            await self.stream.app_put(cast("ASGIReceiveEvent", {"type": MALFORMED}))
        else:
            # Of what the client has said nothing counts any more, such as that it wants the head alone.
            self.connection = PlainConnection(self.config.h11_max_incomplete_size)
            self._refused = True
            headers, body = refusal(refuser_of(self.app), status)
            headers += [(b"connection", b"close"), *self.config.response_headers("h11")]
            await self._send_h11_event(h11.Response(status_code=status, headers=headers))
            await self._send_h11_event(h11.Data(data=body))
            await self._send_h11_event(h11.EndOfMessage())
            await self.send(HangUp())

    async def _ask_for_body(self) -> None:
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def _maybe_recycle(self) -> None:
        if self.connection.their_state in {h11.SEND_BODY, h11.ERROR} or self._overrun:
            await self._close_stream()
            await self.send(HangUp())
            return
        await super()._maybe_recycle()
        if self.connection.our_state is h11.IDLE and self._sent_ahead():
            self.task_group.spawn(self._go_on)

    async def _go_on(self) -> None:
        async with self._parsing:
            await self._handle_events()
