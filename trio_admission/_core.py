"""Every change of a pool: who comes, goes, parks and returns, and what its owner does to it.

All of it is synchronous: a change is over before anybody else runs. What the tasks do round it (waiting,
cancel scopes, nurseries) lives in `_lease` and above. The clock is given, so that a test can turn it.
Each change begins with `_begin` and ends in `_fill`, the one function that grants; see `_granting`.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Literal

from ._budget import IssuedTicket, ResumeTicket
from ._errors import LineFull, PoolClosed, WaitTimeout
from ._granting import Granting
from ._records import ONE_SLOT, Cost, EventKind, require_kind
from ._states import ENDED, HELD, PARKED, RETURNING, WAITING, Move, require

if TYPE_CHECKING:
    from ._claim import Claim


class Core(Granting):
    """The changes of one pool."""

    def arrive(self, claim: Claim) -> None:
        """Grant at once, give a place in the line, or raise `LineFull` or `PoolClosed`."""
        flow = self.calm
        if flow is not None and (claim.key != flow.key or not claim.plain or claim.parent is not None):
            flow = None
        claim.since = now = self._begin() if flow is None else self.now()
        claim.id = self._next_id()
        if flow is not None and flow.waiters:
            flow.waiters[claim] = self._ranking = None  # the head did not fit before, so nobody does
        elif flow is not None or self._comes_as_most_do(claim, now):
            self._fill(now, claim)
        if claim.granted:
            return
        if self.limited and claim.state is WAITING:
            self._limit(claim, now)
        max_wait = self.config.max_wait if claim.max_wait is ... else claim.max_wait
        if max_wait is not None and self.waits(claim):
            claim.deadline = now + max_wait
            heapq.heappush(self._deadlines, (claim.deadline, claim.id, claim))
            if len(self._deadlines) > 2 * self.line.length + 16:  # most are of claims that have gone since
                self._deadlines = [entry for entry in self._deadlines if self.waits(entry[2])]
                heapq.heapify(self._deadlines)

    def _comes_as_most_do(self, claim: Claim, now: float) -> bool:
        """Say whether it is for `_fill` to let it in; else do what is to be done with it."""
        self.announcer.note(EventKind.ARRIVED, claim)
        if claim.token is not None and self._redeem(claim):
            self._line_up(claim, now)
        elif self.closed:
            self._turn_away(claim, now, "closed")
            self._fill(now)
            raise PoolClosed(f"pool {self.name!r} is closed")
        elif not self.config.enabled:
            claim.open = True
            self._granted(claim, now)
        else:
            return True
        self._fill(now)
        return False

    def _limit(self, claim: Claim, now: float) -> None:
        """Refuse a newcomer that found no slot if the line is over a limit with it."""
        limit, per_flow = self.config.line_limit(self.held.size), self.config.max_waiting_per_flow
        over_flow = per_flow is not None and self.line.waiting_of(claim.flow) > per_flow
        if over_flow or (limit is not None and self.line.newcomers > limit):
            reason: Literal["line", "flow"] = "flow" if over_flow else "line"
            self.line.remove(claim)
            self._turn_away(claim, now, reason)
            self._fill(now)
            raise LineFull(self.statistics(), self.retry_after(), reason)

    def leave(self, claim: Claim, *, lost: bool = False) -> None:
        """Take back all that the claim has, whatever its state. The short way is what that means for most."""
        flow = self.calm
        if flow is not None and claim.state is HELD and claim.charge is ONE_SLOT and not claim.unused:
            now = self.now()
            del self.holders[claim]
            self.held.cold[claim.slots[0]] = None
            self.took.append(now - claim.since)
            claim.state, claim.slots = ENDED, ()
            if flow.waiters:
                self._fill(now)
            return
        if claim.state is ENDED:
            return
        now = self._begin()
        kind = EventKind.LOST if lost else EventKind.ENDED if claim.granted else EventKind.CANCELLED
        self.announcer.note(kind, claim, now - claim.since)
        ticket = claim.ticket
        if claim in self.parked:
            del self.parked[claim]
        elif claim not in self.holders:
            self.line.remove(claim)
        elif ticket is None or ticket.public.token not in self.tickets:
            self._vacate(claim, now, left_by=None)
        else:
            ticket.slots = claim.slots
            self._vacate(claim, now, left_by=ticket)
        claim.state = ENDED
        claim.wake_up()
        self.budget._give_back(claim)
        self.held.cool(claim.preferred, claim)
        self._fill(now)

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do; infinity = nothing is planned."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def expire(self) -> None:
        """Take out those whose ``max_wait`` has passed."""
        now = self._begin()
        while self.next_deadline <= now:
            claim = heapq.heappop(self._deadlines)[2]
            if self.waits(claim) and not claim.granted:
                self.line.remove(claim)
                claim.refusal = WaitTimeout(self.statistics(), self.retry_after())
                self._turn_away(claim, now, None)
        self._fill(now)

    def _turn_away(self, claim: Claim, now: float, reason: str | None) -> None:
        """End a claim that is in no line, for a reason or because its time is over; tell who waits for it."""
        claim.state = ENDED
        self.held.cool(claim.preferred, claim)
        kind, seconds = (EventKind.REFUSED, None) if reason else (EventKind.TIMED_OUT, now - claim.since)
        self.announcer.note(kind, claim, seconds, reason)
        claim.wake_up()

    def park(self, claim: Claim) -> None:
        """Give the claim's slots back, unless the budget refuses; then it keeps them."""
        require(Move.PARK, claim.state)
        now = self._begin()
        if claim.open:
            claim.state = PARKED
        elif self.budget._ask(claim, now):
            self._step_out(claim, now)
        else:
            claim.state = PARKED
            claim.refused = True
            self.lenders[claim] = None
            self.announcer.note(EventKind.PARK_REFUSED, claim, now - claim.since)
        self._fill(now)

    def come_back(self, claim: Claim, cost: Cost) -> None:
        """End a park: hold again at once or wait ahead of newcomers, then at ``cost``."""
        require(Move.RETURN, claim.state)
        require_kind(cost=(cost, Cost))
        now = self._begin()
        if claim.open or (claim.refused and self._stays_where_it_is(claim, cost)):
            claim.state = HELD
            self.lenders.pop(claim, None)
        else:
            if claim.refused:
                claim.preferred = claim.slots
                self._vacate(claim, now, left_by=claim)
            else:
                del self.parked[claim]
                self.budget._give_back(claim)
            claim.cost = cost
            self._line_up(claim, now)
        claim.refused = False
        self._fill(now)

    def unpark(self, claim: Claim, cost: Cost) -> None:
        """Wait for slots inside a park, at ``cost``, unless it has them. The budget's claim stays."""
        require(Move.UNPARK, claim.state)
        require_kind(cost=(cost, Cost))
        if claim.open or claim.refused:
            return
        now = self._begin()
        del self.parked[claim]
        claim.unparking = True
        claim.cost = cost
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
        self.announcer.note(EventKind.PARKED, claim, now - claim.since)
        claim.preferred = claim.slots
        self._vacate(claim, now, left_by=claim)
        self._stay_out(claim, now)

    def _stay_out(self, claim: Claim, now: float) -> None:
        claim.state, claim.since = PARKED, now
        self.parked[claim] = None

    def _line_up(self, claim: Claim, now: float) -> None:
        """Let a holder wait for slots again, ahead of newcomers."""
        claim.state, claim.since = RETURNING, now
        self.line.add_returning(claim)

    def _stays_where_it_is(self, claim: Claim, cost: Cost) -> bool:
        """Say whether the slot of a refused park is not lent out, and the new cost fits beside the others."""
        return claim.borrower is None and (claim.lender is not None or self.held.recharge(claim, cost))

    def issue_ticket(self, claim: Claim, ttl: float) -> ResumeTicket | None:
        """Return the claim's one resume ticket; None if the budget refuses it."""
        now = self._begin()
        if not claim.granted or claim.state is ENDED:
            raise RuntimeError(f"cannot issue a ticket for a lease that is {claim.state.value}")
        if claim.ticket is None:
            ticket = IssuedTicket(claim.flow, now + ttl)
            if claim.open or not self.budget._ask(ticket, now):
                return None
            claim.ticket = self.tickets[ticket.public.token] = ticket
            heapq.heappush(self._expiries, (ticket.public.expires_at, ticket.public.token))
            self.announcer.note(EventKind.TICKET_ISSUED, claim)
            self._fill(now)
        return claim.ticket.public

    def _redeem(self, claim: Claim) -> bool:
        """Use a ticket up; then it is the claim that may come back to what its lease has left.

        One that is used, expired or another flow's is no ticket.
        """
        ticket = self.tickets.get(claim.token or "")
        if ticket is None or ticket.flow != claim.flow or not self.config.enabled:
            return False
        del self.tickets[ticket.public.token]
        self.budget._give_back(ticket)
        claim.preferred = ticket.slots
        self.held.warm.update((slot, claim) for slot in ticket.slots if self.held.warm.get(slot) is ticket)
        self.announcer.note(EventKind.TICKET_USED, claim)
        return True

    def resize(self, slots: int | None, kv_tokens: int | None) -> None:
        """Change the pool's size. Nobody is thrown out."""
        now = self._begin()
        if slots is not None:
            self.held.resize(slots, {slot for claim in self.holders for slot in claim.slots})
        if kv_tokens is not None:
            self.held.kv_tokens = kv_tokens
        self.announcer.note(EventKind.RESIZED, None)
        self._fill(now)

    def close(self, *, dismiss: bool) -> None:
        """Refuse newcomers; with ``dismiss`` those in the line, too. Holders and returning holders go on."""
        now = self._begin()
        if not self.closed:
            self.closed = True
            self.announcer.note(EventKind.CLOSED, None)
        if dismiss:
            for claim in self.line.order(now, self.held.share)[len(self.line.returning) :]:
                self.line.remove(claim)
                claim.refusal = PoolClosed(f"pool {self.name!r} was closed")
                self._turn_away(claim, now, "closed")
        self._fill(now)

    def suspend(self, reason: str) -> None:
        """Hold all grants until `resume` was called as often."""
        now = self._begin()
        self.suspensions.append(reason)
        self.announcer.note(EventKind.SUSPENDED, None, reason=reason)
        self._fill(now)

    def resume(self, reason: str) -> None:
        """End one suspension."""
        now = self._begin()
        self.suspensions.remove(reason)
        self.announcer.note(EventKind.RESUMED, None, reason=reason)
        self._fill(now)
