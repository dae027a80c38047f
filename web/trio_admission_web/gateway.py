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
    from collections.abc import Awaitable, Callable, Iterable

    from .arrival import Arrival
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
            each.condition.on_change = self.look_after_line
        self.passages: set[Passage] = set()
        self.resumes = Resumes()
        self.draining = False
        self._is_cut_off = False
        self.arrivals: set[Arrival] = set()
        self._received = trio.Event()

    @property
    def backend(self) -> Backend:
        """The default one."""
        return self.directory.backends[0]

    @property
    def outcome_of_cut(self) -> str:
        """What has become of a request that nothing in here has ended."""
        return "stopped" if self._is_cut_off else "client_gone"

    @property
    def requests(self) -> list[Arrival | Passage]:
        """All that are here, those whose body is still on its way included."""
        return [*self.arrivals, *self.passages]

    def line(self, backend: Backend) -> list[Passage]:
        """Return the passages that wait for a slot of a backend, next first."""
        waiting = (each for each in self.passages if each.backend is backend and each.position)
        return sorted(waiting, key=lambda each: each.position)

    def crowd(self, backend: Backend) -> int:
        """Return how many requests are on their way through a backend or to it."""
        return sum(1 for each in self.passages if each.backend is backend)

    def look_after_line(self) -> None:
        """Let nobody wait for a backend that is away if another one serves, or if it does not come back."""
        for backend in self.backends.values():
            if not backend.condition.serves:
                self._move_line(backend)
            if backend.condition.is_given_up:
                for each in self.passages:
                    if each.backend is backend and each.waits_for_backend:
                        each.cancel(problems.backend_unavailable(retry_after=AWAY_RETRY))

    def _move_line(self, backend: Backend) -> None:
        movable = [each for each in self.passages if each.backend is backend and each.can_move]
        lined_up: dict[str, trio.Event] = {}
        for each in sorted(movable, key=lambda each: (not each.has_slot, each.position)):
            other = self.directory.choose(each.model, crowd=self.crowd)
            if other.condition.serves and self._has_room(other):
                each.move(other, lined_up.get(other.name))
                lined_up[other.name] = each.has_lined_up

    def _has_room(self, backend: Backend) -> bool:
        slots = backend.pool.statistics().slots
        limit = self.settings.admission.line_limit(slots)
        return limit is None or self.crowd(backend) < slots + limit

    def apply(self, settings: Settings) -> list[str]:
        """Use other settings for all requests from now on; nobody who is here notices.

        Returns:
            What has changed too and stays as it was, since it takes a restart.
        """
        old = self.settings
        self.keys = KeyRing(settings.keys)
        self.settings = replace(settings, **{name: getattr(old, name) for name in _FIXED})
        return [name for name in _FIXED if getattr(settings, name) != getattr(old, name)]

    async def receive(self, arrival: Arrival, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Read a request's body. A drain waits for that too.

        Raises:
            ProblemError: `draining`, when a drain has run out of time; `cancelled`.
        """
        self.arrivals.add(arrival)
        try:
            return await arrival.body(read)
        finally:
            self.arrivals.discard(arrival)
            self._received.set()

    async def drain(self) -> None:
        """Refuse newcomers from now on; block until everybody who is here has been served.

        When this is cancelled, for lack of time, everybody who is still here is told so and sent away, unless
        they are cut off.
        """
        self.draining = True
        try:
            while self.arrivals:
                self._received = trio.Event()
                await self._received.wait()
            for backend in self.backends.values():
                await backend.pool.drained()
            for backend in self.backends.values():
                backend.retire()
        except trio.Cancelled:
            if self._is_cut_off:
                raise
            for each in self.requests:
                each.cancel(problems.draining(retry_after=DRAIN_RETRY))
            for backend in self.backends.values():
                backend.hurry()
            raise

    def cut_off(self) -> None:
        """Take note that whoever is still here does not leave, but loses the connection now."""
        self._is_cut_off = True
