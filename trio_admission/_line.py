"""Who waits, and in what order they are served. Knows nothing of how many slots are free.

Returning holders stand ahead of everybody, in the order in which they came back. Newcomers of several flows
or priorities are served as `_fair` says. With one flow in one class, all of that comes down to first come,
first served, and that is how it is done here: until somebody arrives who is of another flow or priority than
those who wait or hold, there is just a queue.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ._fair import FairShares

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ._claim import Claim
    from ._records import Cost


class Line:
    """Everybody who waits.

    Args:
        aging: Seconds of waiting that weigh as much as one step of priority; None = they weigh nothing.
        holders: Those who hold, kept by the caller. A flow is known for as long as it waits or holds.
    """

    def __init__(self, aging: float | None, holders: Collection[Claim]) -> None:
        self.returning: OrderedDict[Claim, None] = OrderedDict()
        self._aging = aging
        self._holders = holders
        # While one flow is alone: its key, its newcomers, and by how much the end of its latest request lies
        # ahead of the virtual time. That is what the latest newcomer was charged, and all returns since.
        self.key = ("", 0)
        self.queue: OrderedDict[Claim, None] = OrderedDict()
        self.ahead = 0.0
        self._fair: FairShares | None = None  # when it is not

    @property
    def plain(self) -> bool:
        """Whether those who wait are all in ``queue``."""
        return self._fair is None and not self.returning

    @property
    def newcomers(self) -> int:
        """How many newcomers wait."""
        return len(self.queue) if self._fair is None else self._fair.waiting

    @property
    def length(self) -> int:
        """How many wait."""
        return len(self.returning) + self.newcomers

    def add(self, claim: Claim) -> None:
        """Let a newcomer join."""
        fair = self._shares_with(claim)
        if fair is None:
            self.queue[claim] = None
        else:
            fair.add(claim)
        if claim.parent is not None:
            claim.parent.children[claim] = None

    def add_returning(self, claim: Claim) -> None:
        """Let a holder join who comes back."""
        self.returning[claim] = None
        if claim.parent is not None:
            claim.parent.children[claim] = None

    def remove(self, claim: Claim) -> None:
        """Take a claim out that was not granted."""
        if claim in self.returning:
            del self.returning[claim]
        elif self._fair is None:
            del self.queue[claim]
        else:
            self._fair.remove(claim)
        if claim.parent is not None:
            del claim.parent.children[claim]

    def grant(self, claim: Claim) -> None:
        """Take a claim out and book its grant, which takes ``claim.share`` of the pool (0 = it is lent)."""
        if claim in self.returning:
            del self.returning[claim]
            fair = self._shares_with(claim)
            if fair is None:
                self.ahead += claim.share / claim.weight
            else:
                fair.grant(claim, returns=True)
        elif self._fair is None:
            del self.queue[claim]
            if claim.share:
                self.ahead = claim.share / claim.weight
        else:
            self._fair.grant(claim, returns=False)
        if claim.parent is not None:
            del claim.parent.children[claim]

    def release(self, claim: Claim) -> None:
        """Note that a granted claim holds nothing any more."""
        if self._fair is not None:
            self._fair.release(claim)

    def head(self, now: float) -> Claim | None:
        """Return who is served next."""
        if self.returning:
            return next(iter(self.returning))
        if self._fair is None:
            return next(iter(self.queue), None)
        return self._fair.head(now)

    def order(self, now: float, share: Callable[[Cost], float]) -> list[Claim]:
        """Return everybody in the order in which they would be served from now on."""
        newcomers = self.queue if self._fair is None else self._fair.order(now, share, self.returning)
        return [*self.returning, *newcomers]

    def waiting_of(self, flow: str) -> int:
        """Return how many newcomers of one flow wait."""
        if self._fair is not None:
            return self._fair.waiting_of(flow)
        return len(self.queue) if flow == self.key[0] else 0

    def _shares_with(self, claim: Claim) -> FairShares | None:
        """Return what divides the pool between the flows once this claim is there; None = one is alone."""
        if not self._holders and not self.newcomers:
            self.key, self.ahead, self._fair = claim.key, 0.0, None
        elif self._fair is None and claim.key != self.key:
            self._fair = FairShares(self._aging, self.key, self.ahead, self.queue, self._holders)
            self.queue = OrderedDict()
        return self._fair
