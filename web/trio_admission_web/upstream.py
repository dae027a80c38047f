"""One llama-server's HTTP: what is sent to it, and what each of its failures is called.

The client is httpcore2, the layer below httpx2. What httpx2 adds - cookies, redirects, proxies from the
environment, decoding, default headers - a gateway must not do, its layers cost more than the rest of the way
for each event, and one of them is left to the garbage collector when an answer is given up half-way.
"""

from __future__ import annotations

import math
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpcore2
import trio

from .problems import ProblemError, bad_gateway, upstream_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from .settings import BackendSettings

Header = tuple[bytes, bytes]

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
        self,
        response: httpcore2.Response,
        chunks: AsyncIterator[bytes],
        silence: trio.CancelScope,
        idle: float,
    ) -> None:
        self.status = response.status
        self.content_type = next((v for name, v in response.headers if name.lower() == b"content-type"), None)
        self._chunks = chunks
        self._silence = silence
        self._idle = idle
        self._patience = silence.deadline - trio.current_time()  # what is left of it for the first byte
        silence.deadline = math.inf  # only reading is timed, not what the caller does in between

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of events."""
        kind = (self.content_type or b"").split(b";")[0].strip().lower()
        return self.status == 200 and kind == b"text/event-stream"

    def __aiter__(self) -> OpenAnswer:
        return self

    async def __anext__(self) -> bytes:
        self._silence.deadline = trio.current_time() + self._patience
        data = await anext(self._chunks)
        self._silence.deadline = math.inf
        self._patience = self._idle
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

    def __init__(
        self, settings: BackendSettings, network: httpcore2.AsyncNetworkBackend | None = None
    ) -> None:
        self._settings = settings
        address = urlsplit(settings.url)
        self._scheme = address.scheme
        self._host = address.hostname or ""
        self._port = address.port
        self._base = address.path.rstrip("/").encode()
        self._own_headers: list[Header] = [
            (b"host", address.netloc.encode()),
            (b"accept-encoding", b"identity"),
        ]
        if settings.api_key is not None:
            self._own_headers.append((b"authorization", b"Bearer " + settings.api_key.encode()))
        self._timeout = {"connect": settings.connect_limit, "write": _WRITE_LIMIT}
        make_pool = partial(
            httpcore2.AsyncConnectionPool,
            ssl_context=httpcore2.default_ssl_context() if address.scheme == "https" else None,
            max_connections=None,
            network_backend=network,
        )
        self._kept = make_pool(keepalive_expiry=_KEEPALIVE_EXPIRY)
        # llama-server announces keep-alive and closes after each stream. A request that meets such a
        # connection fails, and whether the server has begun to work on it cannot be told.
        self._fresh = make_pool(max_keepalive_connections=0)

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
        """Send a request on a connection of its own and hold its answer open for the block.

        Entering blocks until the head of the answer is there. Leaving closes the connection, which tells
        the server at once that nobody wants the rest. The request is sent once, whatever happens.

        Args:
            method: The HTTP method.
            path: A path that this program knows, never one that a client sent.
            headers: Sent besides the gateway's own.
            query: The client's query string, as it came.
            body: The whole body.

        Raises:
            ProblemError: `bad_gateway`, when the connection fails or its bytes are no HTTP;
                `upstream_timeout`, when a limit of the settings passes. Both also out of the block.
        """
        request = self._request(method, path, headers, query, body)
        async with self._hold(self._fresh.handle_async_request, request) as answer:
            yield answer

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[Header] = (),
        query: bytes = b"",
        body: bytes = b"",
    ) -> WholeAnswer:
        """Send a request that makes the server decode nothing, and read its whole answer.

        Connections are kept for a while; the request is sent a second time if it met one that the server
        had closed in the meantime. Arguments and errors are those of `open`.
        """
        request = self._request(method, path, headers, query, body)
        async with self._hold(self._send_twice, request) as answer:
            return await answer.whole()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._kept.aclose()
        await self._fresh.aclose()

    @asynccontextmanager
    async def _hold(
        self, send: Callable[[httpcore2.Request], Awaitable[httpcore2.Response]], request: httpcore2.Request
    ) -> AsyncIterator[OpenAnswer]:
        with _failures():
            with trio.CancelScope() as silence:
                silence.deadline = trio.current_time() + self._settings.first_byte_limit
                response = await send(request)
                async with aclosing(response), aclosing(response.aiter_stream()) as chunks:
                    yield OpenAnswer(response, chunks, silence, self._settings.idle_limit)
            if silence.cancelled_caught:
                raise ProblemError(upstream_timeout())

    def _request(
        self, method: str, path: str, headers: Sequence[Header], query: bytes, body: bytes
    ) -> httpcore2.Request:
        target = self._base + path.encode() + (b"?" + query if query else b"")
        return httpcore2.Request(
            method,
            httpcore2.URL(scheme=self._scheme, host=self._host, port=self._port, target=target),
            headers=[*self._own_headers, (b"content-length", b"%d" % len(body)), *headers],
            content=body,
            extensions={"timeout": self._timeout},
        )

    async def _send_twice(self, request: httpcore2.Request) -> httpcore2.Response:
        """Send, and send again if an old connection failed."""
        connected = False

        async def trace(event: str, _info: dict[str, Any]) -> None:
            nonlocal connected
            connected = connected or event == "connection.connect_tcp.started"

        request.extensions["trace"] = trace
        try:
            return await self._kept.handle_async_request(request)
        except (httpcore2.NetworkError, httpcore2.RemoteProtocolError):
            if connected:
                raise
            return await self._kept.handle_async_request(request)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except httpcore2.TimeoutException as error:
        raise ProblemError(upstream_timeout()) from error
    except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise ProblemError(bad_gateway()) from error
