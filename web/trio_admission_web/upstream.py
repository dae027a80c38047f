"""One llama-server's HTTP: what is sent to it, and what each of its failures is called.

Only the transport of httpx2 is used. Cookies, redirects, proxies from the environment, decoding and
default headers are things that a gateway must not do, and without that layer a request also costs less.
"""

from __future__ import annotations

import logging
import math
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2
import trio

from .problems import ProblemError, bad_gateway, invalid_request, upstream_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from .settings import Settings

Header = tuple[bytes, bytes]

log: Final = logging.getLogger(__name__)

# llama-server closes an idle connection after 5 s; ours must be the side that gives it up.
_KEEPALIVE_EXPIRY: Final = 3.5
_WRITE_LIMIT: Final = 30.0
# Answers that are read whole are errors and lists of models.
_WHOLE_LIMIT: Final = 16 * 2**20

_NOT_PASSED_ON: Final = frozenset({
    # hop by hop
    b"connection", b"expect", b"http2-settings", b"keep-alive", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
    # the client's credentials
    b"api-key", b"authorization", b"cookie", b"proxy-authorization", b"x-api-key",
    # the gateway's to say
    b"accept-encoding", b"content-length", b"host", b"x-request-id",
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


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that was read to its end."""

    status: int
    content_type: bytes | None
    body: bytes


class OpenAnswer:
    """An answer whose head has come. Iterating gives its body as it comes, undecoded."""

    def __init__(
        self, response: httpx2.Response, chunks: AsyncIterator[bytes], silence: trio.CancelScope, idle: float
    ) -> None:
        self.status = response.status_code
        self.content_type = next(
            (v for name, v in response.headers.raw if name.lower() == b"content-type"), None
        )
        self._chunks = chunks
        self._silence = silence
        self._idle = idle
        self._deadline = silence.deadline  # the first byte's; the server gets no more time than `open` gave
        silence.deadline = math.inf  # only reading is timed, not what the caller does in between

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of events."""
        kind = (self.content_type or b"").split(b";")[0].strip().lower()
        return self.status == 200 and kind == b"text/event-stream"

    def __aiter__(self) -> OpenAnswer:
        return self

    async def __anext__(self) -> bytes:
        self._silence.deadline = self._deadline
        data = await anext(self._chunks)
        self._silence.deadline = math.inf
        self._deadline = trio.current_time() + self._idle
        return data

    async def whole(self) -> WholeAnswer:
        """Read the rest.

        Raises:
            ProblemError: `bad_gateway`, when it is longer than anything that is read whole should be.
        """
        body = bytearray()
        async for data in self:
            body += data
            if len(body) > _WHOLE_LIMIT:
                raise ProblemError(bad_gateway())
        return WholeAnswer(self.status, self.content_type, bytes(body))


class Upstream:
    """The HTTP client of one server.

    It has no limit of connections: how many requests may be upstream is the pool's to say.
    """

    def __init__(self, settings: Settings, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        self._address = httpx2.URL(settings.upstream)
        self._base = self._address.raw_path.rstrip(b"/")
        self._own_headers: list[Header] = [(b"accept-encoding", b"identity")]
        if settings.upstream_api_key is not None:
            self._own_headers.append((b"authorization", b"Bearer " + settings.upstream_api_key.encode()))
        self._transport = transport or httpx2.AsyncHTTPTransport(
            trust_env=False,
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_EXPIRY),
        )

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

        Entering blocks until the head of the answer is there. Leaving closes the connection unless the
        body was read to its end, which tells the server at once that nobody wants the rest.

        Args:
            method: The HTTP method.
            path: A path that this program knows, never one that a client sent.
            headers: Sent besides the server's key.
            query: The client's query string, as it came.
            body: The whole body.

        Raises:
            ProblemError: `bad_gateway`, when the connection fails or its bytes are no HTTP;
                `upstream_timeout`, when a limit of the settings passes. Both also out of the block.
        """
        request = self._request(method, path, headers, query, body)
        with _failures():
            with trio.CancelScope() as silence:
                silence.deadline = trio.current_time() + self._settings.first_byte_limit
                response = await self._send(request)
                async with aclosing(response), aclosing(response.aiter_raw()) as chunks:
                    yield OpenAnswer(response, chunks, silence, self._settings.idle_limit)
            if silence.cancelled_caught:
                raise ProblemError(upstream_timeout())

    async def fetch(
        self, method: str, path: str, *, headers: Sequence[Header] = (), query: bytes = b"", body: bytes = b""
    ) -> WholeAnswer:
        """Send a request and read its whole answer; see `open`."""
        async with self.open(method, path, headers=headers, query=query, body=body) as answer:
            return await answer.whole()

    async def aclose(self) -> None:
        """Close the connections that are kept for later."""
        await self._transport.aclose()

    def _request(
        self, method: str, path: str, headers: Sequence[Header], query: bytes, body: bytes
    ) -> httpx2.Request:
        target = self._base + path.encode() + (b"?" + query if query else b"")
        try:
            url = self._address.copy_with(raw_path=target)
        except httpx2.InvalidURL:
            raise ProblemError(invalid_request("The query string is not acceptable.")) from None
        timeout = httpx2.Timeout(
            connect=self._settings.connect_limit, write=_WRITE_LIMIT, read=None, pool=None
        )
        return httpx2.Request(
            method,
            url,
            headers=[*headers, *self._own_headers],
            content=body,
            extensions={"timeout": timeout.as_dict()},
        )

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send, and send once more if the connection was one that the server has closed in the meantime."""
        connected = False

        async def trace(event: str, _info: dict[str, Any]) -> None:
            nonlocal connected
            connected = connected or event == "connection.connect_tcp.started"

        request.extensions["trace"] = trace
        try:
            return await self._transport.handle_async_request(request)
        except httpx2.TransportError as error:
            # On a new connection the server may have begun to work on the request before it failed.
            if connected or not _closed_without_a_byte(error):
                raise
            return await self._transport.handle_async_request(request)


def _closed_without_a_byte(error: httpx2.TransportError) -> bool:
    """Whether a connection ended before its answer began, as opposed to an answer that is no HTTP."""
    if isinstance(error, httpx2.RemoteProtocolError):
        return error.__cause__ is None or error.__cause__.__cause__ is None  # garbage has h11's error there
    return isinstance(error, httpx2.ReadError | httpx2.WriteError)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException as error:
        log.warning("backend too slow: %s", type(error).__name__)
        raise ProblemError(upstream_timeout()) from error
    except httpx2.TransportError as error:
        log.warning("backend failed: %s: %s", type(error).__name__, error)
        raise ProblemError(bad_gateway()) from error
