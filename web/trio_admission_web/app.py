"""The application: settings -> backend, gateway, routes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from trio_admission import ParkBudget

from .backend import Backend
from .gateway import Gateway
from .malformed import refuse
from .network import connect
from .options import PREFIX
from .routes import add_routes
from .serving.app import ServingApp
from .supervision import USUAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from .settings import Settings
    from .supervision import Patience
    from .upstream import Network


log: Final = logging.getLogger(__name__)


class App(ServingApp):
    """The gateway as an ASGI application. ``gateway`` is what its requests share."""

    gateway: Gateway

    def refusal(self, status: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Refuse what is no request, as others are refused."""
        return refuse(self.gateway.metrics, status)

    def apply(self, settings: Settings) -> list[str]:
        """Use other keys and limits from now on, and return what cannot be changed; see `Gateway.apply`."""
        self.config["MAX_CONTENT_LENGTH"] = settings.max_body
        self.config["BODY_TIMEOUT"] = settings.body_deadline
        return self.gateway.apply(settings)


def create_app(
    settings: Settings,
    *,
    network: Network = connect,
    progress: Callable[[str], None] | None = None,
    patience: Patience = USUAL,
) -> App:
    """Make the application.

    Args:
        settings: What it is told.
        network: Opens connections, by host and port; a test may have something else than TCP.
        progress: Gets a line for each step in the start of a server that is ours; None = they are logged.
        patience: When such a server is started again.

    Raises:
        EngineError: There is no such program or model to start.
        ToolLoadError: There is no such tool.
    """
    budget = None if settings.max_parked is None else ParkBudget(settings.max_parked)
    backends = [
        Backend(each, settings.admission, network, budget, progress=progress, patience=patience)
        for each in settings.backends
    ]
    app = App(__name__)
    app.gateway = Gateway(settings, backends)
    app.apply(settings)
    app.url_map.merge_slashes = False  # it would answer with a redirect in HTML
    add_routes(app, app.gateway)
    watching = trio.CancelScope()

    async def watch() -> None:
        with watching:
            async with trio.open_nursery() as nursery:
                for backend in backends:
                    nursery.start_soon(backend.run)
                if budget is None:
                    for backend in backends:
                        while not backend.condition.serves:
                            await backend.condition.changed()
                    _warn_of_parks(sum(each.pool.statistics().slots for each in backends))

    @app.before_serving
    async def start() -> None:
        app.nursery.start_soon(watch)

    @app.after_serving
    async def stop() -> None:
        watching.cancel()

    return app


def _warn_of_parks(slots: int) -> None:
    """Say so if the default budget, the formula of `ParkBudget.limit`, lets nobody park."""
    threads = trio.to_thread.current_default_thread_limiter().total_tokens
    if threads - max(2, threads // 8) <= slots:
        news = "with %d slots nobody is parked during an approval, unless %sMAX_PARKED says how many may be"
        log.warning(news, slots, PREFIX)
