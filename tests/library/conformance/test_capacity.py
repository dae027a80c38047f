"""How much may run at once, and who is turned away: on a pool that admits everybody each of these fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, Cost, LineFull, WaitTimeout
from trio_admission.testing import OpenPool, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.library.conformance.conftest import MakePool
    from trio_admission import Lease, ParkBudget, Pool


async def test_no_more_run_at_once_than_there_are_slots(make_pool: MakePool) -> None:
    """G6: of twenty who come together three hold a slot, and each of them gets one in the end."""
    pool = await make_pool(3)
    async with visiting(pool) as house:
        everybody = [await house.arrive(f"visitor {number}") for number in range(20)]
        for visitor in everybody:
            await visitor.served()
            visitor.leave()
            await visitor.left()
        assert house.most == 3


async def test_no_slot_has_two_holders(make_pool: MakePool) -> None:
    """S2, G2: ids are distinct among the holders, and within the pool's size."""
    pool = await make_pool(3)
    held: list[int] = []

    async def use(lease: Lease) -> None:
        assert lease.slot is not None
        assert lease.slot in range(3)
        assert lease.slot not in held
        held.append(lease.slot)
        await trio.sleep(0.002)
        held.remove(lease.slot)

    async def come_often() -> None:
        for _ in range(5):
            async with pool.admit() as lease:
                await use(lease)

    async with trio.open_nursery() as nursery:
        for _ in range(7):
            nursery.start_soon(come_often)


async def test_a_lease_holds_as_many_slots_as_it_costs(make_pool: MakePool) -> None:
    """S2, G6: two slots for one, then only one of the two others fits into a pool of three."""
    pool = await make_pool(3)
    async with visiting(pool) as house:
        double = await house.serve("double", cost=Cost(slots=2))
        single = await house.serve("single")
        late = await house.arrive("late")
        assert double.lease is not None
        assert single.lease is not None
        assert len({*double.lease.slots, *single.lease.slots}) == 3
        assert late.waits
        single.leave()
        await late.served()


async def test_tokens_are_a_second_limit(make_pool: MakePool) -> None:
    """G6: a slot is free, but the tokens are not."""
    pool = await make_pool(4, kv_tokens=1000)
    async with visiting(pool) as house:
        long = await house.serve("long", cost=Cost(tokens=800))
        longer = await house.arrive("longer", cost=Cost(tokens=300))
        await until(lambda: pool.statistics().waiting == 1)
        assert pool.statistics().kv_held == 800
        long.leave()
        await longer.served()
        assert pool.statistics().kv_held == 300


async def test_a_request_larger_than_the_pool_runs_alone(make_pool: MakePool) -> None:
    """G6: it waits until nothing is held, holds the whole pool, and nobody joins it."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        early = await house.serve("early")
        large = await house.arrive("large", cost=Cost(slots=5))
        late = await house.arrive("late")
        assert large.waits
        early.leave()
        await large.served()
        assert large.lease is not None
        assert sorted(large.lease.slots) == [0, 1]
        assert pool.statistics().held == 2
        assert late.waits
        large.leave()
        await late.served()


async def test_a_request_with_more_tokens_than_the_pool_runs_alone(make_pool: MakePool) -> None:
    """G6: it has one slot (S2), and is charged all slots and tokens."""
    pool = await make_pool(3, kv_tokens=1000)
    async with visiting(pool) as house:
        large = await house.serve("large", cost=Cost(tokens=5000))
        late = await house.arrive("late")
        assert late.waits
        now = pool.statistics()
        assert (now.held, now.free, now.kv_held) == (3, 0, 1000)
        assert large.lease is not None
        assert len(large.lease.slots) == 1


async def test_the_line_has_a_limit(make_pool: MakePool) -> None:
    """L1: who finds neither a slot nor a place is refused at once, and may come again later."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting=2))
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        first = await house.arrive("first")
        await house.arrive("second")
        with pytest.raises(LineFull):
            async with pool.admit():
                pytest.fail("admitted")
        holder.leave()
        await first.served()
        await house.arrive("third")


async def test_max_wait_of_0_means_now_or_never(make_pool: MakePool) -> None:
    """L4: on a busy pool it is refused, on an idle one it is served."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        with pytest.raises(WaitTimeout):
            async with pool.admit(max_wait=0):
                pytest.fail("admitted")
        holder.leave()
        await holder.left()
        async with pool.admit(max_wait=0):
            pass


async def test_a_full_pool_serves_in_the_order_of_arrival(make_pool: MakePool) -> None:
    """F1: nobody is served before those who came earlier."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("a")
        waiting = [await house.arrive(name) for name in "bcdef"]
        assert house.served == ["a"]
        for following in waiting:
            holder.leave()
            await following.served()
            holder = following
        assert house.served == [*"abcdef"]


@pytest.mark.parametrize(
    "capacity_test",
    [
        test_no_more_run_at_once_than_there_are_slots,
        test_no_slot_has_two_holders,
        test_a_lease_holds_as_many_slots_as_it_costs,
        test_tokens_are_a_second_limit,
        test_a_request_larger_than_the_pool_runs_alone,
        test_a_request_with_more_tokens_than_the_pool_runs_alone,
        test_the_line_has_a_limit,
        test_max_wait_of_0_means_now_or_never,
        test_a_full_pool_serves_in_the_order_of_arrival,
    ],
)
async def test_a_pool_that_admits_everybody_fails(
    capacity_test: Callable[[MakePool], Awaitable[None]],
) -> None:
    """C2: the negative control of every test above."""

    async def make_open_pool(
        slots: int,
        *,
        kv_tokens: int | None = None,
        config: AdmissionConfig = AdmissionConfig(),  # noqa: B008  # frozen
        park_budget: ParkBudget | None = None,
    ) -> Pool:
        return OpenPool(slots, kv_tokens=kv_tokens, config=config, park_budget=park_budget)

    with pytest.raises((AssertionError, trio.TooSlowError, pytest.fail.Exception, BaseExceptionGroup)):
        await capacity_test(make_open_pool)
