"""The invariants of a pool, asserted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio_admission._states import HELD, HELD_AGAIN, PARKED, RETURNING, WAITING

if TYPE_CHECKING:
    from trio_admission import SlotPool
    from trio_admission._claim import Claim
    from trio_admission._core import Core
    from trio_admission._holdings import Holdings


def check(pool: SlotPool) -> None:
    """Assert that the pool's books are in order; may be called at any moment between two steps of a task.

    Every reservation is in exactly one place, what is held is the sum of what the holders were charged and
    fits the pool (except after a shrink), no slot has two holders, and nobody waits who could be admitted.

    Raises:
        AssertionError: says what is wrong. It is a fault of this library, so please report it.
    """
    check_core(pool._core)  # pyright: ignore[reportPrivateUsage]  # the library's own


def check_core(core: Core) -> None:
    """Assert the invariants of `_granting`."""
    holders, line = list(core.holders), core.line
    waiting = line.order(core.announcer.at, core.held.share)
    everybody = [*holders, *core.parked, *waiting]
    assert len(everybody) == len(set(everybody)), f"a claim is in two places: {everybody}"
    _check_holdings(core.held, holders)
    for claim in holders:
        assert claim.state in {HELD, HELD_AGAIN} or (claim.state is PARKED and (claim.refused or claim.open))
        assert (claim.lender is None) or claim.lender.borrower is claim, f"{claim} borrows from nobody"
    for claim in core.parked:
        assert claim.state is PARKED, f"{claim} is among the parked"
        assert not claim.slots, f"{claim} is parked with a slot"
    for claim in waiting:
        assert claim.state in {WAITING, RETURNING}, f"{claim} is in the line"
    assert line.newcomers == len(waiting) - len(line.returning), "the line is miscounted"
    if waiting and not core.suspensions:
        assert core.held.charge_for(waiting[0].cost) is None, f"{waiting[0]} fits and was left waiting"


def _check_holdings(held: Holdings, holders: list[Claim]) -> None:
    """Assert that the sums are the sums, and that each id is in one place."""
    charges = [claim.charge for claim in holders if claim.charge is not None]
    assert held.slots == sum(charge.slots for charge in charges), "held slots are not the holders' sum"
    assert held.tokens == sum(charge.tokens for charge in charges), "held tokens are not the holders' sum"
    owned = [slot for claim in holders if claim.lender is None for slot in claim.slots]
    places = [*owned, *held.cold, *held.warm]
    assert len(places) == len(set(places)), f"an id is in two places: {holders}, {held.cold}, {held.warm}"
    assert set(range(held.size)) <= set(places), f"ids are lost: only {sorted(places)} are left"
    assert all(slot < held.size for slot in (*held.cold, *held.warm)), "a retired id is free"
    if held.alone is not None:
        assert held.alone in holders, "the claim that runs alone holds nothing"
        assert charges == [held.alone.charge], f"somebody joined the claim that runs alone: {holders}"
