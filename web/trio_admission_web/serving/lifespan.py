"""Background tasks of the application, and what their crash means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypercorn.utils import LifespanFailureError
from quart_trio.asgi import TrioASGILifespan

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable


class LoudLifespan(TrioASGILifespan):
    """Quart-Trio's lifespan, whose nursery (`app.nursery`) lives from start-up to shutdown, made loud.

    Hypercorn logs the crash of a lifespan and goes on serving without it. The one error that it lets through
    says that the lifespan has failed, so a crash is turned into that: requests are cut, and the process ends
    with a traceback.
    """

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Run the application's start-up, its background tasks and its shutdown."""
        try:
            await super().__call__(receive, send)
        except* LifespanFailureError:
            raise
        except* Exception as crash:
            raise LifespanFailureError("a background task", repr(crash.exceptions)) from crash
