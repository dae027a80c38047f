"""What design.md, section 4, says that a pool does, written a second time and as plainly as possible.

Nothing here is fast, and nothing is shared with the library but its words (`Cost`, `LeaseState`,
`AdmissionConfig`): every question is answered by looking at everybody. `machine` drives a `Core` and these
books side by side, so a rule that the two understand differently shows itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trio_admission import Cost, LeaseState

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_admission import AdmissionConfig

Outcome = Literal["in", "line", "flow", "closed"]
Key = tuple[int, str]  # a flow inside the class of its priority

WAITING, HELD, PARKED = LeaseState.WAITING, LeaseState.HELD, LeaseState.PARKED
RETURNING, HELD_AGAIN, ENDED = LeaseState.RETURNING, LeaseState.HELD_AGAIN, LeaseState.ENDED


@dataclass(eq=False)
class Ticket:
    """A resume ticket."""

    flow: str
    expires_at: float
    slots: tuple[int, ...] = ()
    used: bool = False


@dataclass(eq=False)
class Entry:
    """One reservation."""

    cost: Cost
    flow: str = ""
    weight: float = 1.0
    priority: int = 0
    prefer_slot: int | None = None
    deadline: float = math.inf
    attended: bool = True  # a task waits for its grant
    number: int = 0
    state: LeaseState = WAITING
    since: float = 0.0
    joined: int = 0  # when it joined its line, among all that did
    slots: tuple[int, ...] = ()
    charge: tuple[int, int] = (0, 0)
    left_behind: tuple[int, ...] = ()  # the ids that it had before its park
    granted: bool = False
    open: bool = False
    refused: bool = False
    unparking: bool = False
    budgeted: bool = False
    parent: Entry | None = None
    lender: Entry | None = None
    borrower: Entry | None = None
    ticket: Ticket | None = None
    ticket_shown: Ticket | None = None
    came_with: Ticket | None = None  # if it was good for something
    why_ended: str = ""

    @property
    def key(self) -> Key:
        return (self.priority, self.flow)

    @property
    def holds(self) -> bool:
        return self.state in {HELD, HELD_AGAIN} or (self.state is PARKED and (self.refused or self.open))


@dataclass
class BudgetBooks:
    """Who has a claim on a `ParkBudget`, worked out anew each time."""

    limit: int
    pools: list[PoolBooks] = field(default_factory=list)

    def claimants(self, now: float) -> list[Entry | Ticket]:
        """Parked leases that were not refused, and tickets that are out and live."""
        claims: list[Entry | Ticket] = []
        for pool in self.pools:
            claims += [entry for entry in pool.entries if entry.budgeted]
            claims += [ticket for ticket in pool.tickets if not ticket.used and ticket.expires_at > now]
        return claims

    def allows(self, now: float) -> bool:
        return len(self.claimants(now)) < self.limit


@dataclass
class Tags:
    """The virtual times of start-time fair queueing (F2), of every class."""

    virtual: dict[int, float] = field(default_factory=dict)
    finish: dict[Key, float] = field(default_factory=dict)
    start: dict[Key, float] = field(default_factory=dict)  # of a flow's first waiter

    def copy(self) -> Tags:
        return Tags(dict(self.virtual), dict(self.finish), dict(self.start))

    def next_start(self, key: Key) -> float:
        return max(self.virtual.get(key[0], 0.0), self.finish.get(key, 0.0))

    def charge(self, entry: Entry, share: float, *, newcomer: bool, still_waits: bool) -> None:
        """Book one request of service. What a return costs does not move the virtual time."""
        key = entry.key
        start = self.start[key] if key in self.start else self.next_start(key)
        if newcomer:
            self.virtual[key[0]] = max(self.virtual.get(key[0], 0.0), start)
        self.finish[key] = start + share / entry.weight
        self.start.pop(key, None)
        if still_waits:
            self.start[key] = self.finish[key]


class PoolBooks:
    """The books of one pool."""

    def __init__(
        self,
        slots: int,
        kv_tokens: int | None,
        config: AdmissionConfig,
        budget: BudgetBooks,
        now: Callable[[], float],
    ) -> None:
        self.slots = slots
        self.kv_tokens = kv_tokens
        self.config = config
        self.budget = budget
        self.now = now
        self.entries: list[Entry] = []  # everybody who ever arrived, in that order
        self.tickets: list[Ticket] = []
        self.suspensions = 0
        self.closed = False
        self.tags = Tags()
        self.alone: Entry | None = None
        self.lenders: list[Entry] = []  # in the order in which their parks were refused
        self.cold: list[int] = list(reversed(range(slots)))  # the last one is the next
        self.warm: list[tuple[int, Entry | Ticket]] = []  # the first one is the next
        self.joins = 0
        self.shared_out = 0  # grants of this pool's own room so far
        budget.pools.append(self)

    # Who is where.

    def in_state(self, *states: LeaseState) -> list[Entry]:
        return [entry for entry in self.entries if entry.state in states]

    @property
    def newcomers(self) -> list[Entry]:
        """Those in the line, in the order of arrival."""
        return self.in_state(WAITING)

    @property
    def returning(self) -> list[Entry]:
        """Those on their way back, in the order in which they came back."""
        return sorted(self.in_state(RETURNING), key=lambda entry: entry.joined)

    @property
    def holders(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.holds]

    @property
    def parked(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.state is PARKED and not entry.holds]

    @property
    def held(self) -> tuple[int, int]:
        """Slots and tokens that are charged."""
        holders = self.holders
        return sum(entry.charge[0] for entry in holders), sum(entry.charge[1] for entry in holders)

    @property
    def free(self) -> int:
        """Slots that a request for one slot and no tokens could take if it came back now (R1)."""
        slots, tokens = self.held
        blocked = self.suspensions or self.alone is not None or self.returning
        if blocked or (self.kv_tokens is not None and tokens > self.kv_tokens):
            return 0
        return max(0, self.slots - slots)

    # What fits, and who is next.

    def larger(self, cost: Cost) -> bool:
        return cost.slots > self.slots or (self.kv_tokens is not None and cost.tokens > self.kv_tokens)

    def fits(self, cost: Cost) -> bool:
        slots, tokens = self.held
        if self.alone is not None:
            return False
        if self.larger(cost):
            return slots == 0 and tokens == 0
        within_tokens = self.kv_tokens is None or tokens + cost.tokens <= self.kv_tokens
        return slots + cost.slots <= self.slots and within_tokens

    def share(self, cost: Cost) -> float:
        """The part of the pool that a cost takes, at most all of it (F2)."""
        by_tokens = cost.tokens / self.kv_tokens if self.kv_tokens else 0.0
        return min(1.0, max(cost.slots / self.slots, by_tokens))

    def order(self) -> list[Entry]:
        """Everybody in the line, in the order of the grants to come: by playing them through."""
        tags, order = self.tags.copy(), self.returning
        waiting = self.newcomers
        for entry in order:
            still_waits = any(other.key == entry.key for other in waiting)
            tags.charge(entry, self.share(entry.cost), newcomer=False, still_waits=still_waits)
        while waiting:
            head = self._next(waiting, tags)
            waiting.remove(head)
            still_waits = any(other.key == head.key for other in waiting)
            tags.charge(head, self.share(head.cost), newcomer=True, still_waits=still_waits)
            order.append(head)
        return order

    def head(self) -> Entry | None:
        returning, newcomers = self.returning, self.newcomers
        if returning:
            return returning[0]
        return self._next(newcomers, self.tags) if newcomers else None

    def _next(self, waiting: list[Entry], tags: Tags) -> Entry:
        first_of_flow: dict[Key, Entry] = {}
        for entry in waiting:
            first_of_flow.setdefault(entry.key, entry)
        next_of_class: dict[int, Entry] = {}
        for key, entry in sorted(
            first_of_flow.items(), key=lambda item: (tags.start[item[0]], item[1].number)
        ):
            next_of_class.setdefault(key[0], entry)
        return min(next_of_class.values(), key=self._rank)

    def _rank(self, entry: Entry) -> tuple[float, float, int]:
        aging = self.config.aging
        aged = math.floor((self.now() - entry.since) / aging) if aging is not None else 0
        return (-(entry.priority + aged), entry.since, entry.number)

    @property
    def line_limit(self) -> float:
        config = self.config
        if config.max_waiting is not None:
            return config.max_waiting if config.max_waiting > 0 else math.inf
        return max(config.waiting_per_slot * self.slots, config.min_waiting or 0)

    # Changes.

    def begin(self) -> None:
        """Forget the tickets whose time has passed."""
        expired = [ticket for ticket in self.tickets if not ticket.used and ticket.expires_at <= self.now()]
        for ticket in sorted(expired, key=lambda ticket: ticket.expires_at):
            self.tickets.remove(ticket)
            self._cool(ticket)

    def expire(self) -> None:
        """Take out those whose time to wait is over (L4)."""
        self.begin()
        for entry in sorted(self.overdue(), key=lambda entry: (entry.deadline, entry.number)):
            self._out(entry, "timed out")
        self.fill()

    def overdue(self) -> list[Entry]:
        return [
            entry
            for entry in self.in_state(WAITING, RETURNING)
            if not entry.granted and entry.deadline <= self.now()
        ]

    def arrive(self, entry: Entry) -> Outcome:
        self.begin()
        ticket = entry.ticket_shown
        self.entries.append(entry)
        entry.number = len(self.entries)
        entry.since = self.now()
        if ticket is not None and self._redeemable(ticket, entry):
            ticket.used = True
            entry.came_with, entry.left_behind = ticket, ticket.slots
            self._line_up(entry, RETURNING)
        elif self.closed:
            return self._refuse(entry, "closed")
        elif not self.config.enabled:
            entry.open = True
            self._let_in(entry)
        else:
            self._line_up(entry, WAITING)
        self.fill()
        if entry.state is WAITING:
            waiting = self.newcomers
            per_flow = self.config.max_waiting_per_flow
            if per_flow is not None and sum(other.flow == entry.flow for other in waiting) > per_flow:
                return self._refuse(entry, "flow")
            if len(waiting) > self.line_limit:
                return self._refuse(entry, "line")
        return "in"

    def _redeemable(self, ticket: Ticket, entry: Entry) -> bool:
        """Whether a ticket makes its user a returning holder, which even a closed pool lets in (E8)."""
        out = ticket in self.tickets and not ticket.used
        return self.config.enabled and out and ticket.flow == entry.flow

    def _refuse(self, entry: Entry, why: Outcome) -> Outcome:
        self._out(entry, "refused")
        return why

    def leave(self, entry: Entry, *, lost: bool = False) -> None:
        if entry.state is ENDED:
            return
        self.begin()
        why = "lost" if lost else "ended" if entry.granted else "cancelled"
        if entry.holds:
            ticket = entry.ticket
            if ticket is None or ticket.used or ticket not in self.tickets:
                ticket = None
            else:
                ticket.slots = entry.slots
            self._vacate(entry, ticket)
        self._out(entry, why)
        self.fill()

    def park(self, entry: Entry) -> None:
        self.begin()
        if entry.open:
            entry.state = PARKED
        elif self.budget.allows(self.now()):
            entry.budgeted = True
            self._step_out(entry)
        else:
            entry.state, entry.refused = PARKED, True
            self.lenders.append(entry)
        self.fill()

    def come_back(self, entry: Entry, cost: Cost) -> None:
        self.begin()
        if entry.open:
            entry.state = HELD
        elif not entry.refused:
            entry.budgeted = False
            entry.cost = cost
            self._line_up(entry, RETURNING)
        else:
            entry.refused = False
            if entry.borrower is None and self._stays_with(entry, cost):
                self.lenders.remove(entry)
                entry.state = HELD
            else:
                self._leave_slots_behind(entry)
                entry.cost = cost
                self._line_up(entry, RETURNING)
        self.fill()

    def _stays_with(self, entry: Entry, cost: Cost) -> bool:
        """Whether a refused park ends at its new cost without waiting; if so, charge it."""
        if entry.lender is not None or cost == entry.cost:
            return True
        if cost.slots != entry.cost.slots or self.alone is not None or self.larger(cost):
            return False
        more = cost.tokens - entry.charge[1]
        if self.kv_tokens is not None and more > 0 and self.held[1] + more > self.kv_tokens:
            return False
        entry.charge = (entry.charge[0], cost.tokens)
        entry.cost = cost
        return True

    def unpark(self, entry: Entry, cost: Cost) -> None:
        self.begin()
        entry.cost = cost
        entry.unparking = True
        self._line_up(entry, RETURNING)
        self.fill()

    def repark(self, entry: Entry) -> None:
        self.begin()
        entry.unparking = False
        if entry.state is RETURNING:
            entry.state, entry.since = PARKED, self.now()
        else:
            self._step_out(entry)
        self.fill()

    def resize(self, slots: int | None, kv_tokens: int | None) -> None:
        self.begin()
        if slots is not None:
            out = {slot for entry in self.holders for slot in entry.slots}
            fresh = [slot for slot in range(self.slots, slots) if slot not in out]
            self.cold = list(reversed(fresh)) + [slot for slot in self.cold if slot < slots]
            self.warm = [(slot, left_by) for slot, left_by in self.warm if slot < slots]
            self.slots = slots
        if kv_tokens is not None:
            self.kv_tokens = kv_tokens
        self.fill()

    def close(self, *, dismiss: bool) -> None:
        self.begin()
        self.closed = True
        if dismiss:
            for entry in self.newcomers:
                self._out(entry, "refused")
        self.fill()

    def suspend(self) -> None:
        self.begin()
        self.suspensions += 1

    def resume(self) -> None:
        self.begin()
        self.suspensions -= 1
        self.fill()

    def issue_ticket(self, entry: Entry, ttl: float) -> Ticket | None:
        self.begin()
        if entry.ticket is None and not entry.open and self.budget.allows(self.now()):
            entry.ticket = Ticket(entry.flow, self.now() + ttl)
            self.tickets.append(entry.ticket)
        return entry.ticket

    # Their parts.

    def fill(self) -> None:
        """Grant to who is next for as long as that fits, and let children of refused parks borrow (E9)."""
        if self.suspensions:
            return
        self._grant()
        while self._lend():
            self._grant()  # whoever stood behind the borrower may fit

    def _grant(self) -> None:
        while (head := self.head()) is not None and self.fits(head.cost):
            newcomer = head.state is WAITING
            if self.larger(head.cost):
                self.alone = head
                head.charge = (self.slots, head.cost.tokens if self.kv_tokens is None else self.kv_tokens)
            else:
                head.charge = (head.cost.slots, head.cost.tokens)
            head.slots = self._take_ids(min(head.cost.slots, self.slots), self._preferred(head))
            self._let_in(head)
            self.shared_out += 1
            self.tags.charge(
                head, self.share(head.cost), newcomer=newcomer, still_waits=self._flow_waits(head.key)
            )

    def _lend(self) -> bool:
        for lender in self.lenders:
            children = [entry for entry in (*self.returning, *self.newcomers) if entry.parent is lender]
            if lender.borrower is None and children:
                child = min(children, key=lambda entry: entry.joined)
                child.lender, lender.borrower, child.slots = lender, child, lender.slots
                self._let_in(child)
                self._flow_left(child.key)
                return True
        return False

    def _let_in(self, entry: Entry) -> None:
        entry.state = HELD_AGAIN if entry.unparking else HELD
        entry.since = self.now()
        entry.granted = True
        self._cool(entry)
        if entry.came_with is not None:
            self._cool(entry.came_with)

    def _vacate(self, entry: Entry, left_by: Entry | Ticket | None) -> None:
        """Let the slots of a holder go on to its borrower, back to its lender, or be free."""
        slots, charge = entry.slots, entry.charge
        entry.slots, entry.charge = (), (0, 0)
        entry.state = ENDED  # until the caller says where it goes
        entry.refused = False
        if entry in self.lenders:
            self.lenders.remove(entry)
        borrower, lender = entry.borrower, entry.lender
        entry.borrower = entry.lender = None
        if borrower is not None:
            borrower.lender, borrower.charge = lender, charge
            if self.alone is entry:
                self.alone = borrower
        if lender is not None:
            lender.borrower = borrower
        elif borrower is None and not entry.open:
            if self.alone is entry:
                self.alone = None
            for slot in slots:
                if slot < self.slots and left_by is None:
                    self.cold.append(slot)
                elif slot < self.slots and left_by is not None:
                    self.warm.append((slot, left_by))
        self._flow_left(entry.key)

    def _leave_slots_behind(self, entry: Entry) -> None:
        slots = entry.slots
        self._vacate(entry, entry)
        entry.left_behind = slots

    def _step_out(self, entry: Entry) -> None:
        self._leave_slots_behind(entry)
        entry.state, entry.since = PARKED, self.now()

    def _line_up(self, entry: Entry, state: LeaseState) -> None:
        self.joins += 1
        entry.joined, entry.since, entry.state = self.joins, self.now(), state
        if state is WAITING and entry.key not in self.tags.start:
            self.tags.start[entry.key] = self.tags.next_start(entry.key)

    def _out(self, entry: Entry, why: str) -> None:
        entry.state, entry.why_ended = ENDED, why
        entry.budgeted = False
        self._flow_left(entry.key)
        self._cool(entry)
        if entry.came_with is not None:
            self._cool(entry.came_with)

    def _flow_waits(self, key: Key) -> bool:
        return any(entry.key == key for entry in self.newcomers)

    def _flow_left(self, key: Key) -> None:
        """Forget a flow that neither holds nor waits; its next waiter inherits the start of its first."""
        if not self._flow_waits(key):
            self.tags.start.pop(key, None)
            if not any(entry.key == key and not entry.open for entry in self.holders):
                self.tags.finish.pop(key, None)

    # Ids (S1).

    def _preferred(self, entry: Entry) -> tuple[int, ...]:
        if entry.left_behind or entry.prefer_slot is None or entry.came_with is not None:
            return entry.left_behind
        return (entry.prefer_slot,)

    def _take_ids(self, count: int, preferred: tuple[int, ...]) -> tuple[int, ...]:
        after = [*reversed(self.cold), *(slot for slot, _ in self.warm)]
        wanted = [slot for slot in preferred if slot in after]
        taken = [*wanted, *(slot for slot in after if slot not in wanted)][:count]
        self.cold = [slot for slot in self.cold if slot not in taken]
        self.warm = [(slot, left_by) for slot, left_by in self.warm if slot not in taken]
        return tuple(taken)

    def _cool(self, left_by: Entry | Ticket) -> None:
        """Its slots are nobody's any more: as if they had been freed by an end now."""
        remembered = left_by.left_behind if isinstance(left_by, Entry) else left_by.slots
        mine = [slot for slot in remembered if (slot, left_by) in self.warm]
        self.warm = [(slot, whose) for slot, whose in self.warm if slot not in mine]
        self.cold += mine
