"""A real HTTP client of a fake llama-server, its connections in memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import httpcore2
import httpx2
import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trio_admission.testing.fake_llama_server import FakeLlamaServer, MemoryStream


class _Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 (theirs)
        try:
            with trio.fail_after(math.inf if timeout is None else timeout):
                return await self._stream.receive_some(max_bytes)
        except trio.TooSlowError as error:
            raise httpcore2.ReadTimeout(error) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.ReadError(error) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 (theirs)
        try:
            with trio.fail_after(math.inf if timeout is None else timeout):
                await self._stream.send_all(buffer)
        except trio.TooSlowError as error:
            raise httpcore2.WriteTimeout(error) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.WriteError(error) from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.readable if info == "is_readable" else None


class _Network(httpcore2.AsyncNetworkBackend):
    def __init__(self, server: FakeLlamaServer) -> None:
        self._server = server

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (theirs)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        await trio.lowlevel.checkpoint()
        try:
            return _Stream(self._server.connect())
        except OSError as error:
            raise httpcore2.ConnectError(error) from error


def upstream_transport(server: FakeLlamaServer) -> httpx2.AsyncHTTPTransport:
    """Make a transport that reaches the server whatever host it is asked for.

    Its pool counts idle seconds on the real clock, which stands still in virtual time; that the server closed
    a connection it notices all the same, as on sockets.
    """
    transport = httpx2.AsyncHTTPTransport(
        verify=False, trust_env=False, limits=httpx2.Limits(max_connections=None, keepalive_expiry=3.5)
    )
    transport._pool._network_backend = _Network(server)
    return transport
