"""A Hypothesis machine that drives two cores, which share a park budget, beside the books of `oracle`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.library.proofs.oracle import (
    ENDED,
    HELD,
    HELD_AGAIN,
    PARKED,
    RETURNING,
    WAITING,
    BudgetBooks,
    Entry,
    PoolBooks,
    Ticket,
)
from trio_admission import (
    AdmissionConfig,
    Cost,
    EventKind,
    LeaseState,
    LineFull,
    ParkBudget,
    PoolClosed,
    WaitTimeout,
)
from trio_admission._claim import Claim
from trio_admission._core import Core
from trio_admission._holdings import Holdings
from trio_admission._records import ONE_SLOT
from trio_admission.testing._check import check_core

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_admission import PoolEvent, ResumeTicket

# Numbers whose sums and quotients are exact in binary, so that no two ways of adding them differ.
SIZES = st.sampled_from([2, 1, 2, 4])
COSTS = st.sampled_from(
    [ONE_SLOT] * 7
    + [Cost(tokens=1), Cost(tokens=3), Cost(tokens=5), Cost(tokens=9)]
    + [Cost(2), Cost(2), Cost(2, 3), Cost(3), Cost(5, 20)]
)
WHICH = st.integers(0, 999)  # of however many there are
SELDOM = st.integers(-9, 3)  # whether, and which


@dataclass(frozen=True)
class Arrive:
    pool: int
    cost: Cost
    flow: str
    weight: float
    priority: int
    max_wait: float | None
    attended: bool
    prefer_slot: int | None
    parent: int
    ticket: int


@dataclass(frozen=True)
class MakeMove:
    """What the holder of a place or a lease can do; `MOVES` says in which states."""

    what: str
    which: int
    cost: Cost | None


@dataclass(frozen=True)
class OwnerActs:
    pool: int
    act: str
    slots: int | None
    tokens: int | None


@dataclass(frozen=True)
class TimePasses:
    """The clock goes on; those whose time to wait is over wake in time, or late."""

    seconds: float
    prompt: bool
    ticket: int  # goes on until this one expires instead


@dataclass(frozen=True)
class IllegalMove:
    what: str
    which: int


MOVES: dict[str, set[LeaseState]] = {
    "finish": {HELD, HELD_AGAIN},
    "leave": {WAITING, HELD, PARKED, RETURNING, HELD_AGAIN},
    "lose": {PARKED, RETURNING},
    "park": {HELD},
    "come back": {PARKED},
    "unpark": {PARKED},
    "repark": {RETURNING, HELD_AGAIN},
    "issue ticket": {HELD, PARKED, RETURNING, HELD_AGAIN},
    "look away": {WAITING, RETURNING},
}
WEIGHTED_MOVES = (
    ["finish"] * 5 + ["park"] * 5 + ["come back"] * 3 + ["unpark"] * 3 + ["issue ticket"] * 2
) + ["leave", "lose", "repark", "look away"]
ARRIVALS = st.builds(
    Arrive,
    pool=st.sampled_from([0, 0, 0, 0, 1]),
    cost=COSTS,
    flow=st.sampled_from("aab"),
    weight=st.sampled_from([1.0, 1.0, 0.5, 2.0]),
    priority=st.sampled_from([0, 0, 0, 1, -1]),
    max_wait=st.sampled_from([None, None, 0.0, 2.0, 10.0]),
    attended=st.sampled_from([True, True, False]),
    prefer_slot=st.sampled_from([None, None, None, None, None, 0, 1, 7]),
    parent=SELDOM,
    ticket=st.integers(-3, 3),
)
MOVES_MADE = st.builds(
    MakeMove, what=st.sampled_from(WEIGHTED_MOVES), which=WHICH, cost=st.none() | st.none() | COSTS
)
ACTS = st.builds(
    OwnerActs,
    pool=st.sampled_from([0, 0, 0, 1]),
    act=st.sampled_from(["resize"] * 16 + ["suspend"] * 2 + ["resume"] * 8 + ["close", "refuse at the door"]),
    slots=st.sampled_from([None, 1, 2, 4, 4]),
    tokens=st.sampled_from([None, None, 8, 16]),
)
PASSING = st.builds(
    TimePasses,
    seconds=st.sampled_from([1.0, 2.0, 5.0, 30.0]),
    prompt=st.sampled_from([True, True, False]),
    ticket=SELDOM,
)
ILLEGAL = st.builds(IllegalMove, st.sampled_from(["park", "come back", "unpark", "repark"]), WHICH)
# One rule with weights: of many rules Hypothesis leaves out about half in each example, and the interesting
# meetings (a full line, a park, a growing pool) need most of them.
EVENTS = st.sampled_from([ARRIVALS] * 8 + [MOVES_MADE] * 8 + [ACTS] * 2 + [PASSING] * 2 + [ILLEGAL]).flatmap(
    lambda strategy: strategy
)
ENDS = {EventKind.REFUSED, EventKind.TIMED_OUT, EventKind.CANCELLED, EventKind.LOST, EventKind.ENDED}


class Listener:
    """The task that waits for a grant, at the moment in which it is woken."""

    def __init__(self, core: Core, claim: Claim) -> None:
        self._core = core
        self._claim = claim

    def __call__(self) -> None:
        claim = self._claim
        if claim.refusal is not None:
            assert isinstance(claim.refusal, PoolClosed | WaitTimeout)
            assert claim.state is ENDED, f"{claim} was told of its refusal before its end"
            return
        assert claim.state in {HELD, HELD_AGAIN}, f"G2: {claim} was woken before it was granted"
        assert claim.granted, f"G2: {claim} was woken before it was granted"
        assert claim.slots, f"G2: {claim} was woken before it had slots"
        assert claim in self._core.holders, f"G2: {claim} was woken before it owned its slots"


class Pair:
    """One pool, twice: the library's core and the oracle's books."""

    def __init__(self, core: Core, books: PoolBooks, *, watched: bool) -> None:
        self.core = core
        self.books = books
        self.watched = watched
        self.claims: dict[Entry, Claim] = {}
        self.tickets: list[tuple[Ticket, ResumeTicket]] = []
        self.events: list[PoolEvent] = []
        self.lines_before: dict[tuple[int, str], list[Entry]] = {}
        self.returning_before: list[Entry] = []
        self.shared_out_before = 0
        if watched:
            core.announcer.instruments.append(self.events.append)

    def live(self, *states: LeaseState) -> list[Entry]:
        return self.books.in_state(*states)

    def remember(self) -> None:
        """Note who waits, for the rules that compare a moment with the one before."""
        self.lines_before = {}
        for entry in self.books.newcomers:
            self.lines_before.setdefault(entry.key, []).append(entry)
        self.returning_before = self.books.returning
        self.shared_out_before = self.books.shared_out

    def listen(self, entry: Entry) -> None:
        """Wait for the claim as a task does, if it waits and is attended."""
        claim = self.claims[entry]
        if entry.attended and self.core.waits(claim):
            claim.wake = Listener(self.core, claim)


class AdmissionMachine(RuleBasedStateMachine):
    """Two pools with one park budget, and everything that can happen to them."""

    make_core: ClassVar[type[Core]] = Core
    make_budget: ClassVar[type[ParkBudget]] = ParkBudget

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.pairs: list[Pair] = []
        self.changed = False
        self.sound = True  # nothing has failed so far
        self.issued = 0
        self.plain = False

    def now(self) -> float:
        return self.time

    @initialize(
        sizes=st.tuples(SIZES, SIZES),
        kv_tokens=st.sampled_from([(None, None), (None, 16), (16, None), (8, 8)]),
        limit=st.sampled_from([4, 2, 1, 0, 0]),
        max_waiting=st.sampled_from([None, None, None, 0, 4]),
        waiting_per_slot=st.sampled_from([16, 2]),
        min_waiting=st.sampled_from([64, 5, None]),
        max_waiting_per_flow=st.sampled_from([None, None, None, 3, 0]),
        aging=st.sampled_from([None, 4.0]),
        enabled=st.sampled_from([True, True, True, False]),
        plain=st.booleans(),
    )
    def open_pools(
        self,
        sizes: tuple[int, int],
        kv_tokens: tuple[int | None, int | None],
        limit: int,
        max_waiting: int | None,
        waiting_per_slot: int,
        min_waiting: int | None,
        max_waiting_per_flow: int | None,
        aging: float | None,
        enabled: bool,
        plain: bool,
    ) -> None:
        """The second pool is there to share the budget; its line has no limits but it may be off.

        In a ``plain`` example almost everybody is of one flow, takes one slot and is watched by nobody: a
        core takes short cuts then.
        """
        self.plain = plain
        limits = AdmissionConfig(
            max_waiting=max_waiting,
            waiting_per_slot=waiting_per_slot,
            min_waiting=min_waiting,
            max_waiting_per_flow=max_waiting_per_flow,
            aging=aging,
        )
        configs = (limits, AdmissionConfig(enabled=enabled))
        self.budget, self.budget_books = self.make_budget(limit), BudgetBooks(limit)
        for slots, tokens, config in zip(sizes, (None, None) if plain else kv_tokens, configs, strict=True):
            core = self.make_core("pool", Holdings(slots, tokens), config, self.budget, self.now)
            books = PoolBooks(slots, tokens, config, self.budget_books, self.now)
            self.pairs.append(Pair(core, books, watched=not plain))

    def any_of(self, states: set[LeaseState]) -> list[tuple[Pair, Entry]]:
        return [(pair, entry) for pair in self.pairs for entry in pair.live(*states)]

    def before(self) -> None:
        for pair in self.pairs:
            pair.remember()
        self.changed = True
        self.sound = False

    # What can happen.

    @rule(event=EVENTS)
    def step(self, event: Arrive | MakeMove | OwnerActs | TimePasses | IllegalMove) -> None:
        if isinstance(event, Arrive):
            self.arrive(event)
        elif isinstance(event, MakeMove):
            self.move(event)
        elif isinstance(event, OwnerActs):
            self.owner_acts(event)
        elif isinstance(event, TimePasses):
            self.time_passes(event)
        else:
            self.illegal_move(event)

    def arrive(self, event: Arrive) -> None:
        self.before()
        if self.plain:
            event = replace(
                event, cost=ONE_SLOT if event.cost.slots < 3 else event.cost, flow="a", priority=0
            )
        pair = self.pairs[event.pool]
        entry = Entry(event.cost, event.flow, event.weight, event.priority, event.prefer_slot)
        entry.attended = event.attended
        tickets = [known for other in self.pairs for known in other.tickets]
        shown = None
        if event.ticket >= 0 and tickets:
            entry.ticket_shown, shown = tickets[event.ticket % len(tickets)]
        claim = Claim(
            event.cost, event.flow, event.weight, event.priority, event.max_wait, event.prefer_slot, shown
        )
        pair.claims[entry] = claim
        if event.max_wait is not None:
            entry.deadline = self.time + event.max_wait
        parents = pair.live(PARKED, HELD, RETURNING, HELD_AGAIN)
        if event.parent >= 0 and parents:
            entry.parent = parents[event.parent % len(parents)]
            claim.parent = pair.claims[entry.parent]
        expected = pair.books.arrive(entry)
        outcome, full = "in", None
        try:
            pair.core.arrive(claim)
        except LineFull as refusal:
            outcome, full = refusal.reason, refusal
        except PoolClosed:
            outcome = "closed"
        if full is not None:
            assert full.statistics == pair.core.statistics(), "L3: the refusal carries old counts"
            assert 1.0 <= full.retry_after <= 60.0, "W3"
        assert outcome == expected, f"L1, L2, F4, R3: arrival was {outcome}, not {expected}"
        pair.listen(entry)

    def move(self, event: MakeMove) -> None:
        candidates = [one for one in self.any_of(MOVES[event.what]) if can_move(event.what, one[1])]
        if not candidates:
            return
        self.before()
        pair, entry = candidates[event.which % len(candidates)]
        core, books, claim = pair.core, pair.books, pair.claims[entry]
        if event.what in {"finish", "leave", "lose", "repark", "look away"}:
            claim.wake = None  # whoever waited is on its way out
        if event.what in {"finish", "leave", "lose"}:
            books.leave(entry, lost=event.what == "lose")
            core.leave(claim, lost=event.what == "lose")
        elif event.what == "park":
            books.park(entry)
            core.park(claim)
            assert claim.refused is entry.refused, f"E7: the budget was asked for {claim}"
        elif event.what == "come back":
            books.come_back(entry, event.cost or entry.cost)
            core.come_back(claim, event.cost or claim.cost)
        elif event.what == "unpark":
            books.unpark(entry, event.cost or entry.cost)
            core.unpark(claim, event.cost or claim.cost)
        elif event.what == "repark":
            books.repark(entry)
            core.repark(claim)
        elif event.what == "issue ticket":
            self.issue_ticket(pair, entry, claim)
        elif event.what == "look away":  # as between two calls of `wait_at_most`, or back again
            entry.attended = not entry.attended or entry.granted
        pair.listen(entry)

    def issue_ticket(self, pair: Pair, entry: Entry, claim: Claim) -> None:
        first = entry.ticket is None
        self.issued += 1
        ttl = 4.0 + self.issued / 1024  # no two expire together: which of them goes first is left open
        ticket = pair.books.issue_ticket(entry, ttl)
        public = pair.core.issue_ticket(claim, ttl)
        assert (public is None) == (ticket is None), f"E8: the budget was asked for a ticket of {claim}"
        if ticket is not None and public is not None and first:
            pair.tickets.append((ticket, public))

    def owner_acts(self, event: OwnerActs) -> None:
        self.before()
        core, books = self.pairs[event.pool].core, self.pairs[event.pool].books
        if event.act == "resize":
            books.resize(event.slots, event.tokens)
            core.resize(event.slots, event.tokens)
        elif event.act == "suspend":
            books.suspend()
            core.suspend("away")
        elif event.act == "resume":
            if books.suspensions:
                books.resume()
                core.resume("away")
        else:
            books.close(dismiss=event.act == "close")
            core.close(dismiss=event.act == "close")

    def time_passes(self, event: TimePasses) -> None:
        until = self.time + event.seconds
        tickets = [ticket for pair in self.pairs for ticket in pair.books.tickets]
        if event.ticket >= 0 and tickets:
            until = max(self.time, tickets[event.ticket % len(tickets)].expires_at)
        while event.prompt and (due := self.next_deadline()) < until:
            self.time = max(self.time, due)
            self.wake_overdue()
        self.time = until
        if event.prompt:
            self.wake_overdue()

    def next_deadline(self) -> float:
        waiting = [entry for _, entry in self.any_of({WAITING, RETURNING})]
        return min((entry.deadline for entry in waiting if not entry.granted), default=math.inf)

    def wake_overdue(self) -> None:
        for pair in self.pairs:
            if pair.books.overdue():
                self.before()
                assert pair.core.next_deadline <= self.time, "L4: nobody was told to look after the overdue"
                pair.books.expire()
                pair.core.expire()
                self.compare()

    def illegal_move(self, event: IllegalMove) -> None:
        """E1: a move that the table does not have raises, and changes nothing. E2: nobody leaves twice."""
        everybody = self.any_of(set(LeaseState))
        if not everybody:
            return
        self.before()
        pair, entry = everybody[event.which % len(everybody)]
        core, claim, told = pair.core, pair.claims[entry], len(pair.events)
        if entry.state is ENDED:
            core.leave(claim)
        if entry.state in MOVES[event.what]:
            return
        calls: dict[str, Callable[[], None]] = {
            "park": lambda: core.park(claim),
            "come back": lambda: core.come_back(claim, Cost()),
            "unpark": lambda: core.unpark(claim, Cost()),
            "repark": lambda: core.repark(claim),
        }
        try:
            calls[event.what]()
        except RuntimeError:
            assert len(pair.events) == told, "E1: an illegal move was announced"
        else:
            raise AssertionError(f"E1: {event.what} is no move of {claim}")

    # What must be true after each.

    @invariant()
    def compare(self) -> None:
        self.sound = False
        for pair in self.pairs:
            if pair.core.config.aging is not None:
                pair.core._ranking = None  # it is as old as the latest change, and the books are not
            statistics = pair.core.statistics()
            check_promises(pair, self.time)
            assert statistics.held == pair.books.held[0], "E2, G6: held slots"
            assert statistics.kv_held == pair.books.held[1], "E2, G6: held tokens"
            assert statistics.waiting == len(pair.books.newcomers), "W1: newcomers"
            assert statistics.returning == len(pair.books.returning), "W1: returning"
            assert statistics.parked == len(pair.books.parked), "W1: parked"
            assert statistics.free == pair.books.free, "R1: free"
            check_entries(pair)
            if self.changed:
                check_order(pair)
            check_core(pair.core)
        check_budget(self.budget, self.budget_books, self.time)
        self.changed = False
        self.sound = True

    def teardown(self) -> None:
        """Let everybody finish, in the order foretold, and see that nothing is left."""
        if not self.sound:
            return  # the failure is told already, and this would hide it
        for pair in self.pairs:
            drain(pair)
        if self.pairs:
            self.time += 1000.0
            for pair in self.pairs:
                pair.core.forget_tickets(self.time)
                assert pair.core.idle, "P1: somebody is left"
                assert not pair.core.tickets, "P1: a ticket is left"
            check_budget(self.budget, self.budget_books, self.time)


def can_move(what: str, entry: Entry) -> bool:
    """Whether the scopes round the core would let this happen."""
    if what == "unpark":
        return not entry.holds  # in a refused park, and with control off, nothing is to be had
    if what == "repark":
        return entry.unparking
    return what != "issue ticket" or entry.granted


def check_promises(pair: Pair, now: float) -> None:
    """The rules of design.md that can be said without knowing what happened."""
    core, books = pair.core, pair.books
    holders = list(core.holders)
    owners = [claim for claim in holders if claim.lender is None and not claim.open]
    owned = [slot for claim in owners for slot in claim.slots]
    assert len(owned) == len(set(owned)), f"S2: a slot is held twice: {owners}"
    for claim in owners:
        if core.held.alone is None and claim.charge == claim.cost:
            assert len(claim.slots) == claim.cost.slots, f"S2: {claim} holds too few ids"
    if books.shared_out > pair.shared_out_before:
        slots, tokens = core.held.slots, core.held.tokens
        assert slots <= core.held.size, "G6: somebody entered a pool that is over its slots"
        assert core.held.kv_tokens is None or tokens <= core.held.kv_tokens, "G6: over its tokens"
    for claim in holders:
        if claim.borrower is not None:
            assert claim.refused, f"E9: {claim} lends while it decodes"
            assert claim.borrower.slots == claim.slots
    for claim in pair.claims.values():
        assert all(map(core.waits, claim.children)), f"E9: {claim} would lend to {list(claim.children)}"
    line = core.waiting()
    if line and not core.suspensions:
        claims = {claim.id: claim for claim in pair.claims.values()}
        assert core.held.charge_for(claims[line[0].id].cost) is None, f"G7: {line[0]} is left waiting"
    returning = [waiting.returning for waiting in line]
    assert returning == sorted(returning, reverse=True), f"G4: a newcomer stands before a returner: {line}"
    check_turns(pair)
    assert all(waiting.waited == now - pair_since(pair, waiting.id) for waiting in line), "W1: waited"


def pair_since(pair: Pair, number: int) -> float:
    return pair.books.entries[number - 1].since


def check_turns(pair: Pair) -> None:
    """G4, F1, G5: within a flow, and among those who return, nobody was granted before one ahead of it."""
    for before in (*pair.lines_before.values(), pair.returning_before):
        claims = [pair.claims[entry] for entry in before]
        passed = [claim in pair.core.holders for claim in claims if still_in_turn(claim)]
        assert passed == sorted(passed, reverse=True), f"F1: out of turn: {claims}"


def still_in_turn(claim: Claim) -> bool:
    """Whether it waits, or was granted what it waited for; not borrowed, and not given up."""
    return claim.state in {WAITING, RETURNING} or (claim.state in {HELD, HELD_AGAIN} and claim.lender is None)


def check_entries(pair: Pair) -> None:
    for entry, claim in pair.claims.items():
        assert claim.state is entry.state, f"{claim} should be {entry.state.value} ({entry.why_ended})"
        if entry.state is ENDED:
            continue
        assert claim.slots == entry.slots, f"S1: {claim} should have slots {entry.slots}"
        charge = (claim.charge.slots, claim.charge.tokens) if claim.charge is not None else (0, 0)
        assert charge == entry.charge, f"G6: {claim} is charged {charge}, not {entry.charge}"
    if not pair.watched:
        return
    ended = {event.id for event in pair.events if event.kind in ENDS}
    assert sum(event.kind in ENDS for event in pair.events) == len(ended), "W2: an end was told twice"
    really = {entry.number for entry in pair.books.entries if entry.state is ENDED}
    assert ended == really, "W2: the ends that were told are not those that happened"


def check_order(pair: Pair) -> None:
    """The line's order is that of the grants to come."""
    order = [entry.number for entry in pair.books.order()]
    line = pair.core.waiting()
    assert [waiting.id for waiting in line] == order, f"F1-F3: {line} should be in the order {order}"
    for place, number in enumerate(order, 1):
        claim = pair.claims[pair.books.entries[number - 1]]
        assert pair.core.position(claim) == place, f"W1: {claim} is not at {place}"


class Probe:
    """Somebody who asks the budget, to see whether there is room."""


def check_budget(budget: ParkBudget, books: BudgetBooks, now: float) -> None:
    expected = len(books.claimants(now))
    room = budget._ask(probe := Probe(), now)
    assert room == (expected < books.limit), f"E7: {budget} should have {expected} claims"
    budget._give_back(probe)
    assert len(budget._claims) == expected, f"E7: {budget} should have {expected} claims"


def drain(pair: Pair) -> None:
    core, books = pair.core, pair.books
    while books.suspensions:
        books.resume()
        core.resume("away")
    for entry in [*books.parked, *books.in_state(HELD_AGAIN)]:
        core.leave(pair.claims[entry])
        books.leave(entry)
    foretold = [waiting.id for waiting in core.waiting()]
    borrowing = any(claim.refused for claim in core.holders)  # a child's turn depends on its parent
    started = len(pair.events)
    while books.holders:
        entry = books.holders[0]
        core.leave(pair.claims[entry])
        books.leave(entry)
    came = [
        event.id
        for event in pair.events[started:]
        if event.id is not None and event.kind in {EventKind.GRANTED, EventKind.RETURNED, EventKind.UNPARKED}
    ]
    assert core.idle, f"G7: nobody holds anything, and {core.waiting()} wait"
    assert borrowing or not pair.watched or came == foretold, (
        f"positions: {foretold} were foretold, {came} came"
    )
    assert all(claim.state is ENDED for claim in pair.claims.values())
    assert core.held.slots == core.held.tokens == 0, "E2: something was not given back"
    assert core.held.free == core.held.size, "E2: a slot is lost"
    check_core(core)
