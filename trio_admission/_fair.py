"""Start-time fair queueing of the newcomers of one priority, by flow.

Flows share by start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996): each
flow has the virtual time at which its latest request finishes, a request starts at the later of that and the
class's virtual time, and the smallest start is served next. Two things differ from the paper. Only a flow's
first waiter carries a start tag, so that one which leaves the line has cost its flow nothing. And the virtual
time moves with what newcomers are granted, not with returns, which are charged to their flow but jump the
queue.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ._claim import Claim


class Flow:
    """One flow inside one class; forgotten when it neither holds nor waits."""

    __slots__ = ("finish", "holding", "home", "key", "start", "waiters")

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
