"""The application: settings -> backend, gateway, routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from .admission import Gateway
from .backend import Backend
from .routes import add_routes
from .serving.app import ServingApp

if TYPE_CHECKING:
    import httpcore2

    from .settings import Settings


class App(ServingApp):
    """The gateway as an ASGI application. ``gateway`` is what its requests share."""

    gateway: Gateway


def create_app(settings: Settings, *, network: httpcore2.AsyncNetworkBackend | None = None) -> App:
    """Make the application.

    Args:
        settings: What it is told.
        network: Connects to the server in place of sockets; for tests.
    """
    backend = Backend("default", settings, network)
    app = App(__name__)
    app.gateway = Gateway(settings, backend)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body
    app.config["BODY_TIMEOUT"] = settings.body_deadline
    app.url_map.merge_slashes = False  # it would answer with a redirect in HTML
    add_routes(app, app.gateway)
    learning = trio.CancelScope()

    async def learn() -> None:
        with learning:
            await backend.learn()

    @app.before_serving
    async def start() -> None:
        app.nursery.start_soon(learn)

    @app.after_serving
    async def stop() -> None:
        learning.cancel()
        await backend.upstream.aclose()

    return app
