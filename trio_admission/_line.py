"""Who waits, and in what order they are served. Knows nothing of how many slots are free.

Returning holders stand ahead of everybody, in the order in which they came back. Newcomers of one priority
form a class, and each class's next is weighed against the others'.

Inside a class, flows share by start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing",
SIGCOMM 1996): each flow has the virtual time at which its latest request finishes, a request starts at the
later of that and the class's virtual time, and the smallest start is served next. Two things differ from the
paper. Only a flow's first waiter carries a start tag, so that one which leaves the line has cost its flow
nothing. And the virtual time moves with what newcomers are granted, not with returns, which are charged to
their flow but jump the queue.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ._claim import Claim
    from ._records import Cost


class Flow:
    """One flow inside one class; forgotten when it neither holds nor waits."""

    def __init__(self, key: tuple[str, int], home: PriorityClass) -> None:
        self.key = key  # its name and priority
        self.home = home
        self.finish = self.start = home.virtual_time  # the start is that of its first waiter
        self.holding = 0
        self.waiters: OrderedDict[Claim, None] = OrderedDict()

    @property
    def turn(self) -> tuple[float, int]:
        """What its first waiter is served by, the smallest first."""
        return self.start, next(iter(self.waiters)).id


class PriorityClass:
    """The waiters of one priority, by flow.

    The heap has an entry of each flow that waits, as it stands now. Its other entries are of the past, and
    are dropped when they surface.
    """

    def __init__(self) -> None:
        self.virtual_time = 0.0
        self.flows: dict[tuple[str, int], Flow] = {}
        self._heap: list[tuple[tuple[float, int], Flow]] = []

    def update(self, flow: Flow) -> None:
        """See to it that a flow can become the next after a change; forget one that is gone."""
        if flow.waiters:
            heapq.heappush(self._heap, (flow.turn, flow))
        elif not flow.holding:
            del self.flows[flow.key]
        if len(self._heap) > 2 * len(self.flows) + 8:  # the past piles up behind a head that is stuck
            self._heap = [(flow.turn, flow) for flow in self.flows.values() if flow.waiters]
            heapq.heapify(self._heap)

    def head(self) -> Claim | None:
        """Return who is served next in this class."""
        while self._heap:
            turn, flow = self._heap[0]
            if flow.waiters and turn == flow.turn:
                return next(iter(flow.waiters))
            heapq.heappop(self._heap)
        return None

    def order(
        self, charge: Callable[[Claim], float], charged: Mapping[tuple[str, int], float]
    ) -> list[Claim]:
        """Return the waiters in the order of service, after flows were ``charged`` for returns."""
        tags: list[tuple[float, int, Claim]] = []
        for flow in self.flows.values():
            start = flow.start + charged.get(flow.key, 0.0)
            for claim in flow.waiters:
                tags.append((start, claim.id, claim))
                start += charge(claim)
        return [claim for _, _, claim in sorted(tags)]


class Line:
    """Everybody who waits.

    Until somebody arrives who is of another flow or priority than those who wait or hold, there is one flow
    ``alone``, and all comes down to first come, first served. Of its times only the difference between its
    finish and the virtual time counts, and nobody looks for it in its class's heap or counts what it holds.

    Args:
        aging: Seconds of waiting that weigh as much as one step of priority; None = they weigh nothing.
        holders: Those who hold, kept by the caller. A flow is known for as long as it waits or holds.
    """

    def __init__(self, aging: float | None, holders: Collection[Claim]) -> None:
        self.returning: OrderedDict[Claim, None] = OrderedDict()
        self._aging = aging
        self._holders = holders
        self._classes: dict[int, PriorityClass] = {}
        self.alone: Flow | None = self._flow(("", 0))
        self._newcomers = 0  # kept while there is more than one flow

    @property
    def newcomers(self) -> int:
        """How many newcomers wait."""
        return self._newcomers if self.alone is None else len(self.alone.waiters)

    @property
    def length(self) -> int:
        """How many wait."""
        return len(self.returning) + self.newcomers

    def add(self, claim: Claim) -> None:
        """Let a newcomer join the end of its flow."""
        flow = self._meet(claim)
        if not flow.waiters:
            flow.start = max(flow.home.virtual_time, flow.finish)
        flow.waiters[claim] = None
        self._newcomers += 1
        self._update(flow)
        if claim.parent is not None:
            claim.parent.children[claim] = None

    def add_returning(self, claim: Claim) -> None:
        """Let a holder join who comes back."""
        self.returning[claim] = None
        if claim.parent is not None:
            claim.parent.children[claim] = None

    def remove(self, claim: Claim) -> None:
        """Take a claim out that was not granted, which has cost its flow nothing."""
        if claim in self.returning:
            del self.returning[claim]
        else:
            flow = self._flow(claim.key)
            del flow.waiters[claim]
            self._newcomers -= 1
            self._update(flow)
        if claim.parent is not None:
            del claim.parent.children[claim]

    def grant(self, claim: Claim, share: float) -> None:
        """Take a claim out and book its grant, which takes ``share`` of the pool (0 = it is lent)."""
        flow = self._meet(claim)
        start = max(flow.start if flow.waiters else flow.finish, flow.home.virtual_time)
        if claim in self.returning:
            del self.returning[claim]
        else:
            del flow.waiters[claim]
            self._newcomers -= 1
            if share:  # what is lent is not served in the order of tags
                flow.home.virtual_time = start
        flow.finish = flow.start = start + share / claim.weight
        flow.holding += 1
        self._update(flow)
        if claim.parent is not None:
            del claim.parent.children[claim]

    def release(self, claim: Claim) -> None:
        """Note that a granted claim holds nothing any more."""
        if self.alone is None:
            flow = self._flow(claim.key)
            flow.holding -= 1
            self._update(flow)

    def head(self, now: float) -> Claim | None:
        """Return who is served next. Costs O(log n) for each distinct priority that waits."""
        if self.returning:
            return next(iter(self.returning))
        if self.alone is not None:
            return next(iter(self.alone.waiters), None)
        heads = [head for home in self._classes.values() if (head := home.head()) is not None]
        return min(heads, key=lambda claim: self._rank(claim, now), default=None)

    def order(self, now: float, share: Callable[[Cost], float]) -> list[Claim]:
        """Return everybody in the order in which they would be served from now on.

        Classes are merged by their heads, as the service does: a class's next counts, not its others.
        """
        if self.alone is not None:
            return [*self.returning, *self.alone.waiters]

        def charge(claim: Claim) -> float:
            return min(1.0, share(claim.cost)) / claim.weight

        charged: dict[tuple[str, int], float] = {}
        for claim in self.returning:
            charged[claim.key] = charged.get(claim.key, 0.0) + charge(claim)
        classes = [home.order(charge, charged) for home in self._classes.values()]
        return [*self.returning, *heapq.merge(*classes, key=lambda claim: self._rank(claim, now))]

    def waiting_of(self, name: str) -> int:
        """Return how many newcomers of one flow wait."""
        flows = (home.flows.get((name, priority)) for priority, home in self._classes.items())
        return sum(len(flow.waiters) for flow in flows if flow is not None)

    def _meet(self, claim: Claim) -> Flow:
        """Return the flow of a claim that comes or is granted, which may end another's being alone."""
        if not self._holders and not self.newcomers:
            self._classes = {}
            self.alone = self._flow(claim.key)
        elif self.alone is not None and claim.key != self.alone.key:
            flow, self.alone = self.alone, None
            self._newcomers, flow.holding = len(flow.waiters), len(self._holders)
            self._update(flow)
        return self.alone or self._flow(claim.key)

    def _flow(self, key: tuple[str, int]) -> Flow:
        """Return the flow of that name and priority, new if it was forgotten."""
        home = self._classes.get(key[1])
        if home is None:
            home = self._classes[key[1]] = PriorityClass()
        flow = home.flows.get(key)
        if flow is None:
            flow = home.flows[key] = Flow(key, home)
        return flow

    def _update(self, flow: Flow) -> None:
        """Put the order right after a change of a flow."""
        if self.alone is None:
            flow.home.update(flow)
            if not flow.home.flows:
                del self._classes[flow.key[1]]

    def _rank(self, claim: Claim, now: float) -> tuple[float, float, int]:
        aged = math.floor((now - claim.since) / self._aging) if self._aging is not None else 0
        return (-(claim.key[1] + aged), claim.since, claim.id)
