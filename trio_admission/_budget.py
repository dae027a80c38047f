"""How many leases may be parked at once, and the tickets with which an ended lease can return.

Each park admits one more lease that can park too, so without a bound the number of conversations in the
building grows for as long as people take their time. Tickets count as parks do.
"""

from __future__ import annotations

import heapq
import math
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final
from weakref import WeakSet

if TYPE_CHECKING:
    from ._granting import Granting

UNLIMITED: Final = math.inf


@final
@dataclass(frozen=True, slots=True)
class ResumeTicket:
    """Lets one later reservation return with the priority of a parked holder.

    ``token`` is unguessable and is what a client may be handed; ``expires_at`` is on Trio's clock, in
    seconds.
    """

    token: str = field(repr=False)
    expires_at: float


class IssuedTicket:
    """A ticket as the pool that issued it remembers it."""

    def __init__(self, flow: str, expires_at: float) -> None:
        self.public = ResumeTicket(secrets.token_urlsafe(18), expires_at)
        self.flow = flow
        self.slots: tuple[int, ...] = ()  # what its lease held at its end


@final
class ParkBudget:
    """A bound on the leases that are parked, shared by the pools that are given it.

    Args:
        limit: How many leases may be parked at once, tickets that are out included; 0 = none.
    """

    def __init__(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"limit must be an int, not {limit!r}")
        if limit < 0:
            raise ValueError(f"limit must be at least 0, not {limit}")
        self._limit: float | None = limit
        self._claims: set[object] = set()
        self._tickets: list[tuple[float, int, IssuedTicket]] = []
        self._pools: WeakSet[Granting] = WeakSet()

    @classmethod
    def unlimited(cls) -> ParkBudget:
        """Return a budget that refuses nobody."""
        budget = cls(0)
        budget._limit = UNLIMITED
        return budget

    @classmethod
    def _by_threads(cls) -> ParkBudget:
        """Return a budget whose limit is worked out at each park; see `_limit_for`."""
        budget = cls(0)
        budget._limit = None
        return budget

    def __repr__(self) -> str:
        return f"<ParkBudget {len(self._claims)} of {'by threads' if self._limit is None else self._limit}>"

    def _limit_for(self, threads: float) -> float:
        """Return how many may be parked.

        Unless a limit was given it follows from ``threads``, the size W of the thread limiter that the
        formula was made for, and the slots C of all busy pools that share the budget:
        ``max(0, min(max(2, W // 4), W - max(2, W // 8) - C))``. An infinite W is no limit.
        """
        if self._limit is not None:
            return self._limit
        if math.isinf(threads):
            return UNLIMITED
        reserve = max(2, threads // 8)
        slots = sum(pool.slots for pool in self._pools if not pool.idle)
        return max(0, min(max(2, threads // 4), threads - reserve - slots))

    def _join(self, pool: Granting) -> None:
        """Count the pool's slots from now on."""
        self._pools.add(pool)

    def _ask(self, claimant: object, threads: float, now: float) -> bool:
        """Claim one park for ``claimant`` and say whether there was room."""
        self._expire(now)
        if len(self._claims) >= self._limit_for(threads):
            return False
        self._claims.add(claimant)
        if isinstance(claimant, IssuedTicket):
            heapq.heappush(self._tickets, (claimant.public.expires_at, id(claimant), claimant))
        return True

    def _give_back(self, claimant: object) -> None:
        """End a claim, if there is one."""
        self._claims.discard(claimant)

    def _expire(self, now: float) -> None:
        while self._tickets and self._tickets[0][0] <= now:
            self._claims.discard(heapq.heappop(self._tickets)[2])
