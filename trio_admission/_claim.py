"""One reservation as the pure core knows it, from arrival to end."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ._budget import ResumeTicket
from ._records import ONE_SLOT, Cost, require_kind, require_number
from ._states import WAITING, LeaseState

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import EllipsisType

    from ._budget import IssuedTicket
    from ._errors import AdmissionError

LEAST_WEIGHT: Final = 1e-6  # below it, one request's charge would drown all others' in the virtual time


class Claim:
    """What one reservation asked for, where it stands and what it holds.

    Most of it is seldom set, and so the class's: a claim is made on the way of every request.
    """

    cost = ONE_SLOT
    key = ("", 0)  # flow and priority
    weight = 1.0
    max_wait: float | EllipsisType | None = ...
    parent: Claim | None = None
    preferred: tuple[int, ...] = ()  # a return prefers the ids that it had
    token: str | None = None  # of a resume ticket

    id = 0  # counted from 1 on arrival
    state: LeaseState = WAITING
    since = 0.0  # when it joined its line; once granted, when it was granted
    deadline = math.inf  # of its first wait
    wake: Callable[[], object] | None = None  # wakes the task that waits, and is set as long as it does
    refusal: AdmissionError | None = None  # what ended its wait without a grant

    granted = False  # it was granted once
    unused = False  # its scope was never entered
    slots: tuple[int, ...] = ()
    charge: Cost | None = None  # what the pool's sums carry for it; None = nothing, or it borrows
    open = False  # admitted with control off: holds nothing

    refused = False  # its park keeps the slot
    unparking = False  # its return leads into `unparked()`
    cut_by: BaseException | None = None  # what cut the park that lost it
    lender: Claim | None = None  # whose slots it borrows
    borrower: Claim | None = None  # who borrows its slots
    _children: OrderedDict[Claim, None] | None = None
    ticket: IssuedTicket | None = None  # the resume ticket that it issued

    def __init__(
        self, cost: Cost = ONE_SLOT, flow: str = "", weight: float = 1.0, priority: int = 0,
        max_wait: float | EllipsisType | None = ...,  # as the pool's config says
        prefer_slot: int | None = None, ticket: ResumeTicket | str | None = None,
    ) -> None:  # fmt: skip
        self.plain = cost is ONE_SLOT and prefer_slot is None and ticket is None
        if self.plain and flow == "" and weight == 1.0 and priority == 0 and max_wait is ...:
            return  # as most are
        require_kind(  # what is wrong must fail for its caller, not for whoever leaves later and looks at it
            cost=(cost, Cost), flow=(flow, str), priority=(priority, int),
            prefer_slot=(prefer_slot, int | None), ticket=(ticket, ResumeTicket | str | None),
        )  # fmt: skip
        require_number("weight", weight, LEAST_WEIGHT, 1 / LEAST_WEIGHT)
        if max_wait is not None and max_wait is not ...:
            require_number("max_wait", max_wait)
        self.cost, self.key, self.weight, self.max_wait = cost, (flow, priority), weight, max_wait
        if prefer_slot is not None:
            self.preferred = (prefer_slot,)
        if ticket is not None:
            self.token = ticket if isinstance(ticket, str) else ticket.token

    @property
    def flow(self) -> str:
        """On whose behalf it is."""
        return self.key[0]

    def wake_up(self) -> None:
        """Let the task go on that waits for it, if one does."""
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()

    @property
    def children(self) -> OrderedDict[Claim, None]:
        """The claims that wait with this one as their parent, oldest first."""
        if self._children is None:
            self._children = OrderedDict()
        return self._children

    def __repr__(self) -> str:
        return f"<Claim {self.id} {self.state.value} flow={self.flow!r} slots={self.slots}>"
