"""A fake server and the gateway in front of it, over real sockets, in this process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.gateway import settings_for
from tests.support.serving import Server, serving, tasks, until
from trio_admission_web.app import App, create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.raw_client import RawClient
    from trio_admission.testing.fake_llama_server import FakeLlamaServer


@dataclass
class Stage:
    """A fake server and the gateway in front of it, both on loopback."""

    llama: FakeLlamaServer
    app: App
    server: Server

    @property
    def counts(self) -> tuple[int, int]:
        """Held and waiting."""
        statistics = self.app.gateway.backend.pool.statistics()
        return statistics.held, statistics.waiting

    @asynccontextmanager
    async def two_clients(self) -> AsyncIterator[tuple[RawClient, RawClient]]:
        """Connect twice to the gateway."""
        async with self.server.client() as one, self.server.client() as other:
            yield one, other


@asynccontextmanager
async def stage(llama: FakeLlamaServer, **settings: Any) -> AsyncIterator[Stage]:
    """Run both; afterwards nothing may be held, waiting, in flight or open."""
    async with llama, llama.listening() as url:
        before = tasks()
        app = create_app(settings_for(url, **settings))
        async with serving(app) as server:
            await until(lambda: app.gateway.backend.pool.statistics().slots == llama.total_slots)
            both = Stage(llama, app, server)
            yield both
            await until(lambda: both.counts == (0, 0) and not app.gateway.passages and not llama.in_flight)
        await until(lambda: not llama.open_connections)
        await until(lambda: tasks() == before)
