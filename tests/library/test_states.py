"""The table of a lease's moves, and what a reservation may do in each state."""

from __future__ import annotations

import itertools

import pytest
import trio

from tests.support.visitors import visiting
from trio_admission import LeaseState, SlotPool
from trio_admission._states import MOVES, Move, require
from trio_admission.testing import check

LEGAL = {
    ("grant", "waiting"),
    ("grant", "returning"),
    ("park", "held"),
    ("return", "parked"),
    ("unpark", "parked"),
    ("repark", "returning"),
    ("repark", "held again"),
    *(("end", state.value) for state in LeaseState),
}


@pytest.mark.parametrize(("move", "state"), list(itertools.product(Move, LeaseState)))
def test_each_move_from_each_state(move: Move, state: LeaseState) -> None:
    """E1: the whole table, and nothing besides."""
    if (move.value, state.value) in LEGAL:
        require(move, state)
    else:
        with pytest.raises(RuntimeError, match=f"cannot {move.value} a lease that is {state.value}"):
            require(move, state)


def test_every_state_is_reached_and_left_by_some_move() -> None:
    """E1: only the end is final, and even it may be said twice."""
    reached = {LeaseState.WAITING} | {
        to for starts in MOVES.values() for tos in starts.values() for to in tos
    }
    assert reached == set(LeaseState)
    assert [move for move, starts in MOVES.items() if LeaseState.ENDED in starts] == [Move.END]


async def test_a_scope_is_entered_once() -> None:
    """E1: `RuntimeError` for the second time, and the first goes on."""
    pool = SlotPool(2)
    for scope in (pool.admit(), pool.reserve()):
        async with scope:
            with pytest.raises(RuntimeError, match="only once"):
                await scope.__aenter__()
            check(pool)
        with pytest.raises(RuntimeError, match="only once"):
            await scope.__aenter__()
    assert pool.statistics().held == 0


async def test_one_task_waits_for_a_reservation() -> None:
    """E1: a second gets `RuntimeError`, and the first its slot."""
    pool = SlotPool(1)
    async with visiting(pool) as house, trio.open_nursery() as nursery:
        holder = await house.serve("holder")
        async with pool.reserve() as reservation:
            nursery.start_soon(reservation.wait)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="another task"):
                await reservation.wait()
            with pytest.raises(RuntimeError, match="another task"):
                await reservation.wait_at_most(1)
            assert reservation.position == 1
            holder.leave()
            await trio.testing.wait_all_tasks_blocked()
            assert (await reservation.wait()).slot == 0


async def test_after_its_scope_a_reservation_is_over() -> None:
    """E1: whether it was granted or not."""
    pool = SlotPool(1)
    async with pool.reserve() as granted:
        lease = await granted.wait()
        async with pool.reserve() as waiting:
            pass
    for reservation in (granted, waiting):
        with pytest.raises(RuntimeError, match="has ended"):
            await reservation.wait()
        with pytest.raises(RuntimeError, match="has ended"):
            await reservation.wait_at_most(1)
        assert reservation.position == 0
    assert lease.state is LeaseState.ENDED
    assert (lease.slot, lease.slots) == (None, ())


@pytest.mark.parametrize("wrong", [-1, float("nan")])
async def test_a_senseless_time_to_wait_is_refused(wrong: float) -> None:
    """E1: and the place is kept."""
    pool = SlotPool(1)
    async with pool.admit(), pool.reserve() as reservation:
        with pytest.raises(ValueError, match="seconds"):
            await reservation.wait_at_most(wrong)
        assert reservation.position == 1
