"""A pool belongs to one Trio run at a time."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.support.visitors import timeline, visit
from trio_admission import Cost, ParkBudget, ResumeTicket, SlotPool, WaitTimeout
from trio_admission._claim import Claim
from trio_admission.testing import check, run_in_virtual_time

if TYPE_CHECKING:
    from trio.testing import MockClock


def test_a_pool_can_be_used_in_two_runs_one_after_the_other() -> None:
    """G3: clocks and budgets of the first run are not those of the second."""
    pool = SlotPool(1)

    async def use() -> dict[str, list[float]]:
        times = await timeline(pool, visit("a", 10, 5, 10), visit("b", 10), visit("c", 10, max_wait=50))
        check(pool)
        return times

    expected = {"a": [0, 20], "b": [10], "c": [30]}
    assert [run_in_virtual_time(use) for _ in range(3)] == 3 * [expected]


def test_a_pool_can_be_looked_at_between_runs() -> None:
    """W1: also when it had deadlines in the run."""
    pool = SlotPool(2, kv_tokens=10)

    async def use() -> None:
        async with pool.admit(), pool.admit(), pool.reserve(max_wait=5) as reservation:
            assert await reservation.wait_at_most(1) is None

    run_in_virtual_time(use)
    check(pool)
    assert pool.statistics().free == 2
    assert pool.waiting() == []
    assert pool.estimated_wait() == 0


def test_tickets_of_another_run_are_no_good() -> None:
    """E8: their time was told by another clock."""
    pool = SlotPool(1, park_budget=ParkBudget(1))

    async def issue() -> ResumeTicket | None:
        async with pool.admit() as lease:
            return lease.issue_ticket(1e9)

    async def resume() -> int:
        async with pool.admit(), pool.reserve(ticket=ticket):
            return pool.statistics().returning

    ticket = run_in_virtual_time(issue)
    assert ticket is not None
    assert run_in_virtual_time(resume) == 0
    assert run_in_virtual_time(issue) not in {ticket, None}


def test_a_pool_in_use_is_refused_to_another_run() -> None:
    """G3: `RuntimeError` there, and nothing has changed here."""
    pool = SlotPool(2)
    refused: list[str] = []

    async def meddle() -> None:
        with pytest.raises(RuntimeError, match="another Trio run") as raised:
            async with pool.admit():
                pytest.fail("admitted")
        refused.append(str(raised.value))

    async def use() -> None:
        async with pool.admit():
            thread = threading.Thread(target=trio.run, args=(meddle,))
            thread.start()
            thread.join()
            assert pool.statistics().held == 1
            check(pool)
        async with pool.admit(cost=Cost(slots=2)):
            pass

    run_in_virtual_time(use)
    assert len(refused) == 1


def test_a_run_that_dies_leaves_the_pool_as_it_was() -> None:
    """G3: on its way out each task leaves its scopes."""
    pool = SlotPool(1, park_budget=ParkBudget(2))

    async def wait() -> None:
        async with pool.admit():
            await trio.sleep_forever()

    async def park() -> None:
        async with pool.admit() as lease, lease.parked():
            await trio.sleep_forever()

    async def die() -> None:
        async with trio.open_nursery() as nursery:
            for task in (park, wait, wait, park):
                nursery.start_soon(task)
                await trio.testing.wait_all_tasks_blocked()
            raise KeyboardInterrupt

    with pytest.raises(BaseExceptionGroup):
        run_in_virtual_time(die)
    check(pool)
    now = pool.statistics()
    assert (now.held, now.waiting, now.parked, now.returning) == (0, 0, 0, 0)

    async def park_twice() -> list[bool]:
        async with (
            pool.admit() as first,
            first.parked() as one,
            pool.admit() as second,
            second.parked() as two,
        ):
            return [one.refused, two.refused]

    assert run_in_virtual_time(park_twice) == [False, False]


def test_a_pool_can_be_changed_before_there_is_a_run() -> None:
    """R1, R3, R4: by who sets it up."""
    pool = SlotPool(1)
    pool.resize(3)
    with pool.suspended("not yet"):
        assert pool.statistics().free == 0
    assert pool.statistics().free == pool.statistics().slots == 3
    pool.close()


async def test_a_wait_that_ends_badly_leaves_no_cycle_behind(autojump_clock: MockClock) -> None:
    """L4: under overload they would pile up until the next garbage collection."""

    def claims() -> int:
        return sum(isinstance(each, Claim) for each in gc.get_objects())

    pool = SlotPool(1)
    gc.collect()
    before = claims()
    gc.disable()
    try:
        async with pool.admit():
            for _ in range(10):
                with suppress(WaitTimeout):
                    async with pool.admit(max_wait=1):
                        pytest.fail("came in")
        assert claims() == before
    finally:
        gc.enable()
