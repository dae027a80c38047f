"""What all requests share: the settings, the backends, the keys, the counters, and each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

import trio

from . import problems
from .condition import AWAY_RETRY
from .keys import KeyRing
from .metrics import Metrics
from .resumes import Resumes
from .routing import Directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .backend import Backend
    from .passage import Passage
    from .settings import Settings

_FIXED: Final = (
    *("backends", "admission", "host", "port", "unix", "tls_cert", "tls_key", "shutdown_deadline"),
    *("tools", "approval_ttl", "max_parked"),
)
# Seconds until a client that was refused because of a shutdown may find the next gateway.
DRAIN_RETRY: Final = 5


@final
class Gateway:
    """One gateway.

    Args:
        settings: What it is told.
        backends: At least one; the first is the default one.
    """

    def __init__(self, settings: Settings, backends: Iterable[Backend]) -> None:
        self.settings = settings
        self.backends = {each.name: each for each in backends}
        self.directory = Directory(tuple(self.backends.values()))
        self.keys = KeyRing(settings.keys)
        self.metrics = Metrics(
            lambda: [each.pool.statistics() for each in self.backends.values()],
            lambda: {name: each.condition.state for name, each in self.backends.items()},
        )
        for each in self.backends.values():
            each.pool.add_instrument(self.metrics.pool_event)
            each.condition.on_give_up = self.give_up
        self.passages: set[Passage] = set()
        self.resumes = Resumes()
        self.draining = False

    @property
    def backend(self) -> Backend:
        """The default one."""
        return self.directory.backends[0]

    def line(self, backend: Backend) -> list[Passage]:
        """Return the passages that wait for a slot of a backend, next first."""
        waiting = (each for each in self.passages if each.backend is backend and each.position)
        return sorted(waiting, key=lambda each: each.position)

    def crowd(self, backend: Backend) -> int:
        """Return how many requests are on their way through a backend or to it."""
        return sum(1 for each in self.passages if each.backend is backend)

    def give_up(self, name: str) -> None:
        """Send everybody away who waits for the backend of that name, since it does not come back."""
        for each in self.passages:
            if each.backend.name == name and each.waits_for_backend:
                each.cancel(problems.backend_unavailable(retry_after=AWAY_RETRY))

    def apply(self, settings: Settings) -> list[str]:
        """Use other settings for all requests from now on; nobody who is here notices.

        Returns:
            What has changed too and stays as it was, since it takes a restart.
        """
        old = self.settings
        self.keys = KeyRing(settings.keys)
        self.settings = replace(settings, **{name: getattr(old, name) for name in _FIXED})
        return [name for name in _FIXED if getattr(settings, name) != getattr(old, name)]

    async def drain(self) -> None:
        """Refuse newcomers from now on; block until everybody who is here has been served.

        When this is cancelled, for lack of time, everybody who is still here is told so and sent away.
        """
        self.draining = True
        try:
            for backend in self.backends.values():
                await backend.pool.drained()
        except trio.Cancelled:
            for each in self.passages:
                each.cancel(problems.draining(retry_after=DRAIN_RETRY))
            for backend in self.backends.values():
                backend.hurry()
            raise
