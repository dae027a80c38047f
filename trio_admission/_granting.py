"""The books of a pool, and the one function that grants.

Invariants, asserted by `testing.check`:

* every live claim is in exactly one place: in the line, among the holders, or among the parked;
* the totals equal the sums over the holders, and fit the pool, except after a shrink;
* whoever waits at the head does not fit, or grants are suspended.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

from ._announcer import Announcer
from ._line import Line
from ._records import ONE_SLOT, EventKind, PoolStatistics, Waiting
from ._states import HELD, HELD_AGAIN, RETURNING, WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._budget import IssuedTicket, ParkBudget
    from ._claim import Claim
    from ._config import AdmissionConfig
    from ._holdings import Holdings
    from ._line import Flow

_MEASURED: Final = 32  # holdings whose lengths are remembered


class Granting:
    """Who holds, who waits and who is parked; what can be asked of it; and how slots change hands.

    Args:
        name: The pool's name.
        held: Its slots and tokens.
        config: Its settings.
        budget: Who may park.
        now: The clock, in seconds.

    Attributes:
        calm: The flow that is alone in the line, while nothing unusual goes on; who changes that clears it.
    """

    budget: ParkBudget

    def __init__(
        self, name: str, held: Holdings, config: AdmissionConfig, budget: ParkBudget, now: Callable[[], float]
    ) -> None:
        self.name = name
        self.config = config
        self.now = now
        self.holders: dict[Claim, None] = {}  # those in a refused park among them
        self.parked: dict[Claim, None] = {}
        self.line = Line(config.aging, self.holders)
        self.held = held
        self.lenders: dict[Claim, None] = {}  # the holders inside a refused park
        self.suspensions: list[str] = []
        self.closed = False
        self.limited = config.line_limit(1) is not None or config.max_waiting_per_flow is not None
        self.calm: Flow | None = None
        self.took: deque[float] = deque(maxlen=_MEASURED)  # for how long slots were held, in seconds
        self.announcer = Announcer(name)
        self.tickets: dict[str, IssuedTicket] = {}  # that are out, by token
        self.on_idle: Callable[[], object] | None = None  # called once
        self._deadlines: list[tuple[float, int, Claim]] = []  # of those in line who have one
        self._expiries: list[tuple[float, str]] = []  # of the tickets
        self._ranking: dict[Claim, int] | None = None
        self._next_id = count(1).__next__
        budget._join(self)

    @property
    def idle(self) -> bool:
        """Whether nothing is held, waiting, parked or returning."""
        return not self.holders and not self.parked and not self.line.length

    def statistics(self) -> PoolStatistics:
        """Return the counts of this moment.

        Nobody could take a slot while a returning holder waits: it does not fit, and nobody goes before it.
        """
        held = self.held
        nobody_could = self.suspensions or self.line.returning or held.charge_for(ONE_SLOT) is None
        return PoolStatistics(
            name=self.name, slots=held.size, held=held.slots,
            free=0 if nobody_could else held.size - held.slots,
            waiting=self.line.newcomers, parked=len(self.parked), returning=len(self.line.returning),
            kv_tokens=held.kv_tokens, kv_held=held.tokens,
        )  # fmt: skip

    def waits(self, claim: Claim) -> bool:
        """Say whether the claim stands in the line, as a newcomer or on its way back."""
        return claim.state is WAITING or claim.state is RETURNING

    def position(self, claim: Claim) -> int:
        """Return the claim's place in the line, 1 = next, 0 = it does not wait."""
        return self._ranks().get(claim, 0) if self.waits(claim) else 0

    def waiting(self) -> list[Waiting]:
        """Return everybody who waits, in order."""
        now, returning = self.now(), self.line.returning
        return [
            Waiting(claim.id, place, *claim.key, now - claim.since, claim in returning)
            for claim, place in self._ranks().items()
        ]

    def estimated_wait(self, claim: Claim | None = None) -> float | None:
        """Return the expected wait of a claim, or of a newcomer, in seconds; None before any measurement."""
        at_once = not self.line.length and not self.suspensions and self.held.charge_for(ONE_SLOT)
        place = self.position(claim) if claim is not None else 0 if at_once else self.line.length + 1
        return self._wait_at(place) if place else 0.0

    def retry_after(self) -> float:
        """Return when somebody who is refused now should come again, in seconds within 1..60.

        With jitter of a fifth either way, so that those who are refused together do not return together.
        """
        expected = self._wait_at(self.line.length + 1) or 1.0
        return min(60.0, max(1.0, expected * random.uniform(0.8, 1.2)))  # noqa: S311  # not a secret

    def _wait_at(self, place: int) -> float | None:
        """Return the expected wait at a place in line: each ``mean / slots`` seconds a slot comes free.

        A slot whose holder has outlasted the mean is not counted on. If all have, the next is expected to
        take as long again as the youngest of them has held.
        """
        if not self.took:
            return None
        now, mean = self.now(), sum(self.took) / len(self.took)
        held_for = [now - claim.since for claim in self.holders]
        lively = self.held.size - sum(seconds > mean for seconds in held_for)
        if lively > 0:
            return place * mean / lively
        return min(held_for) + (place - 1) * mean / self.held.size

    def _ranks(self) -> dict[Claim, int]:
        """Return the place of everybody who waits, in order; the same until the next change."""
        if self._ranking is None:
            order = self.line.order(self.now(), self.held.share)
            self._ranking = {claim: place for place, claim in enumerate(order, 1)}
        return self._ranking

    def _begin(self) -> float:
        """Begin a change, and return its time."""
        if self.announcer.telling:
            raise RuntimeError("an instrument must not change the pool that it watches")
        self.calm = None
        self.announcer.at = now = self.now()
        self.forget_tickets(now)
        return now

    def _fill(self, now: float, newcomer: Claim | None = None) -> None:
        """Grant to everybody who is next and fits. Every change ends here.

        A ``newcomer`` joins the line first. In a calm pool at most one can be granted anything; this is the
        short way for most: it does what `_fill_with_care` would, in a fraction of its time.
        """
        flow, held = self.calm, self.held
        if flow is not None and held.cold and (newcomer is not None or flow.waiters):
            head = next(iter(flow.waiters)) if newcomer is None else newcomer
            if head.plain and head.parent is None:
                head.slots = (held.cold.popitem()[0],)
                head.charge, head.state, head.granted = ONE_SLOT, HELD, True
                self.holders[head] = None
                flow.start = flow.finish = flow.home.virtual_time + 1 / held.size / head.weight
                if newcomer is None:
                    del flow.waiters[head]
                    head.since, self._ranking = now, None
                    head.wake_up()
                return
        self._fill_with_care(now, newcomer)

    def _fill_with_care(self, now: float, newcomer: Claim | None) -> None:
        """Grant in every case.

        The head is never skipped for a smaller one behind it, which would starve those who need much.
        """
        self.calm, held = None, self.held
        if newcomer is not None:
            self.line.add(newcomer)
        while not self.suspensions:
            while held.cold or held.warm:  # nobody fits into a full pool: do not look who is next
                head = self.line.head(now)
                if head is None or not held.take(head):
                    break
                self.line.grant(head, held.share(head.charge or head.cost))
                self._granted(head, now)
            if not self._lend(now):
                break  # else somebody who stood behind a child may be next now
        self._settle()

    def _settle(self) -> None:
        """Tell those outside what has changed, and see whether the next change may be a short one."""
        self._ranking = None
        self.announcer.tell()
        if self.on_idle is not None and self.idle:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()
        shut = self.closed or self.suspensions or not self.config.enabled
        watched = self.announcer.instruments or self.tickets or self.lenders or self.on_idle is not None
        bounded = self.held.alone or self.held.retired or self.held.kv_tokens is not None
        if not shut and not watched and not bounded and not self.line.returning:
            self.calm = self.line.alone

    def _lend(self, now: float) -> bool:
        """Let children that still wait have the slots of their parents' refused parks, one child each.

        Say whether one got one. It has its parent's slots for as long as it runs, whatever its own cost.
        """
        lent = False
        for lender in self.lenders:
            if lender.borrower is None and lender.children:
                child = next(iter(lender.children))
                child.slots, child.lender, lender.borrower = lender.slots, lender, child
                self.line.grant(child, 0.0)
                self._granted(child, now)
                lent = True
        return lent

    def _granted(self, claim: Claim, now: float) -> None:
        """Record a grant, then wake whoever waits for it."""
        self.holders[claim] = None
        self.held.cool(claim.preferred, claim)  # one that it did not get back is nobody's any more
        again = EventKind.UNPARKED if claim.unparking else EventKind.RETURNED
        self.announcer.note(again if claim.granted else EventKind.GRANTED, claim, now - claim.since)
        claim.since = now
        claim.state, claim.granted = HELD_AGAIN if claim.unparking else HELD, True
        claim.wake_up()

    def _vacate(self, claim: Claim, now: float, left_by: object) -> None:
        """Let what a holder has go on to who borrows it, back to who lent it, or be free."""
        slots, claim.slots = claim.slots, ()
        del self.holders[claim]
        self.lenders.pop(claim, None)
        self.line.release(claim)
        borrower, lender = claim.borrower, claim.lender
        claim.borrower = claim.lender = None
        if borrower is not None:
            borrower.lender = lender
            borrower.charge, claim.charge = claim.charge, None
            if self.held.alone is claim:
                self.held.alone = borrower
        if lender is not None:
            lender.borrower = borrower
        elif borrower is None and not claim.open:
            self.held.give_back(claim, slots, left_by)
            if not claim.unused:
                self.took.append(now - claim.since)

    def forget_tickets(self, until: float = math.inf) -> None:
        """Forget the tickets that expire up to a time. Frees no slot; so nobody is granted anything."""
        while self._expiries and self._expiries[0][0] <= until:
            ticket = self.tickets.pop(heapq.heappop(self._expiries)[1], None)
            if ticket is not None:
                self.budget._give_back(ticket)
                self.held.cool(ticket.slots, ticket)
