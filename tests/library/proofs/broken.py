"""Deliberately broken pools. A model that does not catch each of them proves nothing about the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.library.proofs.machine import AdmissionMachine, Probe
from trio_admission import ParkBudget
from trio_admission._core import Core
from trio_admission._line import Line
from trio_admission._states import WAITING

if TYPE_CHECKING:
    from trio_admission import Cost, ResumeTicket
    from trio_admission._claim import Claim


class SilentCore(Core):
    """While it is silent, a change does not end in the granting function."""

    silent = False

    def _fill(self, now: float, newcomer: Claim | None = None) -> None:
        if self.silent:
            self._settle()
        else:
            super()._fill(now, newcomer)


class LeavesWithoutGranting(SilentCore):
    def leave(self, claim: Claim, *, lost: bool = False) -> None:
        self.silent = True
        super().leave(claim, lost=lost)
        self.silent = False


class ParksWithoutGranting(SilentCore):
    def park(self, claim: Claim) -> None:
        self.silent = True
        try:
            super().park(claim)
        finally:
            self.silent = False


class TimesOutWithoutGranting(SilentCore):
    def expire(self) -> None:
        self.silent = True
        super().expire()
        self.silent = False


class GrowsWithoutGranting(SilentCore):
    def resize(self, slots: int | None, kv_tokens: int | None) -> None:
        self.silent = True
        super().resize(slots, kv_tokens)
        self.silent = False


class ReturnsLast(Core):
    """A returning holder stands at the end of the line that it finds."""

    def _line_up(self, claim: Claim, now: float) -> None:
        head, order = self.line.head, self.line.order
        super()._line_up(claim, now)
        ahead = [one for one in Line.order(self.line, now, self.held.share) if one.state is WAITING]

        def newcomers_first(line: list[Claim]) -> list[Claim]:
            passed = [one for one in line if one in ahead]
            return passed + [one for one in line if one not in ahead]

        self.line.order = lambda now, share: newcomers_first(order(now, share))  # type: ignore[method-assign]

        def next_one(now: float) -> Claim | None:
            waiting = self.line.order(now, self.held.share)
            return waiting[0] if waiting else head(now)

        self.line.head = next_one  # type: ignore[method-assign]


class NewestFirst(Core):
    """Whoever came last is served first."""

    def _fill(self, now: float, newcomer: Claim | None = None) -> None:
        if newcomer is not None:
            self.line.add(newcomer)
        self.line.order = lambda now, share: sorted(  # type: ignore[method-assign]
            Line.order(self.line, now, share),
            key=lambda claim: (claim not in self.line.returning, -claim.id),
        )
        self.line.head = lambda now: next(  # type: ignore[method-assign]
            iter(self.line.order(now, self.held.share)), None
        )
        super()._fill(now)


class WakesBeforeGranting(Core):
    def _granted(self, claim: Claim, now: float) -> None:
        wake, claim.wake = claim.wake, None
        if wake is not None:
            wake()
        super()._granted(claim, now)
        claim.wake = wake


class ShrinksByEviction(Core):
    def resize(self, slots: int | None, kv_tokens: int | None) -> None:
        super().resize(slots, kv_tokens)
        while self.held.slots > self.held.size:
            self.leave(next(reversed(self.holders)))


class SkipsTheHead(Core):
    """Somebody smaller passes a head that does not fit."""

    def _fill(self, now: float, newcomer: Claim | None = None) -> None:
        super()._fill(now, newcomer)
        head = self.line.head
        for claim in self.line.order(now, self.held.share)[1:]:
            if not self.suspensions and self.held.charge_for(claim.cost) is not None:
                self.line.head = lambda now, one=claim: one if self.waits(one) else None  # type: ignore[misc, method-assign]
                super()._fill(now)
                self.line.head = head  # type: ignore[method-assign]


class LeakyBudget(ParkBudget):  # type: ignore[misc]  # final for users, not for those who break it
    """Does not notice that a park is over."""

    def _give_back(self, claimant: object) -> None:
        pass


class GenerousBudget(ParkBudget):  # type: ignore[misc]
    """Forgets who parks as soon as it has said yes."""

    def _ask(self, claimant: object, now: float) -> bool:
        return super()._ask(Probe(), now)


class LeaksCost(Core):
    """A change of cost on the way back charges a token that nobody gives back."""

    def come_back(self, claim: Claim, cost: Cost) -> None:
        before = claim.cost
        super().come_back(claim, cost)
        if cost != before:
            self.held.tokens += 1


class LeaksSlots(Core):
    """An id is lost when its holder parks."""

    def _step_out(self, claim: Claim, now: float) -> None:
        super()._step_out(claim, now)
        self.held.take_ids(1 if self.held.free else 0)


class TicketsForEver(Core):
    """A ticket can be used again."""

    def _redeem(self, claim: Claim) -> bool:
        known = dict(self.tickets)
        redeemed = super()._redeem(claim)
        self.tickets.update(known)
        return redeemed


class OneTicketTooMany(Core):
    """A lease is given a second ticket when it asks again."""

    def issue_ticket(self, claim: Claim, ttl: float) -> ResumeTicket | None:
        claim.ticket = None
        return super().issue_ticket(claim, ttl)


class LendsToAll(Core):
    """Children borrow although their parent decodes."""

    def _fill(self, now: float, newcomer: Claim | None = None) -> None:
        self.lenders.update(dict.fromkeys(claim for claim in self.holders if not claim.open))
        super()._fill(now, newcomer)


class AdmitsWhileSuspended(Core):
    """A newcomer that finds a free slot takes it, whatever is going on."""

    def _fill(self, now: float, newcomer: Claim | None = None) -> None:
        reasons = self.suspensions
        if newcomer is not None:
            self.suspensions = []
        super()._fill(now, newcomer)
        self.suspensions = reasons


BROKEN_CORES: list[type[Core]] = [
    LeavesWithoutGranting,
    ParksWithoutGranting,
    TimesOutWithoutGranting,
    GrowsWithoutGranting,
    ReturnsLast,
    NewestFirst,
    WakesBeforeGranting,
    ShrinksByEviction,
    SkipsTheHead,
    LeaksCost,
    LeaksSlots,
    TicketsForEver,
    OneTicketTooMany,
    LendsToAll,
    AdmitsWhileSuspended,
]
BROKEN_BUDGETS: list[type[ParkBudget]] = [LeakyBudget, GenerousBudget]


def machine_with(core: type[Core] = Core, budget: type[ParkBudget] = ParkBudget) -> type[AdmissionMachine]:
    """Return the machine with a part of it exchanged."""
    return type("Broken", (AdmissionMachine,), {"make_core": core, "make_budget": budget})
