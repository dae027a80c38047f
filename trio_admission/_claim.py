"""One reservation as the pure core knows it, from arrival to end."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol, TypedDict

from ._records import ONE_SLOT, Cost
from ._states import WAITING, LeaseState

if TYPE_CHECKING:
    from types import EllipsisType

    from ._budget import IssuedTicket, ResumeTicket
    from ._errors import AdmissionError


class Request(TypedDict, total=False):
    """What a reservation can be asked for; `SlotPool.admit` says what each means."""

    cost: Cost
    flow: str
    weight: float
    priority: int
    prefer_slot: int | None
    ticket: ResumeTicket | str | None
    max_wait: float | None


class Wake(Protocol):
    """The granting side of the channel over which a grant reaches the task that waits for it."""

    def send_nowait(self, slots: tuple[int, ...], /) -> None:
        """Hand the slots over."""

    def close(self) -> None:
        """Tell the waiting task that there will be none."""


class Claim:
    """What one reservation asked for, where it stands and what it holds.

    Most of it is seldom set, and so the class's: a claim is made on the way of every request.
    """

    preferred: tuple[int, ...] = ()  # a return prefers the ids that it had
    token: str | None = None  # of a resume ticket
    parent: Claim | None = None

    id = 0  # counted from 1 on arrival
    state: LeaseState = WAITING
    since = 0.0  # when it joined its line; once granted, when it was granted
    deadline = math.inf  # of its first wait
    wake: Wake | None = None  # set while a task waits
    refusal: AdmissionError | None = None  # what ended its wait without a grant

    granted = False  # it was granted once
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
        self,
        cost: Cost = ONE_SLOT,
        flow: str = "",
        weight: float = 1.0,
        priority: int = 0,
        max_wait: float | EllipsisType | None = ...,  # as the pool's config says
        prefer_slot: int | None = None,
        ticket: ResumeTicket | str | None = None,
    ) -> None:
        if weight != 1.0 and not 0 < weight < math.inf:
            raise ValueError(f"weight must be above 0, not {weight!r}")
        if max_wait is not None and max_wait is not ... and not max_wait >= 0:
            raise ValueError(f"max_wait must be None or at least 0 seconds, not {max_wait!r}")
        self.cost = cost
        self.key = (flow, priority)
        self.weight = weight
        self.max_wait = max_wait
        if prefer_slot is not None:
            self.preferred = (prefer_slot,)
        if ticket is not None:
            self.token = ticket if isinstance(ticket, str) else ticket.token

    @property
    def flow(self) -> str:
        """On whose behalf it is."""
        return self.key[0]

    @property
    def children(self) -> OrderedDict[Claim, None]:
        """The claims that wait with this one as their parent, oldest first."""
        if self._children is None:
            self._children = OrderedDict()
        return self._children

    def __repr__(self) -> str:
        return f"<Claim {self.id} {self.state.value} flow={self.flow!r} slots={self.slots}>"
