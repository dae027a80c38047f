"""An HTTP/2 client that grants, resets and leaves as it is told to; made of h2."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes

from tests.support.raw_client import Answer, events
from trio_admission.testing._fake.stream import reset

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterable

    from h2.events import Event

WAYS = ("cancel", "close", "reset", "half close", "go away")


class Stream:
    """One request and what has come of its answer. It can be used like a `RawClient` for one request.

    ``reset_by`` is the code with which the server has reset it, ``informed`` the statuses before the answer.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.number = 0
        self.answer: Answer | None = None
        self.ended = False
        self.reset_by: ErrorCodes | int | None = None
        self.informed: list[str] = []

    async def request(
        self,
        method: str,
        target: str,
        body: object = None,
        headers: Iterable[tuple[str, str]] = (),
        *,
        end: bool = True,
    ) -> None:
        """Send a request; a body that is not bytes is sent as JSON. Without `end` more of it is to come."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = [(":method", method), (":scheme", "http"), (":authority", "test"), (":path", target), *headers]
        if data:
            head.append(("content-type", "application/json"))
        await self.begin(head, end=end and not data)
        if data:
            with suppress(trio.BrokenResourceError):  # answered before its end
                await self.send(data, end=end)

    async def begin(
        self, head: list[tuple[str, str]], *, end: bool = True, urgency: int | None = None
    ) -> None:
        """Send a header list."""
        h2 = self.connection.h2
        self.number = h2.get_next_available_stream_id()
        self.connection.streams[self.number] = self
        h2.send_headers(self.number, head, end_stream=end, priority_weight=urgency)
        await self.connection.flush()

    async def send(self, data: bytes, *, end: bool = False, regardless: bool = False) -> None:
        """Send more of the body when the server has room for it; `regardless` of a complete answer.

        Raises:
            BrokenResourceError: The server does not want it any more.
        """
        h2 = self.connection.h2
        while data:
            await self.connection.wait(lambda: self._gone or h2.local_flow_control_window(self.number) > 0)
            if self._gone and not (regardless and self.reset_by is None):
                raise trio.BrokenResourceError
            if h2.local_flow_control_window(self.number) <= 0:
                await self.connection.wait(lambda: h2.local_flow_control_window(self.number) > 0)
            room = min(h2.local_flow_control_window(self.number), h2.max_outbound_frame_size)
            h2.send_data(self.number, data[:room], end_stream=end and room >= len(data))
            data = data[room:]
            await self.connection.flush()

    async def ask(
        self, method: str, target: str, body: object = None, headers: Iterable[tuple[str, str]] = ()
    ) -> Answer:
        """Send a request and read its whole answer."""
        await self.request(method, target, body, headers)
        return await self.read_answer()

    async def read_head(self) -> Answer:
        """Wait for the answer's head, and return what fills by itself; EOFError when it was cut before."""
        await self.connection.wait(lambda: self._gone or self.answer is not None)
        if self.answer is None:
            raise EOFError
        return self.answer

    async def read_answer(self) -> Answer:
        """Wait for the end of the answer; one that was cut is not `complete`."""
        answer = await self.read_head()
        await self.connection.wait(lambda: self._gone)
        return answer

    async def read_events(self, answer: Answer, count: int) -> list[bytes]:
        """Wait until that many events have come; EOFError when the answer ends before."""
        await self.connection.wait(lambda: self._gone or len(events(answer.body)) >= count)
        if len(events(answer.body)) < count:
            raise EOFError(answer.body)
        return events(answer.body)

    async def cancel(self) -> None:
        """Leave, and let the others of the connection be."""
        self.connection.h2.reset_stream(self.number, ErrorCodes.CANCEL)
        await self.connection.flush()

    async def leave(self, way: str) -> None:
        """Leave in one of `WAYS`; in all but the first the others leave, too."""
        match way:
            case "cancel":
                await self.cancel()
            case "close":
                await self.connection.stream.aclose()
            case "reset":
                reset(self.connection.socket)
            case "half close":
                await self.connection.half_close()
            case "go away":
                await self.connection.go_away()

    @property
    def _gone(self) -> bool:
        return self.ended or self.reset_by is not None or self.connection.closed

    def take(self, event: Event) -> None:
        """Note what has come."""
        match event:
            case InformationalResponseReceived():
                self.informed.append(dict(event.headers)[b":status"].decode())
            case ResponseReceived():
                (_, status), *headers = event.headers
                self.answer = Answer(int(status), [(n.decode(), v.decode("latin-1")) for n, v in headers])
            case DataReceived():
                assert self.answer is not None
                self.answer.chunks.append(event.data)
            case StreamEnded():
                self.ended = True
                if self.answer is not None:
                    self.answer.complete = True
            case StreamReset() if not self.ended:
                self.reset_by = event.error_code


class Connection:
    """A connection.

    Attributes:
        grants: Whether the server gets back the window that its answers have used.
        reading: Can be cancelled, to take nothing more.
        closed: Whether it has ended.
        broken: Whether by a reset.
        terminated: What the server has said when it went away.
        resets: The numbers and codes of streams that it has reset.
        received: All that has come.
    """

    def __init__(self, stream: trio.abc.Stream, socket: trio.SocketStream, window: int | None) -> None:
        self.stream = stream
        self.socket = socket
        self.grants = window is None
        self.streams: dict[int, Stream] = {}
        self.closed = False
        self.broken = False
        self.left = False  # what comes is not looked at
        self.terminated: ConnectionTerminated | None = None
        self.received = bytearray()
        self.resets: list[tuple[int, ErrorCodes | int]] = []
        self.reading = trio.CancelScope()
        self.h2 = H2Connection(
            H2Configuration(
                client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False
            )
        )
        if window is not None:
            self.h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
            self.h2.local_settings.acknowledge()
        self.h2.initiate_connection()
        self._news = trio.lowlevel.ParkingLot()
        self._writing = trio.Lock()

    def new(self) -> Stream:
        """Return what can make one request."""
        return Stream(self)

    async def ask(self, *request: Any) -> Answer:
        """Make a request and read its whole answer."""
        return await self.new().ask(*request)

    async def flush(self) -> None:
        """Send what h2 has ready."""
        async with self._writing:
            await self.stream.send_all(self.h2.data_to_send())

    async def send(self, data: bytes) -> None:
        """Send bytes as they are, past h2."""
        async with self._writing:
            await self.stream.send_all(data)

    async def half_close(self) -> None:
        """Send a FIN but go on reading."""
        self.left = True
        async with self._writing:
            await self.socket.send_eof()

    async def go_away(self) -> None:
        """Say that this is the end, and do nothing about it."""
        self.left = True
        self.h2.close_connection()
        await self.flush()

    async def wait(self, condition: Callable[[], object]) -> None:
        """Wait for something that is made true by what comes."""
        with trio.fail_after(20):
            while not condition():
                await self._news.park()

    async def read(self) -> None:
        """Take what comes, to the end of the connection or for as long as it may."""
        with self.reading:
            try:
                while data := await self.stream.receive_some(65536):
                    if not self.left:
                        await self._take(bytes(data))
            except trio.BrokenResourceError:
                self.broken = True
            except trio.ClosedResourceError:
                pass
        if self.reading.cancelled_caught:
            return
        self.closed = True
        self._news.unpark_all()

    async def _take(self, data: bytes) -> None:
        self.received += data
        for event in self.h2.receive_data(data):
            if isinstance(event, StreamReset):
                self.resets.append((event.stream_id, event.error_code))
            if isinstance(event, ConnectionTerminated):
                self.terminated = event
            if isinstance(event, DataReceived) and self.grants:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            number = getattr(event, "stream_id", None)
            if number in self.streams:
                self.streams[number].take(event)
        self._news.unpark_all()
        await self.flush()


@asynccontextmanager
async def http2_to(
    url: str, *, tls: ssl.SSLContext | None = None, window: int | None = None
) -> AsyncIterator[Connection]:
    """Connect, by prior knowledge or over TLS; leaving closes the connection.

    Args:
        url: Of the server.
        tls: Offers what it offers.
        window: Of each stream, which is then never opened any further.
    """
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    socket = await trio.open_tcp_stream(parts.hostname, parts.port)
    stream: trio.abc.Stream = socket
    if tls is not None:
        stream = trio.SSLStream(socket, tls, server_hostname=parts.hostname, https_compatible=True)
    async with stream, trio.open_nursery() as nursery:
        connection = Connection(stream, socket, window)
        await connection.flush()
        nursery.start_soon(connection.read)
        yield connection
        nursery.cancel_scope.cancel()
