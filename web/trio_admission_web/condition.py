"""Whether a backend can be asked now, and the hold on its pool while it cannot."""

from __future__ import annotations

import math
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Final, final

import trio

from .problems import ProblemError, backend_unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_admission import SlotPool

# Seconds until a backend that is away may be back: a small model loads in that time.
AWAY_RETRY: Final = 2


class State(Enum):
    """What a backend was doing when it was last asked."""

    LOADING = "loading"
    """It loads its model, or nobody has asked it yet."""
    READY = "ready"
    SLEEPING = "sleeping"
    """It has put its model away, and wakes up for a request."""
    UNKNOWN = "unknown"
    """It answers, but not as llama-server does; requests are sent all the same."""
    REFUSING = "refusing"
    """It refuses whatever the gateway sends, which is sent all the same: the client is told why."""
    WEDGED = "wedged"
    """It takes connections and does not answer."""
    GONE = "gone"
    """It cannot be reached."""

    @property
    def serves(self) -> bool:
        """Whether requests can be sent."""
        return self in {State.READY, State.SLEEPING, State.UNKNOWN, State.REFUSING}

    @property
    def is_good(self) -> bool:
        """Whether the backend says that it can serve requests."""
        return self in {State.READY, State.SLEEPING}


@final
class Condition:
    """The state of one backend. While that does not serve, its pool grants nothing, and the line stays.

    Args:
        pool: The backend's.
        away_limit: Seconds that a backend may be wedged or gone until it is given up. One that has never
            served is given up at once. None = never for that alone; see `give_up`.
    """

    def __init__(self, pool: SlotPool, away_limit: float | None) -> None:
        self.state = State.LOADING
        self.heard = ""
        """What made it think so, unless that state is a good one."""
        self.is_given_up = False
        self.reason = ""
        """Why it was given up: a sentence, and maybe the end of the server's log in further lines."""
        self.on_change: Callable[[], None] = _nothing
        """Called after each `found` and `give_up`."""
        self._pool = pool
        self._away_limit = away_limit
        self._away_since: float | None = -math.inf
        self._hold = ExitStack()
        self._is_held = True
        self._changed = trio.Event()
        self._doubt = trio.Event()

    def begin(self) -> None:
        """Hold the line until the backend has been asked. The constructor cannot: it may run outside Trio."""
        self._suspend(self.state.value)

    @property
    def serves(self) -> bool:
        """Whether requests can be sent, as far as is known."""
        return not self._is_held

    @property
    def away(self) -> str | None:
        """Why requests cannot be sent; None if they can."""
        return self.state.value if self._is_held else None

    def doubt(self) -> None:
        """Grant nothing until the backend has been asked again, since it has failed a request."""
        if not self._is_held:
            self._suspend("in doubt")
        self._doubt.set()

    async def changed(self) -> None:
        """Wait for the next `found` or `give_up`."""
        await self._changed.wait()

    async def doubted(self) -> None:
        """Wait for the next `doubt`."""
        await self._doubt.wait()

    def found(self, state: State, heard: str = "") -> None:
        """Take note of what the backend does, and of what was heard of that."""
        if self._doubt.is_set():  # else somebody may wait for this very one
            self._doubt = trio.Event()
        self.state = state
        self.heard = "" if state.is_good else heard
        if state.serves or state is State.LOADING:
            self._away_since = None
            self.is_given_up = False
        elif self._away_since is None:
            self._away_since = trio.current_time()
        if state.serves:
            self._hold.close()
            self._is_held = False
        else:
            self._suspend(state.value)
            if self._is_away_too_long():
                self.is_given_up = True
                self.reason = "it has been away for too long"
        self._tell()

    def give_up(self, reason: str) -> None:
        """Send those who wait away, and refuse newcomers, until the backend is found again."""
        self.is_given_up = True
        self.reason = reason
        self._tell()

    def check(self) -> None:
        """Refuse a request while the backend is given up.

        Raises:
            ProblemError: `backend_unavailable`.
        """
        if self.is_given_up:
            raise ProblemError(backend_unavailable(retry_after=AWAY_RETRY))

    def check_now(self) -> None:
        """Refuse what is asked of the backend without a place in the line, unless it served when last asked.

        Raises:
            ProblemError: `backend_unavailable`.
        """
        if not self.state.serves:
            raise ProblemError(backend_unavailable(retry_after=AWAY_RETRY))

    async def serving(self) -> None:
        """Wait until requests can be sent.

        Raises:
            ProblemError: `backend_unavailable`, when the backend is given up.
        """
        while self._is_held:
            self.check()
            await self.changed()

    def _is_away_too_long(self) -> bool:
        if self._away_since is None or self._away_limit is None:
            return False
        return trio.current_time() - self._away_since >= self._away_limit

    def _suspend(self, reason: str) -> None:
        before, self._hold = self._hold, ExitStack()
        self._hold.enter_context(self._pool.suspended(reason))
        before.close()  # last, or the pool would grant in between
        self._is_held = True

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self.on_change()


def _nothing() -> None:
    """Do nothing."""
