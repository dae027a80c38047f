"""Every change of a pool, and the one function that grants.

All of it is synchronous: a change is over before anybody else runs. What the tasks do round it (waiting,
cancel scopes, nurseries) lives in `_pool` and `_lease`. The clock is given, so that a test can turn it.

Invariants, asserted by `check`:

* every live claim is in exactly one place: in the line, among the holders, or among the parked;
* the totals equal the sums over the holders, and fit the pool, except after a shrink;
* whoever waits at the head does not fit, or grants are suspended.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Literal, NoReturn

from ._announcer import Announcer
from ._budget import IssuedTicket
from ._errors import LineFull, PoolClosed, WaitTimeout
from ._holdings import Holdings
from ._line import Line
from ._meter import Meter
from ._records import ONE_SLOT, Cost, EventKind, PoolEvent, PoolStatistics, Waiting
from ._states import ENDED, HELD, HELD_AGAIN, PARKED, RETURNING, WAITING, Move, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._budget import ParkBudget, ResumeTicket
    from ._claim import Claim
    from ._config import AdmissionConfig


class Core:
    """The books of one pool.

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
        self.line = Line(config.aging)
        self.line_limit = config.line_limit(slots)
        self.held = Holdings(slots, kv_tokens)
        self.meter = Meter()
        self.announcer = Announcer()
        # A claim that lives is in one of these two or in the line. A refused park stays among the holders.
        self.holders: dict[Claim, None] = {}
        self.parked: dict[Claim, None] = {}
        self.lenders: dict[Claim, None] = {}  # the holders inside a refused park
        self.suspensions: list[str] = []
        self.closed = False
        self.tickets: dict[str, IssuedTicket] = {}
        self.on_idle: Callable[[], None] | None = None
        self._deadlines: list[tuple[float, int, Claim]] = []  # of claims for which no task waits
        self._expiries: list[tuple[float, str]] = []  # of the tickets that are out, by token
        self._ranking: dict[Claim, int] | None = None
        self._ranked_at = 0.0
        self._changed_at = 0.0
        self._arrivals = 0
        self.use_budget(budget)

    # What others may know.

    @property
    def slots(self) -> int:
        """The pool's size."""
        return self.held.ids.size

    @property
    def idle(self) -> bool:
        """Whether nothing is held, waiting, parked or returning."""
        return not self.holders and not self.parked and not len(self.line)

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do; infinity = nothing is planned."""
        return self._deadlines[0][0] if self._deadlines else math.inf

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
            order = self.line.order(now, self.held.share)
            self._ranking = {waiting: place for place, waiting in enumerate(order, 1)}
            self._ranked_at = now
        return self._ranking[claim]

    def waiting(self) -> list[Waiting]:
        """Return everybody who waits, in order."""
        if not len(self.line):
            return []
        now, returning = self.now(), self.line.returning
        order = self.line.order(now, self.held.share)
        return [
            Waiting(claim.id, place, claim.flow, claim.priority, now - claim.since, claim in returning)
            for place, claim in enumerate(order, 1)
        ]

    def estimated_wait(self, claim: Claim | None = None) -> float | None:
        """Return the expected wait of a claim, or of a newcomer, in seconds; None before any measurement."""
        if claim is not None:
            position = self.position(claim)
        elif not len(self.line) and not self.suspensions and self.held.fits(ONE_SLOT):
            position = 0
        else:
            position = len(self.line) + 1
        return self.meter.wait(position, self.slots) if position else 0.0

    def retry_after(self) -> float:
        """Return when somebody who is refused now should come again, in seconds within 1..60."""
        return self.meter.retry_after(len(self.line) + 1, self.slots)

    # Changes. Each begins with `_begin` and ends in `_fill`.

    def use_budget(self, budget: ParkBudget) -> None:
        """Ask this budget from now on."""
        self.budget = budget
        budget.join(self)

    def arrive(self, claim: Claim) -> None:
        """Grant at once, give a place in the line, or raise `LineFull` or `PoolClosed`."""
        claim.since = now = self._begin()
        self._arrivals += 1
        claim.id = self._arrivals
        if claim.max_wait is not None:
            claim.deadline = now + claim.max_wait
        if self.announcer.instruments:
            self._note(EventKind.ARRIVED, claim)
        if claim.token is not None and self.config.enabled and self._redeem(claim, now):
            self._line_up(claim, now)
            self._fill(now)
        elif self.closed:
            self._refuse(claim, PoolClosed(f"pool {self.name!r} is closed"), "closed", now)
        elif not self.config.enabled:
            claim.open = True
            self._granted(claim, now)
            self._fill(now)
        elif self.line.newcomers or self.line.returning or claim.parent is not None:
            self._enrol(claim)
            self.line.add(claim)
            self._fill(now)
        else:
            self._fill(now, claim)
        if claim.state is WAITING:
            self._limit(claim, now)

    def leave(self, claim: Claim, *, lost: bool = False) -> None:
        """Take back all that the claim has, whatever its state."""
        if claim.state is ENDED:
            return
        now = self._begin()
        slots, seconds = claim.slots, now - claim.since
        if claim in self.holders:
            self._vacate(claim, now, left_by=claim.ticket and self._left_with(claim.ticket, slots))
        elif claim in self.parked:
            del self.parked[claim]
        else:
            self._step_out_of_line(claim)
        self._end(claim)
        if self.announcer.instruments:
            kind = EventKind.LOST if lost else EventKind.ENDED if claim.granted else EventKind.CANCELLED
            self._note(kind, claim, slots, seconds)
        self._fill(now)

    def time_out(self, claim: Claim) -> None:
        """Take a waiting claim out because its ``max_wait`` has passed."""
        now = self._begin()
        self._time_out(claim, now)
        self._fill(now)

    def watch(self, claim: Claim) -> None:
        """Plan the end of a wait for which no task waits; `expire` will carry it out."""
        if claim.deadline != math.inf and not claim.watched and not claim.granted and self.waits(claim):
            claim.watched = True
            heapq.heappush(self._deadlines, (claim.deadline, claim.id, claim))
            if len(self._deadlines) > 2 * len(self.line) + 16:  # most are of claims that have gone since
                self._deadlines = [entry for entry in self._deadlines if self.waits(entry[2])]
                heapq.heapify(self._deadlines)

    def expire(self) -> None:
        """Take out those whose ``max_wait`` has passed while no task waits for them."""
        now = self._begin()
        while self._deadlines and self._deadlines[0][0] <= now:
            claim = heapq.heappop(self._deadlines)[2]
            claim.watched = False
            if claim.wake is None and not claim.granted and self.waits(claim):
                self._time_out(claim, now)
        self._fill(now)

    def park(self, claim: Claim, threads: float) -> None:
        """Give the claim's slots back, unless the budget refuses; then it keeps them."""
        require(Move.PARK, claim.state)
        now = self._begin()
        if claim.open:
            claim.state = PARKED
        elif self.budget.ask(claim, threads, now):
            self._step_out(claim, now)
        else:
            claim.state = PARKED
            claim.refused = True
            self.lenders[claim] = None
            self._note(EventKind.PARK_REFUSED, claim, claim.slots, now - claim.since)
        self._fill(now)

    def come_back(self, claim: Claim, cost: Cost) -> None:
        """End a park: hold again at once or wait ahead of newcomers, then at ``cost``."""
        require(Move.RETURN, claim.state)
        now = self._begin()
        if claim.open:
            claim.state = HELD
        elif claim in self.parked:
            del self.parked[claim]
            self.budget.give_back(claim)
            claim.cost = cost
            self._line_up(claim, now)
        else:
            self._come_back_from_refused(claim, cost, now)
        self._fill(now)

    def unpark(self, claim: Claim, cost: Cost | None = None) -> None:
        """Wait for slots inside a park, at ``cost`` if that is new. The budget's claim stays."""
        require(Move.UNPARK, claim.state)
        now = self._begin()
        del self.parked[claim]
        claim.unparking = True
        claim.cost = cost or claim.cost
        self._line_up(claim, now)
        self._fill(now)

    def repark(self, claim: Claim) -> None:
        """Undo `unpark`, granted or not."""
        require(Move.REPARK, claim.state)
        now = self._begin()
        claim.unparking = False
        if claim.state is RETURNING:
            self._step_out_of_line(claim)
            claim.state = PARKED
            claim.since = now
            self.parked[claim] = None
        else:
            self._step_out(claim, now)
        self._fill(now)

    def resize(self, slots: int | None, kv_tokens: int | None) -> None:
        """Change the pool's size. Nobody is thrown out."""
        now = self._begin()
        if slots is not None:
            self.held.ids.resize(slots, {slot for claim in self.holders for slot in claim.slots})
            self.line_limit = self.config.line_limit(slots)
        if kv_tokens is not None:
            self.held.kv_tokens = kv_tokens
        self._note(EventKind.RESIZED)
        self._fill(now)

    def close(self, *, dismiss: bool) -> None:
        """Refuse newcomers; with ``dismiss`` those in the line, too. Holders and returning holders go on."""
        now = self._begin()
        if not self.closed:
            self.closed = True
            self._note(EventKind.CLOSED)
        if dismiss:
            for claim in self.line.newcomers_in_any_order():
                self._step_out_of_line(claim)
                self._end(claim, PoolClosed(f"pool {self.name!r} was closed"))
                self._note(EventKind.REFUSED, claim, reason="closed")
        self._fill(now)

    def suspend(self, reason: str) -> None:
        """Hold all grants until `resume` was called as often."""
        now = self._begin()
        self.suspensions.append(reason)
        self._note(EventKind.SUSPENDED, reason=reason)
        self._fill(now)

    def resume(self, reason: str) -> None:
        """End one suspension."""
        now = self._begin()
        self.suspensions.remove(reason)
        self._note(EventKind.RESUMED, reason=reason)
        self._fill(now)

    def issue_ticket(self, claim: Claim, ttl: float, threads: float) -> ResumeTicket | None:
        """Return the claim's one resume ticket; None if the budget refuses it."""
        now = self._begin()
        if claim.state is ENDED:
            raise RuntimeError("cannot issue a ticket for a lease that is ended")
        if claim.ticket is None:
            ticket = IssuedTicket(claim.flow, now + ttl)
            if not self.budget.ask(ticket, threads, now):
                return None
            claim.ticket = self.tickets[ticket.public.token] = ticket
            heapq.heappush(self._expiries, (ticket.public.expires_at, ticket.public.token))
            self._note(EventKind.TICKET_ISSUED, claim)
            self._fill(now)
        return claim.ticket.public

    def forget_tickets(self, until: float = math.inf) -> None:
        """Forget the tickets that expire up to a time. Frees no slot; so nobody is granted anything."""
        while self._expiries and self._expiries[0][0] <= until:
            ticket = self.tickets.pop(heapq.heappop(self._expiries)[1], None)
            if ticket is not None:
                self.budget.give_back(ticket)
                self.held.ids.cool(ticket.slots, ticket)

    # The parts of changes.

    def _begin(self) -> float:
        if self.announcer.telling:
            raise RuntimeError("an instrument must not change the pool that it watches")
        self._changed_at = now = self.now()
        if self._expiries:
            self.forget_tickets(now)
        return now

    def _fill(self, now: float, newcomer: Claim | None = None) -> None:
        """Grant to everybody who is next and fits. Every change ends here.

        A ``newcomer`` that finds the line empty is the next without ever standing in it. The head is
        never skipped for a smaller one behind it, which would starve those who need much.
        """
        line, held = self.line, self.held
        if self.suspensions:
            pass
        elif newcomer is not None:
            if held.take(newcomer):
                line.grant(newcomer, held.share(newcomer), queued=False)
                self._granted(newcomer, now)
                newcomer = None
        elif line.newcomers or line.returning:
            while held.slots < held.ids.size:  # nobody fits into a full pool: do not look who is next
                head = line.head(now)
                if head is None or not held.take(head):
                    break
                line.grant(head, held.share(head))
                self._granted(head, now)
            self._lend(now)
        if newcomer is not None:
            line.add(newcomer)
        self._settle()

    def _lend(self, now: float) -> None:
        """Let children that still wait have the slots of their parents' refused parks, one child each."""
        for lender in self.lenders:
            if lender.borrower is None and lender.children:
                child = next(iter(lender.children))
                child.slots, child.lender, lender.borrower = lender.slots, lender, child
                self.line.grant(child, 0.0)
                self._granted(child, now)

    def _settle(self) -> None:
        self._ranking = None
        if self.announcer.events:
            self.announcer.tell()
        if self.on_idle is not None and self.idle:
            self.on_idle()

    def _granted(self, claim: Claim, now: float) -> None:
        """Record a grant, then wake whoever waits for it."""
        if claim.parent is not None:
            self._strike(claim)
        if claim.preferred or claim.came_with is not None:
            self._cool(claim)  # a preferred id that it did not get back is nobody's any more
        waited, claim.since = now - claim.since, now
        first, claim.granted = not claim.granted, True
        claim.state = HELD_AGAIN if claim.unparking else HELD
        self.holders[claim] = None
        if self.announcer.instruments:
            again = EventKind.UNPARKED if claim.unparking else EventKind.RETURNED
            self._note(EventKind.GRANTED if first else again, claim, claim.slots, waited)
        if claim.wake is not None:
            claim.wake.send_nowait(claim.slots)

    def _vacate(self, claim: Claim, now: float, left_by: object) -> None:
        """Let what a holder has go on to who borrows it, back to who lent it, or be free."""
        slots, claim.slots = claim.slots, ()
        del self.holders[claim]
        self.lenders.pop(claim, None)
        if claim.open:
            return
        self.line.release(claim)
        borrower, lender = claim.borrower, claim.lender
        claim.borrower = claim.lender = None
        if borrower is not None:
            borrower.lender = lender
            self.held.pass_on(claim, borrower)
        if lender is not None:
            lender.borrower = borrower
        elif borrower is None:
            self.held.give_back(claim, slots, left_by)
            self.meter.note(now - claim.since)

    def _step_out(self, claim: Claim, now: float) -> None:
        """Park a holder."""
        slots, seconds = claim.slots, now - claim.since
        claim.preferred = slots
        self._vacate(claim, now, left_by=claim)
        claim.state = PARKED
        claim.since = now
        self.parked[claim] = None
        self._note(EventKind.PARKED, claim, slots, seconds)

    def _come_back_from_refused(self, claim: Claim, cost: Cost, now: float) -> None:
        claim.refused = False
        if claim.borrower is None and (claim.lender is not None or self.held.recharge(claim, cost)):
            del self.lenders[claim]
            claim.state = HELD
            return
        # Its slot is lent out, or the new cost does not fit beside the others: it goes to the line for it.
        claim.preferred = claim.slots
        self._vacate(claim, now, left_by=claim)
        claim.cost = cost
        self._line_up(claim, now)

    def _line_up(self, claim: Claim, now: float) -> None:
        """Let a holder wait for slots again, ahead of newcomers."""
        claim.state = RETURNING
        claim.since = now
        self.line.add_returning(claim)
        self._enrol(claim)

    def _step_out_of_line(self, claim: Claim) -> None:
        self.line.remove(claim)
        self._strike(claim)

    def _enrol(self, claim: Claim) -> None:
        """List a waiting claim with its parent, which may come to lend it its slot."""
        if claim.parent is not None:
            claim.parent.children[claim] = None

    def _strike(self, claim: Claim) -> None:
        if claim.parent is not None:
            claim.parent.children.pop(claim, None)

    def _end(self, claim: Claim, refusal: PoolClosed | WaitTimeout | None = None) -> None:
        claim.state = ENDED
        claim.refusal = refusal
        self.budget.claims.discard(claim)
        if claim.preferred or claim.came_with is not None:
            self._cool(claim)
        if refusal is not None and claim.wake is not None:
            claim.wake.close()

    def _cool(self, claim: Claim) -> None:
        ids = self.held.ids
        ids.cool(claim.preferred, claim)
        if claim.came_with is not None:
            ids.cool(claim.came_with.slots, claim.came_with)

    def _limit(self, claim: Claim, now: float) -> None:
        """Refuse a newcomer that found no slot if the line is over a limit with it."""
        per_flow = self.config.max_waiting_per_flow
        reason: Literal["line", "flow"]
        if per_flow is not None and self.line.waiting_of_flow(claim.flow) > per_flow:
            reason = "flow"
        elif self.line_limit is not None and self.line.newcomers > self.line_limit:
            reason = "line"
        else:
            return
        self._step_out_of_line(claim)
        self._refuse(claim, LineFull(self.statistics(), self.retry_after(), reason), reason, now)

    def _refuse(self, claim: Claim, error: LineFull | PoolClosed, reason: str, now: float) -> NoReturn:
        claim.state = ENDED
        self._note(EventKind.REFUSED, claim, reason=reason)
        self._fill(now)
        raise error

    def _left_with(self, ticket: IssuedTicket, slots: tuple[int, ...]) -> IssuedTicket | None:
        """Let a ticket remember the slots that its lease leaves, and return it if it is still out."""
        ticket.slots = slots
        return ticket if ticket.public.token in self.tickets else None

    def _redeem(self, claim: Claim, now: float) -> bool:
        """Use a ticket up. One that is used, expired or another flow's is no ticket."""
        ticket = self.tickets.get(claim.token or "")
        if ticket is None or ticket.flow != claim.flow or ticket.public.expires_at <= now:
            return False
        del self.tickets[ticket.public.token]
        self.budget.give_back(ticket)
        claim.came_with = ticket
        claim.preferred = ticket.slots
        self._note(EventKind.TICKET_USED, claim)
        return True

    def _time_out(self, claim: Claim, now: float) -> None:
        self._step_out_of_line(claim)
        self._note(EventKind.TIMED_OUT, claim, seconds=now - claim.since)
        self._end(claim, WaitTimeout(self.statistics(), self.retry_after()))

    def _note(
        self,
        kind: EventKind,
        claim: Claim | None = None,
        slots: tuple[int, ...] = (),
        seconds: float | None = None,
        reason: str | None = None,
    ) -> None:
        if not self.announcer.instruments:
            return
        at = self.now()
        if claim is None:
            event = PoolEvent(kind, self.name, at, reason=reason)
        else:
            event = PoolEvent(
                kind, self.name, at, claim.id, claim.flow, claim.priority, slots, seconds, reason
            )
        self.announcer.note(event)

    def check(self) -> None:
        """Assert the invariants of the head of this file."""
        holders = list(self.holders)
        waiting = self.line.order(self._changed_at, self.held.share)
        everybody = [*holders, *self.parked, *waiting]
        assert len(everybody) == len(set(everybody)), f"a claim is in two places: {everybody}"
        self.held.check(holders)
        for claim in holders:
            assert claim.state in {HELD, HELD_AGAIN} or (
                claim.state is PARKED and (claim.refused or claim.open)
            )
            assert (claim.lender is None) or claim.lender.borrower is claim, f"{claim} borrows from nobody"
        for claim in self.parked:
            assert claim.state is PARKED, f"{claim} is among the parked"
            assert not claim.slots, f"{claim} is parked with a slot"
        for claim in waiting:
            assert claim.state in {WAITING, RETURNING}, f"{claim} is in the line"
        assert self.line.newcomers == len(waiting) - len(self.line.returning), "the line is miscounted"
        if waiting and not self.suspensions:
            assert not self.held.fits(waiting[0].cost), f"{waiting[0]} fits and was left waiting"
