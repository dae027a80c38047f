"""The books of a pool, and the one function that grants.

Invariants, asserted by `check`:

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
from ._holdings import Holdings
from ._line import Line
from ._records import ONE_SLOT, EventKind, PoolEvent, PoolStatistics, Waiting
from ._states import HELD, HELD_AGAIN, RETURNING, WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._budget import IssuedTicket, ParkBudget
    from ._claim import Claim
    from ._config import AdmissionConfig

_MEASURED: Final = 32  # holdings whose lengths are remembered


class Granting:
    """Who holds, who waits and who is parked; what can be asked of it; and how slots change hands.

    Args:
        name: The pool's name.
        slots: Its size, at least 1.
        kv_tokens: Tokens of KV cache that may be committed; None = not counted.
        config: Its settings.
        budget: Who may park.
        now: The clock, in seconds.
    """

    def __init__(
        self,
        name: str,
        slots: int,
        kv_tokens: int | None,
        config: AdmissionConfig,
        budget: ParkBudget,
        now: Callable[[], float],
    ) -> None:
        self.name = name
        self.config = config
        self.now = now
        # A claim that lives is in one of these two or in the line. A refused park stays among the holders.
        self.holders: dict[Claim, None] = {}
        self.parked: dict[Claim, None] = {}
        self.line = Line(config.aging, self.holders)
        self.line_limit = config.line_limit(slots)
        self.held = Holdings(slots, kv_tokens)
        self.lenders: dict[Claim, None] = {}  # the holders inside a refused park
        self.suspensions: list[str] = []
        self.closed = False
        # The newcomers' line is plain and `_nothing_unusual` holds. Cleared by whoever changes one of that.
        self.calm = False
        self.holdings: deque[float] = deque(maxlen=_MEASURED)  # how long the latest took, in seconds
        self.announcer = Announcer()
        self.tickets: dict[str, IssuedTicket] = {}
        self.on_idle: Callable[[], None] | None = None
        self._expiries: list[tuple[float, str]] = []  # of the tickets that are out, by token
        self._changed_at = 0.0
        self._ranking: dict[Claim, int] | None = None
        self._ranked_at = 0.0
        self._next_id = count(1).__next__
        self._deadlines: list[tuple[float, int, Claim]] = []  # of claims for which no task waits
        self.use_budget(budget)

    # What others may know.

    @property
    def slots(self) -> int:
        """The pool's size."""
        return self.held.ids.size

    @property
    def idle(self) -> bool:
        """Whether nothing is held, waiting, parked or returning."""
        return not self.holders and not self.parked and not self.line.length

    def statistics(self) -> PoolStatistics:
        """Return the counts of this moment."""
        held = self.held
        # A returning holder that waits does not fit, and nobody goes before it.
        nobody_could = self.suspensions or self.line.returning or not held.fits(ONE_SLOT)
        return PoolStatistics(
            name=self.name,
            slots=self.slots,
            held=held.slots,
            free=0 if nobody_could else self.slots - held.slots,
            waiting=self.line.newcomers,
            parked=len(self.parked),
            returning=len(self.line.returning),
            kv_tokens=held.kv_tokens,
            kv_held=held.tokens,
        )

    def waits(self, claim: Claim) -> bool:
        """Say whether the claim stands in the line, as a newcomer or on its way back."""
        return claim.state is WAITING or claim.state is RETURNING

    def position(self, claim: Claim) -> int:
        """Return the claim's place in the line, 1 = next, 0 = it does not wait."""
        if not self.waits(claim):
            return 0
        now = self.now()
        if self._ranking is None or (self.config.aging is not None and now != self._ranked_at):
            self._ranking = {
                waiting: place for place, waiting in enumerate(self.line.order(now, self.held.share), 1)
            }
            self._ranked_at = now
        return self._ranking[claim]

    def waiting(self) -> list[Waiting]:
        """Return everybody who waits, in order."""
        if not self.line.length:
            return []  # also where there is no clock, outside of a run
        now, returning = self.now(), self.line.returning
        return [
            Waiting(claim.id, place, claim.flow, claim.priority, now - claim.since, claim in returning)
            for place, claim in enumerate(self.line.order(now, self.held.share), 1)
        ]

    def estimated_wait(self, claim: Claim | None = None) -> float | None:
        """Return the expected wait of a claim, or of a newcomer, in seconds; None before any measurement."""
        if claim is not None:
            position = self.position(claim)
        elif not self.line.length and not self.suspensions and self.held.fits(ONE_SLOT):
            position = 0
        else:
            position = self.line.length + 1
        return self._wait_at(position) if position else 0.0

    def _wait_at(self, position: int) -> float | None:
        """Return the expected wait at a place in line: each ``mean / slots`` seconds a slot comes free."""
        if not self.holdings:
            return None
        return position * sum(self.holdings) / len(self.holdings) / self.slots

    def retry_after(self) -> float:
        """Return when somebody who is refused now should come again, in seconds within 1..60.

        With jitter of a fifth either way, so that those who are refused together do not return together.
        """
        expected = self._wait_at(self.line.length + 1) or 1.0
        return min(60.0, max(1.0, expected * random.uniform(0.8, 1.2)))  # noqa: S311  # not a secret

    def use_budget(self, budget: ParkBudget) -> None:
        """Ask this budget from now on."""
        self.budget = budget
        budget._join(self)

    # What changes are made of.

    def _begin(self) -> float:
        """Begin a change, and return its time."""
        if self.announcer.telling:
            raise RuntimeError("an instrument must not change the pool that it watches")
        self.calm = False
        self._changed_at = now = self.now()
        if self._expiries:
            self.forget_tickets(now)
        return now

    def _fill(self, now: float, newcomer: Claim | None = None) -> None:
        """Grant to everybody who is next and fits. Every change ends here.

        A ``newcomer`` joins the line first. This is the short way, for one request like most that comes or
        goes in a calm pool: it does what `_fill_with_care` would, in a fraction of its time.
        """
        if self.calm:
            line, head = self.line, newcomer
            queue, ids = line.queue, self.held.ids
            if head is None:
                if not queue:
                    return
                head = next(iter(queue))
            elif head.key != line.key or (queue and head.parent is not None):
                self._fill_with_care(now, newcomer)
                return
            elif queue:
                queue[head] = self._ranking = None  # the head did not fit before, so nobody does
                return
            if head.cost is ONE_SLOT and ids.cold and not head.preferred:
                head.charge, head.slots = ONE_SLOT, (ids.cold.popitem()[0],)
                head.state, head.granted = HELD, True
                self.holders[head] = None
                line.ahead = 1 / ids.size / head.weight
                if head is not newcomer:
                    del queue[head]
                    head.since, self._ranking = now, None
                    if head.parent is not None:
                        del head.parent.children[head]
                    if head.wake is not None:
                        head.wake.send_nowait(head.slots)
                return
        self._fill_with_care(now, newcomer)

    def _fill_with_care(self, now: float, newcomer: Claim | None) -> None:
        """Grant in every case.

        The head is never skipped for a smaller one behind it, which would starve those who need much.
        """
        self.calm = False
        line, held, ids = self.line, self.held, self.held.ids
        if newcomer is not None:
            line.add(newcomer)
        while line.length and not self.suspensions:
            while ids.cold or ids.warm:  # nobody fits into a full pool: do not look who is next
                head = line.head(now)
                if head is None or not held.take(head):
                    break
                line.grant(head)
                self._granted(head, now)
            if not self.lenders or not self._lend(now):
                break  # else somebody who stood behind a child may be next now
        self._settle()

    def _settle(self) -> None:
        """Tell those outside what has changed, and see whether the next change may be a short one."""
        self._ranking = None
        if self.announcer.events:
            self.announcer.tell()
        if self.on_idle is not None and self.idle:
            self.on_idle()
        self.calm = self.line.plain and self._nothing_unusual()

    def _nothing_unusual(self) -> bool:
        """Say whether newcomers may be let in and holders may leave without looking further."""
        held = self.held
        return not (
            self.suspensions
            or self.closed
            or self.tickets
            or self.lenders
            or self.announcer.instruments
            or held.alone
            or held.ids.retired
            or held.kv_tokens is not None
            or self.on_idle is not None
            or not self.config.enabled
        )

    def _lend(self, now: float) -> bool:
        """Let children that still wait have the slots of their parents' refused parks, one child each.

        Say whether one got one. It has its parent's slots for as long as it runs, whatever its own cost.
        """
        lent = False
        for lender in self.lenders:
            if lender.borrower is None and lender.children:
                child = next(iter(lender.children))
                child.slots, child.share = lender.slots, 0.0
                child.lender, lender.borrower = lender, child
                self.line.grant(child)
                self._granted(child, now)
                lent = True
        return lent

    def _granted(self, claim: Claim, now: float) -> None:
        """Record a grant, then wake whoever waits for it."""
        self.holders[claim] = None
        if claim.preferred and claim.preferred != claim.slots:
            self._cool(claim)  # a preferred id that it did not get back is nobody's any more
        waited, claim.since = now - claim.since, now
        first, claim.granted = not claim.granted, True
        claim.state = HELD_AGAIN if claim.unparking else HELD
        if self.announcer.instruments:
            again = EventKind.UNPARKED if claim.unparking else EventKind.RETURNED
            self._note(EventKind.GRANTED if first else again, claim, claim.slots, waited)
        if claim.wake is not None:
            claim.wake.send_nowait(claim.slots)

    def _vacate(self, claim: Claim, now: float, left_by: object) -> None:
        """Let what a holder has go on to who borrows it, back to who lent it, or be free."""
        slots, claim.slots = claim.slots, ()
        del self.holders[claim]
        if claim.open:
            return
        if claim.account is not None:
            self.line.release(claim)
        borrower, lender = claim.borrower, claim.lender
        if borrower is None and lender is None:
            self.held.give_back(claim, slots, left_by)
            self.holdings.append(now - claim.since)
        else:
            claim.borrower = claim.lender = None
            if borrower is not None:
                borrower.lender = lender
                self.held.pass_on(claim, borrower)
            if lender is not None:
                lender.borrower = borrower
        if claim.refused:
            del self.lenders[claim]

    def _cool(self, claim: Claim) -> None:
        """Let nobody find the ids warm that were kept for this claim."""
        self.held.ids.cool(claim.preferred, claim)
        if claim.came_with is not None:
            self.held.ids.cool(claim.came_with.slots, claim.came_with)

    def forget_tickets(self, until: float = math.inf) -> None:
        """Forget the tickets that expire up to a time. Frees no slot; so nobody is granted anything."""
        while self._expiries and self._expiries[0][0] <= until:
            ticket = self.tickets.pop(heapq.heappop(self._expiries)[1], None)
            if ticket is not None:
                self.budget._give_back(ticket)
                self.held.ids.cool(ticket.slots, ticket)

    def _note(
        self,
        kind: EventKind,
        claim: Claim | None = None,
        slots: tuple[int, ...] = (),
        seconds: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Keep an event for the instruments, until the change is over."""
        if not self.announcer.instruments:
            return
        at = self._changed_at
        if claim is None:
            event = PoolEvent(kind, self.name, at, reason=reason)
        else:
            event = PoolEvent(
                kind, self.name, at, claim.id, claim.flow, claim.priority, slots, seconds, reason
            )
        self.announcer.events.append(event)
