"""One llama-server's HTTP: what is sent to it, and what each of its failures is called.

Each request has a connection of its own. llama-server announces keep-alive and closes after each stream all
the same; a request that met such a connection would fail, and whether the server had begun to work on it
could not be told. So nothing is ever sent twice, and the end of a request is the end of its connection, which
tells the server that nobody wants the rest.

h11 reads the head of an answer. The body of a stream is a chunk for each token, and is `framing`'s.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import h11
import trio

from .framing import FramingError, body_of
from .network import connect
from .problems import (
    ProblemError,
    bad_gateway,
    invalid_request,
    key_refused,
    unreachable,
    upstream_timeout,
)
from .wire.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    from .framing import Body
    from .problems import Problem
    from .settings import BackendSettings

VIA: Final = "admission-via"
"""A header that each gateway adds its name to. Those of others are passed on: only who meets its own is in a
circle."""
OUR_NAME: Final = token_hex(8)
"""That of this process, which is one gateway."""

Header = tuple[bytes, bytes]
Network = Callable[[str, int], Awaitable[trio.abc.Stream]]

_READ: Final = 64 * 2**10
_HEAD_LIMIT: Final = 128 * 2**10
# Answers that are read whole are errors and lists of models.
_WHOLE_LIMIT: Final = 16 * 2**20
_SECRET = 8  # bytes of a key at least; shorter ones may be a word of the error
_LOADING: Final = re.compile(rb'"message"\s*:\s*"Loading model"')

_NOT_PASSED_ON: Final = frozenset({
    # hop by hop
    b"connection", b"expect", b"http2-settings", b"keep-alive", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
    # the client's credentials
    b"api-key", b"authorization", b"cookie", b"proxy-authorization", b"x-api-key",
    # the gateway's to say
    b"accept-encoding", b"admission-parent", b"admission-resume", b"content-length", b"host", b"x-request-id",
    # change what the server does: one makes it go on after a disconnect, the other is echoed by its CORS
    b"x-conversation-id", b"origin",
})  # fmt: skip


def passed_on(headers: Iterable[Header]) -> list[Header]:
    """Return those of a client's headers that the server may see. Names must be in lower case."""
    headers = list(headers)
    named = {
        name.strip().lower()
        for field, value in headers
        if field == b"connection"
        for name in value.split(b",")
    }
    return [(field, value) for field, value in headers if field not in _NOT_PASSED_ON and field not in named]


class LostError(ProblemError):
    """Raised when there is no connection, or the server has ended it too early.

    Args:
        problem: What the client is told.
        can_retry: Whether nothing of an answer had come, so that the request may be sent once more.
    """

    def __init__(self, problem: Problem, *, can_retry: bool = True) -> None:
        super().__init__(problem)
        self.can_retry = can_retry


class KeyRefusedError(ProblemError):
    """Raised for a 401 of a server that is known to refuse the gateway's own key.

    It never sees a key of a client, so its own words would mislead.
    """


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that was read to its end."""

    status: int
    content_type: bytes | None
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """What else of its head is the client's to know."""

    @property
    def is_loading(self) -> bool:
        """Whether it says that the server loads its model, as llama-server says it at every address."""
        return self.status == 503 and _LOADING.search(self.body) is not None


class _Connection:
    """Reads from a stream, with a limit to the server's silence. A reader's own time is not the server's."""

    def __init__(self, stream: trio.abc.Stream, silence: trio.CancelScope) -> None:
        self._stream = stream
        self._silence = silence
        self._has_heard = False
        self._patience = math.inf

    async def read(self) -> bytes:
        """Wait for bytes; none mean that the server has closed."""
        try:
            data = await self._stream.receive_some(_READ)
        except (OSError, trio.BrokenResourceError) as error:
            raise self.lost() from error
        self._has_heard |= bool(data)
        return bytes(data)

    def stop_clock(self) -> None:
        """Keep what is left of the limit for `start_clock`."""
        self._patience = self._silence.deadline - trio.current_time()
        self._silence.deadline = math.inf

    def start_clock(self) -> None:
        """Let the limit go on."""
        self.renew(self._patience)

    def renew(self, limit: float) -> None:
        """Let the server be silent for so long from now on."""
        self._silence.deadline = trio.current_time() + limit

    def lost(self) -> LostError:
        """Return what to raise when it has ended too early."""
        return LostError(bad_gateway(), can_retry=not self._has_heard)


class OpenAnswer:
    """An answer whose head has come. Iterating gives its body as it comes, undecoded."""

    def __init__(
        self, head: h11.Response, body: Body, come: bytes, connection: _Connection, idle: float, key: bytes
    ) -> None:
        self.status = head.status_code
        named = dict(head.headers)
        self.content_type = named.get(b"content-type")
        self._retry_after = named.get(b"retry-after", b"")
        self._body = body
        self._come = come
        self._connection = connection
        self._idle = idle
        self._key = key
        self._pulse = Pulse() if self.is_event_stream else None
        self.has_begun = False
        """Whether anything of the body has come; of a stream of events, more than comments and pings."""

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of events."""
        kind = (self.content_type or b"").split(b";")[0].strip().lower()
        return self.status == 200 and kind == b"text/event-stream"

    def __aiter__(self) -> OpenAnswer:
        return self

    async def __anext__(self) -> bytes:
        self._connection.start_clock()
        try:
            if piece := await self._read():
                return piece
        finally:
            self._connection.stop_clock()
        raise StopAsyncIteration

    async def _read(self) -> bytes:
        """Return the next piece of the body; none at its end."""
        data, self._come = self._come, b""
        while not self._body.ended:
            if not data and not (data := await self._connection.read()):
                self._end()
                break
            if piece := self._body.feed(data):
                if self._pulse is None or self._pulse.feed(piece):
                    self.has_begun = True
                    self._connection.renew(self._idle)
                return piece
            data = b""
        return b""

    def _end(self) -> None:
        try:
            self._body.end()
        except FramingError as error:
            raise self._connection.lost() from error

    async def whole(self) -> WholeAnswer:
        """Read the rest, without the gateway's own key where an error repeats what it was sent.

        Raises:
            ProblemError: `bad_gateway`, when it is longer than anything that is read whole should be.
        """
        body = bytearray()
        async for data in self:
            body += data
            if len(body) > _WHOLE_LIMIT:
                raise ProblemError(bad_gateway())
        if len(self._key) >= _SECRET and self.status >= 400:
            body = body.replace(self._key, b"[key]")
        headers = {}
        if self.status in {429, 503} and self._retry_after:
            headers["Retry-After"] = self._retry_after.decode("latin-1")
        return WholeAnswer(self.status, self.content_type, bytes(body), headers)


class Upstream:
    """The HTTP client of one server.

    It has no limit of connections: how many requests may be upstream is the pool's to say.

    Args:
        settings: Its limits, and its address and key if it has one all the time; see `point_at`.
        network: Opens connections, by host and port; a test may have something else than TCP.
        via: The name of the gateway that sends; empty for other clients.

    Attributes:
        key_is_refused: Whether the server is known to refuse the gateway's key, whatever it is asked.
    """

    def __init__(self, settings: BackendSettings, network: Network = connect, *, via: str = "") -> None:
        self._settings = settings
        self._via = via
        self._network = network
        self.point_at(settings.url, settings.api_key)

    def point_at(self, url: str | None, api_key: str | None = None) -> None:
        """Send what comes from now on to this address, with this key. None = there is none to send it to."""
        self.url = url
        self.shows_key = api_key is not None
        self._key = (api_key or "").encode()
        self.key_is_refused = False
        address = urlsplit(url or "")
        self._host = address.hostname
        self._port = address.port or (443 if address.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if address.scheme == "https" else None
        self._base = address.path.rstrip("/").encode()
        self._own_headers: list[Header] = [
            (b"host", address.netloc.encode()),
            (b"connection", b"close"),
            (b"accept-encoding", b"identity"),
        ]
        if self._via:
            self._own_headers.append((VIA.encode(), self._via.encode()))
        if api_key is not None:
            self._own_headers.append((b"authorization", b"Bearer " + api_key.encode()))

    @property
    def origin(self) -> str:
        """The address without its path, for the log."""
        return "{0.scheme}://{0.netloc}".format(urlsplit(self.url or ""))

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[Header] = (),
        query: bytes = b"",
        body: bytes = b"",
    ) -> AsyncIterator[OpenAnswer]:
        """Send a request and hold its answer open for the block.

        Entering blocks until the head of the answer is there. Leaving closes the connection.

        Args:
            method: The HTTP method.
            path: A path that this program knows, never one that a client sent.
            headers: Sent besides the gateway's own.
            query: The client's query string, as it came.
            body: The whole body.

        Raises:
            LostError: `bad_gateway`, when there is no connection or it ends too early.
            KeyRefusedError: `bad_gateway`, for a 401 while ``key_is_refused``.
            ProblemError: `bad_gateway`, when its bytes are no HTTP; `upstream_timeout`, when a limit of the
                settings passes. All of them also out of the block.
        """
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
        head = self._head(parser, method, path, headers, query, len(body))
        with _failures():
            with trio.CancelScope() as silence:
                silence.deadline = trio.current_time() + self._settings.first_byte_limit
                async with await self._connect() as stream:
                    await _send(stream, head, body)
                    connection = _Connection(stream, silence)
                    answer = await _read_head(parser, connection)
                    if answer.status_code == 401 and self.key_is_refused:
                        raise KeyRefusedError(key_refused())
                    framed = body_of(method, answer.status_code, answer.headers)
                    come, _ = parser.trailing_data
                    connection.stop_clock()
                    idle = self._settings.idle_limit
                    yield OpenAnswer(answer, framed, come, connection, idle, self._key)
            if silence.cancelled_caught:
                raise ProblemError(upstream_timeout())

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[Header] = (),
        query: bytes = b"",
        body: bytes = b"",
    ) -> WholeAnswer:
        """Send a request and read its whole answer. Arguments and errors are those of `open`."""
        async with self.open(method, path, headers=headers, query=query, body=body) as answer:
            return await answer.whole()

    def _head(
        self,
        parser: h11.Connection,
        method: str,
        path: str,
        headers: Sequence[Header],
        query: bytes,
        length: int,
    ) -> bytes:
        target = self._base + path.encode() + (b"?" + query if query else b"")
        framing = (b"content-length", b"%d" % length)
        try:
            request = h11.Request(
                method=method, target=target, headers=[*self._own_headers, framing, *headers]
            )
        except h11.LocalProtocolError as error:  # HTTP/2 lets a client say what HTTP/1 cannot
            raise ProblemError(
                invalid_request("The request has a header that cannot be passed on.")
            ) from error
        return parser.send(request) or b""

    async def _connect(self) -> trio.abc.Stream:
        if self._host is None:
            raise LostError(unreachable())
        with trio.fail_after(self._settings.connect_limit):
            try:
                stream = await self._network(self._host, self._port)
            except OSError as error:
                raise LostError(unreachable()) from error
            if self._tls is None:
                return stream
            secure = trio.SSLStream(stream, self._tls, server_hostname=self._host, https_compatible=True)
            try:
                await secure.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            return secure


async def _send(stream: trio.abc.Stream, head: bytes, body: bytes) -> None:
    try:
        if len(body) <= _READ:
            await stream.send_all(head + body)
        else:
            await stream.send_all(head)
            await stream.send_all(body)
    except trio.BrokenResourceError:
        pass  # a server may refuse a body before it has read it, and its answer can still be read


async def _read_head(parser: h11.Connection, connection: _Connection) -> h11.Response:
    while True:
        event = parser.next_event()
        if isinstance(event, h11.Response):
            return event
        if event is h11.NEED_DATA:
            if not (data := await connection.read()):
                raise connection.lost() from EOFError()
            parser.receive_data(data)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except trio.TooSlowError as error:
        raise ProblemError(upstream_timeout()) from error
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise LostError(bad_gateway()) from error
    except (h11.RemoteProtocolError, FramingError) as error:
        raise ProblemError(bad_gateway()) from error
