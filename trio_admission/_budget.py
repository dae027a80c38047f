"""How many leases may be parked at once, and the tickets with which an ended lease can return.

Each park admits one more lease that can park too, so without a bound the number of conversations in the
building grows for as long as people take their time. Tickets count as parks do.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final
from weakref import WeakSet

from ._records import require_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._granting import Granting


@final
@dataclass(frozen=True, slots=True)
class ResumeTicket:
    """Lets one later reservation return with the priority of a parked holder. Made by `Lease.issue_ticket`.

    It is used by giving it, or its token, as ``ticket`` to `SlotPool.admit` or `SlotPool.reserve`.
    """

    token: str = field(repr=False)
    """What a client may be handed; nobody can guess it."""
    expires_at: float
    """When it expires, in seconds on Trio's clock."""


class IssuedTicket:
    """A ticket as the pool that issued it remembers it."""

    def __init__(self, flow: str, expires_at: float) -> None:
        self.public = ResumeTicket(secrets.token_urlsafe(18), expires_at)
        self.flow = flow
        self.slots: tuple[int, ...] = ()  # what its lease held at its end


@final
class ParkBudget:
    """A bound on the leases that are parked, shared by the pools that are given it.

    Pools that are given none share one with the other pools of their Trio run. With W the tokens of Trio's
    default thread limiter (40, unless it was changed) and C the slots of those of them that are in use, its
    limit is ``max(0, min(max(2, W // 4), W - max(2, W // 8) - C))``: with W = 40, 10 for up to 25 slots, 7
    for 28, none for 35 and more.

    Args:
        limit: How many leases may be parked at once, tickets that are out included; 0 = none.

    Raises:
        TypeError: if the limit is no int.
        ValueError: if it is below 0.
    """

    def __init__(self, limit: int) -> None:
        require_count("limit", limit, least=0)
        self._limit: float = limit
        self._threads: Callable[[], float] | None = None
        self._claims: WeakSet[object] = WeakSet()  # a pool may be dropped with its tickets
        self._pools: WeakSet[Granting] = WeakSet()

    @classmethod
    def unlimited(cls) -> ParkBudget:
        """Return a budget that refuses nobody."""
        budget = cls(0)
        budget._limit = math.inf
        return budget

    @classmethod
    def _by_threads(cls, threads: Callable[[], float]) -> ParkBudget:
        """Return a budget whose limit is worked out at each park from the size of a thread limiter."""
        budget = cls(0)
        budget._threads = threads
        return budget

    def __repr__(self) -> str:
        return f"<ParkBudget {len(self._claims)} of {self._limit if self._threads is None else 'by threads'}>"

    def _most(self) -> float:
        """Return how many may be parked.

        Unless a limit was given it follows from the size W of the thread limiter that the formula was made
        for, and the slots C of all busy pools that share the budget:
        ``max(0, min(max(2, W // 4), W - max(2, W // 8) - C))``. An infinite W is no limit.
        """
        if self._threads is None:
            return self._limit
        threads = self._threads()
        if math.isinf(threads):
            return math.inf
        slots = sum(pool.held.size for pool in self._pools if not pool.idle)
        return max(0, min(max(2, threads // 4), threads - max(2, threads // 8) - slots))

    def _join(self, pool: Granting) -> None:
        """Be the budget that the pool asks, and count its slots."""
        pool.budget = self
        self._pools.add(pool)

    def _ask(self, claimant: object, now: float) -> bool:
        """Claim one park for ``claimant`` and say whether there was room."""
        for pool in self._pools:
            pool.forget_tickets(now)
        if len(self._claims) >= self._most():
            return False
        self._claims.add(claimant)
        return True

    def _give_back(self, claimant: object) -> None:
        """End a claim, if there is one."""
        self._claims.discard(claimant)
