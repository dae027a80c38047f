"""Every change of a pool: who comes, goes, parks and returns, and what its owner does to it.

All of it is synchronous: a change is over before anybody else runs. What the tasks do round it (waiting,
cancel scopes, nurseries) lives in `_pool` and `_lease`. The clock is given, so that a test can turn it.
Each change begins with `_begin` and ends in `_fill`, the one function that grants; see `_granting`.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Literal, NoReturn

from ._budget import IssuedTicket
from ._errors import LineFull, PoolClosed, WaitTimeout
from ._granting import Granting
from ._records import ONE_SLOT, EventKind
from ._states import ENDED, HELD, HELD_AGAIN, PARKED, RETURNING, WAITING, Move, require

if TYPE_CHECKING:
    from ._budget import ResumeTicket
    from ._claim import Claim
    from ._records import Cost


class Core(Granting):
    """The changes of one pool."""

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do; infinity = nothing is planned."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    # Coming and going.

    def arrive(self, claim: Claim) -> None:
        """Grant at once, give a place in the line, or raise `LineFull` or `PoolClosed`."""
        if claim.id:
            raise RuntimeError("a reservation may be entered only once")
        calm = self.calm
        claim.since = now = self.now() if calm else self._begin()
        claim.id = self._next_id()
        if calm or not self._arrives_unusually(claim, now):
            self._fill(now, claim)
        if claim.state is not HELD:
            if claim.max_wait is not None:
                claim.deadline = now + claim.max_wait
            if claim.state is WAITING:
                self._limit(claim, now)

    def _arrives_unusually(self, claim: Claim, now: float) -> bool:
        """Let it in if it does not come as a newcomer does, and say so; refuse it if the door is shut."""
        self._note(EventKind.ARRIVED, claim)
        if claim.token is not None and self._redeem(claim):
            self._line_up(claim, now)
        elif self.closed:
            self._refuse(claim, PoolClosed(f"pool {self.name!r} is closed"), "closed", now)
        elif not self.config.enabled:
            claim.open = True
            self._granted(claim, now)
        else:
            return False
        self._fill(now)
        return True

    def leave(self, claim: Claim, *, lost: bool = False) -> None:
        """Take back all that the claim has, whatever its state."""
        if self.calm and claim.state is HELD and claim.charge is ONE_SLOT:
            # What all of the below comes to for most.
            now = self.now()
            del self.holders[claim]
            self.held.ids.cold[claim.slots[0]] = None
            self.holdings.append(now - claim.since)
            claim.state, claim.slots = ENDED, ()
            self._fill(now)
            return
        if claim.state is ENDED:
            return
        now = self._begin()
        slots, seconds = claim.slots, now - claim.since
        if claim in self.holders:
            self._vacate(claim, now, left_by=claim.ticket and self._left_with(claim.ticket, slots))
        elif claim in self.parked:
            del self.parked[claim]
        else:
            self.line.remove(claim)
        claim.state = ENDED
        self.budget._give_back(claim)
        if claim.preferred:
            self._cool(claim)
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
            if len(self._deadlines) > 2 * self.line.length + 16:  # most are of claims that have gone since
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

    def _line_up(self, claim: Claim, now: float) -> None:
        """Let a holder wait for slots again, ahead of newcomers."""
        claim.state = RETURNING
        claim.since = now
        self.line.add_returning(claim)

    def _limit(self, claim: Claim, now: float) -> None:
        """Refuse a newcomer that found no slot if the line is over a limit with it."""
        per_flow = self.config.max_waiting_per_flow
        reason: Literal["line", "flow"]
        if per_flow is not None and self.line.waiting_of(claim.flow) > per_flow:
            reason = "flow"
        elif self.line_limit is not None and self.line.newcomers > self.line_limit:
            reason = "line"
        else:
            return
        self.line.remove(claim)
        self._refuse(claim, LineFull(self.statistics(), self.retry_after(), reason), reason, now)

    def _refuse(self, claim: Claim, error: LineFull | PoolClosed, reason: str, now: float) -> NoReturn:
        claim.state = ENDED
        self._note(EventKind.REFUSED, claim, reason=reason)
        self._fill(now)
        raise error

    def _time_out(self, claim: Claim, now: float) -> None:
        self.line.remove(claim)
        self._note(EventKind.TIMED_OUT, claim, seconds=now - claim.since)
        self._dismiss(claim, WaitTimeout(self.statistics(), self.retry_after()))

    def _dismiss(self, claim: Claim, refusal: PoolClosed | WaitTimeout) -> None:
        """End a claim that was taken out of the line, and tell whoever waits for it."""
        claim.state = ENDED
        claim.refusal = refusal
        if claim.preferred:
            self._cool(claim)
        if claim.wake is not None:
            claim.wake.close()

    # Parking and returning.

    def park(self, claim: Claim, threads: float) -> None:
        """Give the claim's slots back, unless the budget refuses; then it keeps them."""
        require(Move.PARK, claim.state)
        now = self._begin()
        if claim.open:
            claim.state = PARKED
        elif self.budget._ask(claim, threads, now):
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
        elif claim.refused:
            self._come_back_from_refused(claim, cost, now)
        else:
            del self.parked[claim]
            self.budget._give_back(claim)
            claim.cost = cost
            self._line_up(claim, now)
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
            self.line.remove(claim)
            self._stay_out(claim, now)
        else:
            self._step_out(claim, now)
        self._fill(now)

    def _step_out(self, claim: Claim, now: float) -> None:
        """Park a holder."""
        slots, seconds = claim.slots, now - claim.since
        claim.preferred = slots
        self._vacate(claim, now, left_by=claim)
        self._stay_out(claim, now)
        self._note(EventKind.PARKED, claim, slots, seconds)

    def _stay_out(self, claim: Claim, now: float) -> None:
        claim.state = PARKED
        claim.since = now
        self.parked[claim] = None

    def _come_back_from_refused(self, claim: Claim, cost: Cost, now: float) -> None:
        if claim.borrower is None and (claim.lender is not None or self.held.recharge(claim, cost)):
            del self.lenders[claim]
            claim.state = HELD
        else:
            # Its slot is lent out, or the new cost does not fit beside the others: it waits for it in line.
            claim.preferred = claim.slots
            self._vacate(claim, now, left_by=claim)
            claim.cost = cost
            self._line_up(claim, now)
        claim.refused = False

    # Resume tickets.

    def issue_ticket(self, claim: Claim, ttl: float, threads: float) -> ResumeTicket | None:
        """Return the claim's one resume ticket; None if the budget refuses it."""
        now = self._begin()
        if claim.state is ENDED:
            raise RuntimeError("cannot issue a ticket for a lease that is ended")
        if claim.ticket is None:
            ticket = IssuedTicket(claim.flow, now + ttl)
            if not self.budget._ask(ticket, threads, now):
                return None
            claim.ticket = self.tickets[ticket.public.token] = ticket
            heapq.heappush(self._expiries, (ticket.public.expires_at, ticket.public.token))
            self._note(EventKind.TICKET_ISSUED, claim)
            self._fill(now)
        return claim.ticket.public

    def _left_with(self, ticket: IssuedTicket, slots: tuple[int, ...]) -> IssuedTicket | None:
        """Let a ticket remember the slots that its lease leaves, and return it if it is still out."""
        ticket.slots = slots
        return ticket if ticket.public.token in self.tickets else None

    def _redeem(self, claim: Claim) -> bool:
        """Use a ticket up. One that is used, expired or another flow's is no ticket."""
        ticket = self.tickets.get(claim.token or "")
        if ticket is None or ticket.flow != claim.flow or not self.config.enabled:
            return False
        del self.tickets[ticket.public.token]
        self.budget._give_back(ticket)
        claim.came_with = ticket
        claim.preferred = ticket.slots
        self._note(EventKind.TICKET_USED, claim)
        return True

    # What the pool's owner does.

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
            for claim in self.line.order(now, self.held.share)[len(self.line.returning) :]:
                self.line.remove(claim)
                self._dismiss(claim, PoolClosed(f"pool {self.name!r} was closed"))
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

    def check(self) -> None:
        """Assert the invariants of `_granting`."""
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
