"""Start-time fair queueing of newcomers, by flow and priority; for as long as there is more than one of them.

Newcomers of one priority form a class, and inside a class flows share by start-time fair queueing (Goyal,
Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996): each flow has the virtual time at which its latest
request finishes, a request starts at the later of that and the class's virtual time, and the smallest start
is served next. Two things differ from the paper. Only a flow's first waiter carries a start tag, so that one
which leaves the line has cost its flow nothing. And the virtual time moves with what newcomers are granted,
not with returns, which are charged to their flow but jump the queue.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ._claim import Claim
    from ._records import Cost


class Flow:
    """One flow inside one class; forgotten when it neither holds nor waits."""

    __slots__ = ("finish", "holding", "home", "listed", "name", "start", "waiters")

    def __init__(self, name: str, home: PriorityClass) -> None:
        self.name = name
        self.home = home
        self.finish = self.start = home.virtual_time  # the start is that of its first waiter
        self.holding = 0
        self.listed = False  # has an entry in the class's heap
        self.waiters: OrderedDict[Claim, None] = OrderedDict()


class PriorityClass:
    """The waiters of one priority, by flow.

    Each flow that waits has exactly one entry in the heap. The entry may lag behind the flow (its first
    waiter left, its start was charged); it can only be too early, so it is put right when it surfaces.
    """

    def __init__(self) -> None:
        self.virtual_time = 0.0
        self.flows: dict[str, Flow] = {}
        self._heap: list[tuple[float, int, Flow]] = []
        self._dead = 0  # entries of forgotten flows

    def flow(self, name: str) -> Flow:
        """Return the flow of that name, new if it was forgotten."""
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(name, self)
        return flow

    def list(self, flow: Flow) -> None:
        """See to it that a flow with waiters can become the next."""
        if not flow.listed:
            flow.listed = True
            heapq.heappush(self._heap, (flow.start, next(iter(flow.waiters)).id, flow))

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

    def order(self, charge: Callable[[Claim], float], charged: dict[str, float]) -> Iterator[Claim]:
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
                start += charge(claim)
                heapq.heapreplace(heads, (start, following.id, following, rest))


class FairShares:
    """The newcomers in line, and what each flow of theirs and of the holders' has been charged.

    It begins with one flow, the one that was alone until now: those of it who wait and hold, and by how
    much the end of its latest request lies ahead of the virtual time.
    """

    def __init__(
        self,
        aging: float | None,
        alone: tuple[str, int],  # its name and priority
        ahead: float,
        waiters: OrderedDict[Claim, None],
        holders: Iterable[Claim],
    ) -> None:
        self._aging = aging
        self._classes: dict[int, PriorityClass] = {}
        self.waiting = len(waiters)
        flow = self._flow(*alone)
        flow.finish = flow.start = ahead
        flow.waiters = waiters
        for claim in holders:
            claim.account = flow
            flow.holding += 1
        if waiters:
            flow.home.list(flow)

    def add(self, claim: Claim) -> None:
        """Let a newcomer join the end of its flow."""
        flow = self._flow(*claim.key)
        if not flow.waiters:
            flow.start = max(flow.home.virtual_time, flow.finish)
        flow.waiters[claim] = None
        flow.home.list(flow)
        self.waiting += 1

    def remove(self, claim: Claim) -> None:
        """Take a newcomer out that was not granted, which has cost its flow nothing."""
        flow = self._flow(*claim.key)
        del flow.waiters[claim]
        self.waiting -= 1
        self._forget_if_gone(flow)

    def grant(self, claim: Claim, *, returns: bool) -> None:
        """Book a grant that takes ``claim.share`` of the pool."""
        flow = self._flow(*claim.key)
        home = flow.home
        start = max(flow.start if flow.waiters else flow.finish, home.virtual_time)
        if not returns:
            if claim.share:  # what is lent is not served in the order of tags
                home.virtual_time = start
            del flow.waiters[claim]
            self.waiting -= 1
        flow.finish = flow.start = start + claim.share / claim.weight
        flow.holding += 1
        claim.account = flow

    def release(self, claim: Claim) -> None:
        """Note that a granted claim holds nothing any more."""
        flow, claim.account = claim.account, None
        assert flow is not None
        flow.holding -= 1
        self._forget_if_gone(flow)

    def head(self, now: float) -> Claim | None:
        """Return who is served next. Costs O(log n) for each distinct priority that waits."""
        if len(self._classes) == 1:
            (only,) = self._classes.values()
            return only.head()
        heads = [head for home in self._classes.values() if (head := home.head()) is not None]
        return min(heads, key=lambda claim: self._rank(claim, now), default=None)

    def order(
        self, now: float, share: Callable[[Cost], float], returning: Iterable[Claim]
    ) -> Iterator[Claim]:
        """Yield the newcomers in the order of service from now on, after those who are ``returning``."""

        def charge(claim: Claim) -> float:
            return min(1.0, share(claim.cost)) / claim.weight

        charged: dict[int, dict[str, float]] = {}
        for claim in returning:
            flows = charged.setdefault(claim.priority, {})
            flows[claim.flow] = flows.get(claim.flow, 0.0) + charge(claim)
        classes = [home.order(charge, charged.get(priority, {})) for priority, home in self._classes.items()]
        # Merging by the heads alone is what the service does, too: a class's next counts, not its others.
        return heapq.merge(*classes, key=lambda claim: self._rank(claim, now))

    def waiting_of(self, name: str) -> int:
        """Return how many newcomers of one flow wait."""
        flows = (home.flows.get(name) for home in self._classes.values())
        return sum(len(flow.waiters) for flow in flows if flow is not None)

    def _flow(self, name: str, priority: int) -> Flow:
        home = self._classes.get(priority)
        if home is None:
            home = self._classes[priority] = PriorityClass()
        return home.flow(name)

    def _forget_if_gone(self, flow: Flow) -> None:
        """Forget a flow that neither holds nor waits, and its class if that was its last."""
        if not flow.holding and not flow.waiters:
            flow.home.forget(flow)
            if not flow.home.flows:
                self._classes = {key: home for key, home in self._classes.items() if home is not flow.home}

    def _rank(self, claim: Claim, now: float) -> tuple[float, float, int]:
        aged = math.floor((now - claim.since) / self._aging) if self._aging is not None else 0
        return (-(claim.priority + aged), claim.since, claim.id)
