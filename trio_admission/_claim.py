"""One reservation as the pure core knows it, from arrival to end."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import cached_property
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
    """What one reservation asked for, where it stands and what it holds.

    The defaults stand on the class: most claims never wait, park, lend or borrow, and making one is on the
    way of every request.
    """

    id = 0
    state: LeaseState = WAITING
    slots: tuple[int, ...] = ()
    charge: Cost | None = None  # what the pool's sums carry for it
    account: Flow | None = None  # the flow that it was charged to, while it holds
    granted = False  # it was granted once
    open = False  # admitted with control off: holds nothing
    deadline = math.inf  # of its first wait
    since = 0.0  # when it joined its line; once granted, when it was granted
    preferred: tuple[int, ...] = ()  # a return prefers the ids that it had
    wake: Wake | None = None  # set while a task waits
    refusal: AdmissionError | None = None  # why it ended without a grant
    watched = False  # its deadline is in the core's list of those that no task waits for
    cut_by: BaseException | None = None  # what cut the park that lost it
    refused = False  # its park keeps the slot
    unparking = False  # its return leads into `unparked()`
    parent: Claim | None = None
    token: str | None = None  # of a resume ticket
    lender: Claim | None = None  # whose slots it borrows
    borrower: Claim | None = None  # who borrows its slots
    ticket: IssuedTicket | None = None  # the resume ticket that it issued
    came_with: IssuedTicket | None = None  # the resume ticket that it used

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

    @cached_property
    def children(self) -> OrderedDict[Claim, None]:
        """The claims that wait with this one as their parent, oldest first."""
        return OrderedDict()

    def __repr__(self) -> str:
        return f"<Claim {self.id} {self.state.value} flow={self.flow!r} slots={self.slots}>"
