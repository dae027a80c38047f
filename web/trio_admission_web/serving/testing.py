"""A test client that ends when the application does."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

import trio
from quart_trio.testing import TrioClient
from quart_trio.testing.connections import TestHTTPConnection


class ServingTestConnection(TestHTTPConnection):
    """A test request that may be disconnected; Quart-Trio's own then waits for ever for more answer."""

    async def __aenter__(self) -> Self:
        """Start the application with the request."""
        self._nursery_manager = trio.open_nursery()
        nursery = await self._nursery_manager.__aenter__()
        nursery.start_soon(self._run_app)
        return self

    async def disconnect(self) -> None:
        """Go away, as a client would. Doing so twice is the same as once."""
        # Shielded: a test that is cancelled or fails would leave the application's tasks behind here.
        with suppress(trio.ClosedResourceError), trio.CancelScope(shield=True):
            await super().disconnect()

    async def _run_app(self) -> None:
        with self._client_send:
            await self.app(self.scope, self._asgi_receive, self._asgi_send)  # type: ignore[arg-type]


class ServingTestClient(TrioClient):
    """Makes requests to a ServingApp in the process, without sockets."""

    http_connection_class = ServingTestConnection
