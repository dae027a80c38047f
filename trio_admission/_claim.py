"""One reservation as the pure core knows it, from arrival to end."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from ._records import ONE_SLOT, Cost
from ._states import WAITING, LeaseState

if TYPE_CHECKING:
    from ._budget import IssuedTicket
    from ._errors import AdmissionError
    from ._line import Flow


class Wake(Protocol):
    """The granting side of the channel over which a grant reaches the task that waits for it."""

    def send_nowait(self, slots: tuple[int, ...], /) -> None:
        """Hand the slots over."""

    def close(self) -> None:
        """Tell the waiting task that there will be none."""


class Claim:
    """What one reservation asked for, where it stands and what it holds."""

    # Slots, since a claim is made and read on the way of every request.
    __slots__ = (
        "_children", "account", "borrower", "came_with", "charge", "cost", "cut_by", "deadline", "flow",
        "granted", "id", "lender", "max_wait", "open", "parent", "preferred", "priority", "refusal",
        "refused", "since", "slots", "state", "ticket", "token", "unparking", "wake", "watched", "weight",
    )  # fmt: skip

    def __init__(
        self,
        cost: Cost = ONE_SLOT,
        flow: str = "",
        weight: float = 1.0,
        priority: int = 0,
        max_wait: float | None = None,
    ) -> None:
        self.cost = cost
        self.flow = flow
        self.weight = weight
        self.priority = priority
        self.max_wait = max_wait
        self.preferred: tuple[int, ...] = ()  # a return prefers the ids that it had
        self.token: str | None = None  # of a resume ticket
        self.parent: Claim | None = None

        self.id = 0  # counted from 1 on arrival
        self.state: LeaseState = WAITING
        self.since = 0.0  # when it joined its line; once granted, when it was granted
        self.deadline = math.inf  # of its first wait
        self.watched = False  # its deadline is in the core's list of those that no task waits for
        self.wake: Wake | None = None  # set while a task waits
        self.refusal: AdmissionError | None = None  # why it ended without a grant

        self.granted = False  # it was granted once
        self.slots: tuple[int, ...] = ()
        self.charge: Cost | None = None  # what the pool's sums carry for it
        self.account: Flow | None = None  # the flow that it was charged to, while it holds
        self.open = False  # admitted with control off: holds nothing

        self.refused = False  # its park keeps the slot
        self.unparking = False  # its return leads into `unparked()`
        self.cut_by: BaseException | None = None  # what cut the park that lost it
        self.lender: Claim | None = None  # whose slots it borrows
        self.borrower: Claim | None = None  # who borrows its slots
        self._children: OrderedDict[Claim, None] | None = None
        self.ticket: IssuedTicket | None = None  # the resume ticket that it issued
        self.came_with: IssuedTicket | None = None  # the resume ticket that it used

    @property
    def children(self) -> OrderedDict[Claim, None]:
        """The claims that wait with this one as their parent, oldest first."""
        if self._children is None:
            self._children = OrderedDict()
        return self._children

    def __repr__(self) -> str:
        return f"<Claim {self.id} {self.state.value} flow={self.flow!r} slots={self.slots}>"
