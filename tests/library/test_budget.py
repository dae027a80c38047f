"""How many may be parked: the budget that all pools of a run share unless they are given another."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack

import pytest
import trio

from tests.support.visitors import visiting
from trio_admission import ParkBudget, SlotPool
from trio_admission.testing import check


def use_threads(count: float) -> None:
    trio.to_thread.current_default_thread_limiter().total_tokens = count


async def parks_that_fit(pool: SlotPool, tries: int) -> int:
    """Park as often as it goes, and say how often that was."""
    async with visiting(pool) as house:
        for number in range(tries):
            visitor = await house.serve(f"{number}")
            await visitor.park()
            assert visitor.parked is not None
            if visitor.parked.refused:
                return number
    return tries


# The formula of the system that this follows, tried out by hand: threads W, slots C of busy pools, limit
FORMULA = [
    (40, 1, 10),
    (40, 25, 10),
    (40, 26, 9),
    (40, 28, 7),
    (40, 34, 1),
    (40, 35, 0),
    (40, 100, 0),
    (100, 4, 25),
    (100, 64, 24),
    (100, 88, 0),
    (8, 1, 2),  # the quarter is 2, and so is the reserve
    (8, 5, 1),
    (4, 1, 1),  # a quarter of at least 2, a reserve of at least 2
    (4, 2, 0),
    (1, 1, 0),
]


@pytest.mark.parametrize(("threads", "slots", "limit"), FORMULA)
async def test_the_default_limit_follows_from_threads_and_slots(threads: int, slots: int, limit: int) -> None:
    """E7: at most max(0, min(max(2, W//4), W - max(2, W//8) - C))."""
    use_threads(threads)
    assert await parks_that_fit(SlotPool(slots), limit + 3) == limit


async def test_endless_threads_are_no_limit() -> None:
    """E7: an infinite W is unlimited."""
    use_threads(math.inf)
    assert await parks_that_fit(SlotPool(100), 200) == 200


async def test_the_limit_is_worked_out_at_each_park() -> None:
    """E7: it follows the thread limiter, and the sizes of the pools."""
    pool = SlotPool(28)
    async with pool.admit() as lease:
        for threads, size, refused in ((40, 28, False), (32, 28, True), (32, 25, False), (40, 35, True)):
            use_threads(threads)
            pool.resize(size)
            async with lease.parked() as parked:
                assert parked.refused is refused


async def test_only_busy_pools_count() -> None:
    """E7: C is the slots of the pools that somebody uses; one that is idle, or is gone, takes no threads."""
    use_threads(40)
    pool, other = SlotPool(20), SlotPool(15)
    assert await parks_that_fit(pool, 12) == 10
    async with other.admit():
        async with pool.admit() as lease, lease.parked() as parked:
            assert parked.refused  # 40 - 5 - 35 = 0
        async with other.admit() as lease, lease.parked() as parked:
            assert not parked.refused  # `pool` is idle
    async with pool.admit() as lease, lease.parked() as parked:
        assert not parked.refused


async def test_pools_of_one_run_share_their_budget() -> None:
    """E7: unless they are given one."""
    use_threads(16)  # a quarter is 4
    first, second = SlotPool(1), SlotPool(1)
    own = SlotPool(1, park_budget=ParkBudget(1))
    async with visiting(first) as house, visiting(second) as elsewhere, visiting(own) as apart:
        refused = []
        for place in (house, elsewhere, house, elsewhere, apart, apart):
            visitor = await place.serve("visitor")
            await visitor.park()
            assert visitor.parked is not None
            refused.append(visitor.parked.refused)
            if visitor.parked.refused:
                visitor.come_back()
                await visitor.served()
                visitor.leave()
                await visitor.left()
        assert refused == [False, False, False, False, False, True]
        last = await house.serve("last")
        await last.park()
        assert last.parked is not None
        assert last.parked.refused


def test_each_run_has_a_budget_of_its_own() -> None:
    """E7: like Trio's own thread limiter."""
    pool = SlotPool(1)

    async def park(threads: int) -> bool:
        use_threads(threads)
        async with pool.admit() as lease, lease.parked() as parked:
            return parked.refused

    assert [trio.run(park, threads) for threads in (40, 1, 40)] == [False, True, False]


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_an_explicit_limit(limit: int) -> None:
    """E7: it overrides the formula."""
    use_threads(1)
    assert await parks_that_fit(SlotPool(1, park_budget=ParkBudget(limit)), limit + 1) == limit


@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("1", TypeError)]
)
def test_a_senseless_limit_is_refused(wrong: int, error: type[Exception]) -> None:
    """E7: as a mistake of the caller."""
    with pytest.raises(error, match="limit"):
        ParkBudget(wrong)


async def test_a_budget_says_how_much_of_it_is_used() -> None:
    """E7: to whoever looks at it."""
    budget = ParkBudget(2)
    pool = SlotPool(3, park_budget=budget)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            lease = await stack.enter_async_context(pool.admit())
            await stack.enter_async_context(lease.parked())
        assert repr(budget) == "<ParkBudget 2 of 2>"
        check(pool)
    assert repr(budget) == "<ParkBudget 0 of 2>"
    assert repr(ParkBudget.unlimited()) == "<ParkBudget 0 of inf>"
