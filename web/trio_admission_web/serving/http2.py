"""HTTP/2 of Hypercorn, where one stream's trouble stays with that stream and a stalled one has a deadline.

Hypercorn 0.18 fails the whole connection when a client goes on sending to a stream that has been answered,
waits for ever for a client that grants no window, and never counts a connection as idle whose last stream was
reset.
"""

from __future__ import annotations

from contextlib import suppress

import trio
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event as H2Event, RequestReceived
from h2.exceptions import ProtocolError
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol.events import Body, Event as StreamEvent
from hypercorn.protocol.h2 import H2Protocol

from trio_admission_web.serving import transport


class HTTP2Protocol(H2Protocol):
    """One HTTP/2 connection, for plain requests only."""

    async def handle(self, event: Event) -> None:
        """Take what the transport has read; a close also ends the waits for the client's window."""
        await super().handle(event)
        if isinstance(event, Closed):
            for buffer in list(self.stream_buffers.values()):
                await buffer.close()

    async def stream_send(self, event: StreamEvent) -> None:
        """Send a part of an answer; a client that does not take it in time has its stream reset."""
        if not isinstance(event, Body):
            await self._send_in_time(event)
            return
        for piece in transport.pieces(event.data):
            await self._send_in_time(Body(event.stream_id, bytes(piece)))

    async def _send_in_time(self, event: StreamEvent) -> None:
        with trio.move_on_after(transport.WRITE_TIMEOUT) as patience:
            await super().stream_send(event)
        if patience.cancelled_caught:
            await self._reset(event.stream_id, ErrorCodes.CANCEL)

    async def _handle_events(self, events: list[H2Event]) -> None:
        for event in events:
            if isinstance(event, DataReceived) and event.stream_id not in self.streams:
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await self._reset(event.stream_id, ErrorCodes.NO_ERROR)  # answered: please send no more
            elif isinstance(event, RequestReceived) and (b":method", b"CONNECT") in event.headers:
                await self._reset(event.stream_id, ErrorCodes.REFUSED_STREAM)  # a tunnel or a websocket
            else:
                await super()._handle_events([event])

    async def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        with suppress(ProtocolError):  # the client was first
            self.connection.reset_stream(stream_id, error_code=code)
        await self._flush()
        await self._close_stream(stream_id)
        await self._window_updated(stream_id)  # lets the sending task find the stream closed

    async def _close_stream(self, stream_id: int) -> None:
        await super()._close_stream(stream_id)
        if self.idle and not self.closed:
            await self.send(Updated(idle=True))
