"""Who waits, and in what order they are served. Knows nothing of how many slots are free.

Returning holders stand ahead of everybody, in the order in which they came back. Newcomers of one priority
form a class, and inside a class flows share by start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair
Queueing", SIGCOMM 1996): each flow has the virtual time at which its latest request finishes, a request
starts at the later of that and the class's virtual time, and the smallest start is served next. Two things
differ from the paper. Only a flow's first waiter carries a start tag, so that one which leaves the line has
cost its flow nothing. And the virtual time moves with what newcomers are granted, not with returns, which
are charged to their flow but jump the queue.

With one flow in one class all of this comes down to first come, first served.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ._claim import Claim


class Flow:
    """One flow inside one class; forgotten when it neither holds nor waits."""

    __slots__ = ("finish", "holding", "home", "listed", "name", "start", "waiters")

    def __init__(self, name: str, home: PriorityClass) -> None:
        self.name = name
        self.home = home
        self.finish = self.start = home.virtual_time  # the start is that of its first waiter
        self.holding = 0
        self.listed = False  # has an entry in the class's heap
        self.waiters: OrderedDict[Claim, None] | None = None  # made for the first that waits


class PriorityClass:
    """The waiters of one priority, by flow.

    Each flow that waits has exactly one entry in the heap. The entry may lag behind the flow (its first
    waiter left, its start was charged); it can only be too early, so it is put right when it surfaces.
    """

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.virtual_time = 0.0
        self.flows: dict[str, Flow] = {}
        self._heap: list[tuple[float, int, Flow]] = []
        self._dead = 0  # entries of forgotten flows

    def add(self, claim: Claim) -> None:
        """Let a newcomer join the end of its flow."""
        flow = self.flow(claim.flow)
        if flow.waiters is None:
            flow.waiters = OrderedDict()
        if not flow.waiters:
            flow.start = max(self.virtual_time, flow.finish)
        flow.waiters[claim] = None
        if not flow.listed:
            flow.listed = True
            heapq.heappush(self._heap, (flow.start, claim.id, flow))

    def remove(self, claim: Claim) -> Flow:
        """Take a newcomer out that was not granted, which has cost its flow nothing, and return the flow."""
        flow = self.flows[claim.flow]
        assert flow.waiters is not None
        del flow.waiters[claim]
        return flow

    def head(self) -> Claim | None:
        """Return who is served next in this class."""
        while self._heap:
            start, number, flow = self._heap[0]
            if not flow.waiters:
                flow.listed = False
                heapq.heappop(self._heap)
                self._dead -= self.flows.get(flow.name) is not flow
                continue
            first = next(iter(flow.waiters))
            if len(self._heap) == 1 or (flow.start == start and first.id == number):
                return first
            heapq.heapreplace(self._heap, (flow.start, first.id, flow))
        return None

    def flow(self, name: str) -> Flow:
        """Return the flow of that name, new if it was forgotten."""
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(name, self)
        return flow

    def forget(self, flow: Flow) -> None:
        """Forget a flow that neither holds nor waits."""
        del self.flows[flow.name]
        # Its entry would stay in the heap for as long as the head is stuck, and clients that come, give up
        # and come again would pile entries up.
        if flow.listed:
            self._dead += 1
            if self._dead > len(self._heap) // 2 + 8:
                self._heap = [entry for entry in self._heap if self.flows.get(entry[2].name) is entry[2]]
                heapq.heapify(self._heap)
                self._dead = 0

    def order(self, share: Callable[[Claim], float], charged: dict[str, float]) -> Iterator[Claim]:
        """Yield the waiters in the order of service from now on, after flows were ``charged`` for returns."""
        heads: list[tuple[float, int, Claim, Iterator[Claim]]] = []
        for flow in self.flows.values():
            if flow.waiters:
                rest = iter(tuple(flow.waiters))
                first = next(rest)
                heads.append((flow.start + charged.get(flow.name, 0.0), first.id, first, rest))
        heapq.heapify(heads)
        while heads:
            start, _, claim, rest = heads[0]
            yield claim
            following = next(rest, None)
            if following is None:
                heapq.heappop(heads)
            else:
                start += share(claim) / claim.weight
                heapq.heapreplace(heads, (start, following.id, following, rest))


class Line:
    """Everybody who waits: returning holders, then the classes of newcomers.

    ``newcomers`` is the number of claims in the classes.
    """

    def __init__(self, aging: float | None) -> None:
        self._aging = aging
        self.returning: OrderedDict[Claim, None] = OrderedDict()
        self.newcomers = 0
        usual = PriorityClass(0)
        self._classes = {0: usual}
        self._unnamed = usual.flow("")

    def __len__(self) -> int:
        return len(self.returning) + self.newcomers

    def add(self, claim: Claim) -> None:
        """Let a newcomer join."""
        self._class(claim.priority).add(claim)
        self.newcomers += 1

    def add_returning(self, claim: Claim) -> None:
        """Let a holder join who comes back."""
        self.returning[claim] = None

    def remove(self, claim: Claim) -> None:
        """Take a claim out that was not granted."""
        if claim in self.returning:
            del self.returning[claim]
        else:
            flow = self._classes[claim.priority].remove(claim)
            self.newcomers -= 1
            if not flow.holding and not flow.waiters:
                self._forget(flow)

    def grant(self, claim: Claim, share: float, *, queued: bool = True) -> None:
        """Book a grant that takes ``share`` of the pool. A ``queued`` claim leaves its place."""
        home = self._classes.get(claim.priority) or self._class(claim.priority)
        flow = home.flows.get(claim.flow) or home.flow(claim.flow)
        waiters = flow.waiters
        start = flow.start if waiters else flow.finish
        start = max(start, home.virtual_time)
        if claim in self.returning:
            del self.returning[claim]
        elif not queued:
            home.virtual_time = start
        else:
            if share:  # what is lent is not served in the order of tags
                home.virtual_time = start
            self.newcomers -= 1
            assert waiters is not None
            del waiters[claim]
        flow.finish = flow.start = start + share / claim.weight
        flow.holding += 1
        claim.account = flow

    def release(self, claim: Claim) -> None:
        """Note that a granted claim holds nothing any more."""
        flow = claim.account
        assert flow is not None
        flow.holding -= 1
        if not flow.holding and not flow.waiters:
            self._forget(flow)

    def _class(self, priority: int) -> PriorityClass:
        home = self._classes.get(priority)
        if home is None:
            home = self._classes[priority] = PriorityClass(priority)
        return home

    def _forget(self, flow: Flow) -> None:
        """Forget a flow that neither holds nor waits, and its class if that was its last."""
        home = flow.home
        if flow is self._unnamed:
            flow.finish = home.virtual_time  # as good as forgotten, and most pools have no other
            return
        home.forget(flow)
        if home.priority and not home.flows:
            del self._classes[home.priority]

    def waiting_of_flow(self, name: str) -> int:
        """Return how many newcomers of one flow wait."""
        flows = (home.flows.get(name) for home in self._classes.values())
        return sum(len(flow.waiters) for flow in flows if flow is not None and flow.waiters)

    def head(self, now: float) -> Claim | None:
        """Return who is served next. Costs O(log n) for each distinct priority that waits."""
        if self.returning:
            return next(iter(self.returning))
        if not self.newcomers:
            return None
        if len(self._classes) == 1:
            (only,) = self._classes.values()
            return only.head()
        heads = (home.head() for home in self._classes.values())
        return min((head for head in heads if head is not None), key=lambda claim: self._rank(claim, now))

    def order(self, now: float, share: Callable[[Claim], float]) -> list[Claim]:
        """Return everybody in the order in which they would be served from now on."""
        charged: dict[int, dict[str, float]] = {}
        for claim in self.returning:
            flows = charged.setdefault(claim.priority, {})
            flows[claim.flow] = flows.get(claim.flow, 0.0) + share(claim) / claim.weight
        classes = [home.order(share, charged.get(priority, {})) for priority, home in self._classes.items()]
        # Merging by the heads alone is what the service does, too: a class's next counts, not its others.
        newcomers = heapq.merge(*classes, key=lambda claim: self._rank(claim, now))
        return [*self.returning, *newcomers]

    def newcomers_in_any_order(self) -> list[Claim]:
        """Return all newcomers."""
        flows = (flow for home in self._classes.values() for flow in home.flows.values())
        return [claim for flow in flows for claim in flow.waiters or ()]

    def _rank(self, claim: Claim, now: float) -> tuple[float, float, int]:
        aged = math.floor((now - claim.since) / self._aging) if self._aging is not None else 0
        return (-(claim.priority + aged), claim.since, claim.id)
