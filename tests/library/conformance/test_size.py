"""Growing, shrinking, suspending, closing, draining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, Cost, PoolClosed, WaitTimeout

if TYPE_CHECKING:
    from tests.library.conformance.conftest import MakePool


async def test_growing_admits_the_oldest_first(make_pool: MakePool) -> None:
    """R1: two more slots, two more holders."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        await house.serve("holder")
        a, b, c = [await house.arrive(name) for name in "abc"]
        pool.resize(3)
        await a.served()
        await b.served()
        assert c.reservation.position == 1
        assert pool.statistics().slots == 3


async def test_shrinking_throws_nobody_out(make_pool: MakePool) -> None:
    """R1: three of three go on; nobody enters before what is held is below the new size."""
    pool = await make_pool(3)
    async with visiting(pool) as house:
        holders = [await house.serve(name) for name in "abc"]
        waiting = await house.arrive("waiting")
        pool.resize(1)
        now = pool.statistics()
        assert (now.slots, now.held, now.free) == (1, 3, 0)
        for holder in holders[:2]:
            holder.leave()
            await holder.left()
            assert waiting.waits
            assert pool.statistics().free == 0
        holders[2].leave()
        await waiting.served()
        assert waiting.lease is not None
        assert waiting.lease.slots == (0,)


async def test_ids_above_the_new_size_retire_when_they_come_back(make_pool: MakePool) -> None:
    """R1: and a slot below it is not given away while the pool is as full as it may be."""
    pool = await make_pool(4)
    async with visiting(pool) as house:
        holders = [await house.serve(name) for name in "abcd"]
        pool.resize(2)
        low, high = holders[:2], holders[2:]
        for holder in low:
            holder.leave()
            await holder.left()
        # Two ids below the new size are free, but two slots are held.
        assert pool.statistics().free == 0
        waiting = await house.arrive("waiting")
        assert waiting.waits
        high[0].leave()
        await waiting.served()
        assert waiting.lease is not None
        assert waiting.lease.slot in {0, 1}
        high[1].leave()
        await high[1].left()
        assert pool.statistics().free == 1
        last = await house.serve("last")
        assert last.lease is not None
        assert {*waiting.lease.slots, *last.lease.slots} == {0, 1}


async def test_growing_again_gives_a_retired_id_back(make_pool: MakePool) -> None:
    """R1, S2: also one that is still held, which is then held once."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        first, second = await house.serve("first"), await house.serve("second")
        pool.resize(1)
        pool.resize(3)
        third = await house.serve("third")
        leases = [visitor.lease for visitor in (first, second, third)]
        assert sorted(lease.slot for lease in leases if lease and lease.slot is not None) == [0, 1, 2]
        for visitor in (first, second, third):
            visitor.leave()
            await visitor.left()
        async with pool.admit(cost=Cost(slots=3)) as lease:
            assert sorted(lease.slots) == [0, 1, 2]


async def test_tokens_shrink_as_slots_do(make_pool: MakePool) -> None:
    """R1: nobody is thrown out, and nobody enters before there is room."""
    pool = await make_pool(4, kv_tokens=1000)
    async with visiting(pool) as house:
        holder = await house.serve("holder", cost=Cost(tokens=900))
        pool.resize(kv_tokens=500)
        with pytest.raises(WaitTimeout):
            async with pool.admit(max_wait=0):
                pytest.fail("admitted")
        waiting = await house.arrive("waiting", cost=Cost(tokens=1))
        assert waiting.waits
        assert (pool.statistics().kv_tokens, pool.statistics().kv_held) == (500, 900)
        holder.leave()
        await waiting.served()


async def test_no_slot_is_free_while_somebody_who_returns_waits_for_more(make_pool: MakePool) -> None:
    """R1: nobody goes before those who come back, so nobody could take what is left beside them."""
    pool = await make_pool(4)
    async with visiting(pool) as house:
        wide = await house.serve("wide", cost=Cost(slots=2))
        await wide.park()
        holder = await house.serve("holder", cost=Cost(slots=3))
        assert pool.statistics().free == 1
        await wide.return_to_line()
        assert pool.statistics().free == 0
        holder.leave()
        await wide.served()
        assert pool.statistics().free == 2


async def test_no_slot_is_free_while_more_tokens_are_held_than_there_are(make_pool: MakePool) -> None:
    """R1: after the tokens shrank, not even a request without any could enter."""
    pool = await make_pool(2, kv_tokens=100)
    async with visiting(pool) as house:
        holder = await house.serve("holder", cost=Cost(tokens=80))
        assert pool.statistics().free == 1
        pool.resize(kv_tokens=50)
        assert pool.statistics().free == 0
        holder.leave()
        await holder.left()
        assert pool.statistics().free == 2


async def test_what_a_request_asks_for_does_not_change_the_size(make_pool: MakePool) -> None:
    """R2: neither a large cost nor a preferred slot that does not exist."""
    pool = await make_pool(2, kv_tokens=10)
    options: list[dict[str, Any]] = [
        {"cost": Cost(slots=9, tokens=99)},
        {"prefer_slot": 7},
        {"priority": 99, "weight": 99.0},
    ]
    for how in options:
        async with pool.admit(**how):
            assert pool.statistics().slots == 2
        assert (pool.statistics().slots, pool.statistics().kv_tokens) == (2, 10)


async def test_a_closed_pool_refuses_newcomers_and_ends_the_line(make_pool: MakePool) -> None:
    """R3: whoever waits gets `PoolClosed`, and so does who asks for the lease later."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        await house.serve("holder")
        waiting = await house.arrive("waiting")
        async with pool.reserve() as unattended:
            pool.close()
            await waiting.left()
            assert isinstance(waiting.error, PoolClosed)
            with pytest.raises(PoolClosed):
                await unattended.wait()
            with pytest.raises(PoolClosed):
                await unattended.wait_at_most(1)
            with pytest.raises(PoolClosed):
                _ = unattended.lease
        for arriving in (pool.admit, pool.reserve):
            with pytest.raises(PoolClosed):
                async with arriving():
                    pytest.fail("entered")
        now = pool.statistics()
        assert (now.held, now.waiting) == (1, 0)


async def test_a_closed_pool_refuses_although_a_slot_is_free(make_pool: MakePool) -> None:
    """R3: closing twice changes nothing."""
    pool = await make_pool(1)
    pool.close()
    pool.close()
    with pytest.raises(PoolClosed):
        async with pool.admit():
            pytest.fail("entered")


async def test_after_a_close_holders_finish_and_parked_holders_return(make_pool: MakePool) -> None:
    """R3: they may even park anew."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        parker = await house.serve("parker")
        await parker.park()
        holder = await house.serve("holder")
        pool.close()
        await parker.return_to_line()
        await holder.park()
        await parker.served()
        await holder.return_to_line()
        parker.leave()
        await holder.served()


@pytest.mark.parametrize("closed", [True, False])
async def test_drained_waits_until_nobody_has_anything(make_pool: MakePool, closed: bool) -> None:
    """R3: held, waiting, parked and returning all count, closed or not."""
    pool = await make_pool(1)
    async with visiting(pool) as house, trio.open_nursery() as nursery:
        parker = await house.serve("parker")
        await parker.park()
        holder = await house.serve("holder")
        waiting = None if closed else await house.arrive("waiting")
        if closed:
            pool.close()
        drained = trio.Event()

        async def drain() -> None:
            await pool.drained()
            drained.set()

        nursery.start_soon(drain)
        await parker.return_to_line()
        holder.leave()
        await parker.served()
        await parker.park()
        if waiting is not None:
            await waiting.served()
            waiting.leave()
            await waiting.left()
        assert not drained.is_set()
        parker.come_back()
        await parker.served()
        assert not drained.is_set()
        parker.leave()
        with trio.fail_after(5):
            await drained.wait()


async def test_drained_returns_at_once_when_there_is_nobody(make_pool: MakePool) -> None:
    """R3: and may be waited for by several, of whom some give up."""
    pool = await make_pool(1)
    await pool.drained()
    async with visiting(pool) as house, trio.open_nursery() as nursery:
        holder = await house.serve("holder")
        nursery.start_soon(pool.drained)
        with trio.move_on_after(0.01):
            await pool.drained()
        nursery.start_soon(pool.drained)
        holder.leave()


async def test_all_who_wait_for_the_drain_learn_of_it(make_pool: MakePool) -> None:
    """R3: also when somebody comes just after the pool was empty, and goes again."""
    pool = await make_pool(1)
    async with trio.open_nursery() as nursery:
        async with pool.admit():
            for _ in range(3):
                nursery.start_soon(pool.drained)
            await trio.sleep(0.01)
        async with pool.admit():
            await trio.sleep(0.01)
        with trio.fail_after(5):
            await pool.drained()
        nursery.cancel_scope.deadline = trio.current_time() + 5
    assert not nursery.cancel_scope.cancelled_caught


async def test_a_suspension_holds_all_grants_and_keeps_the_line(make_pool: MakePool) -> None:
    """R4: arrivals, returns and leaves go on, only nobody gets a slot, and no free slot is shown."""
    pool = await make_pool(2, config=AdmissionConfig(max_waiting=3))
    async with visiting(pool) as house:
        parker = await house.serve("parker")
        await parker.park()
        holder = await house.serve("holder")
        with pool.suspended("restarting"):
            early = await house.arrive("early")
            cancelled = await house.arrive("cancelled")
            await parker.return_to_line()
            holder.leave()
            await holder.left()
            cancelled.cancel()
            await cancelled.left()
            late = await house.arrive("late")
            pool.resize(3)
            now = pool.statistics()
            assert (now.held, now.free, now.waiting, now.returning) == (0, 0, 2, 1)
            assert [visitor.reservation.position for visitor in (early, late)] == [2, 3]
        for visitor in (parker, early, late):
            await visitor.served()


async def test_suspensions_nest_and_overlap(make_pool: MakePool) -> None:
    """R4: grants go on when the last one has ended, in whatever order and way they end."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        outer, inner = pool.suspended("reloading"), pool.suspended("reloading")
        outer.__enter__()
        inner.__enter__()
        waiting = await house.arrive("waiting")
        outer.__exit__(None, None, None)
        assert waiting.waits
        assert pool.statistics().free == 0
        with pytest.raises(ValueError, match="in the block"), pool.suspended("restarting"):
            inner.__exit__(None, None, None)
            assert waiting.waits
            raise ValueError("in the block")
        await waiting.served()


async def test_a_suspended_pool_can_be_closed(make_pool: MakePool) -> None:
    """R3, R4: the line need not wait for the backend to come back."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        with pool.suspended("gone"):
            waiting = await house.arrive("waiting")
            pool.close()
            await waiting.left()
            assert isinstance(waiting.error, PoolClosed)
            await pool.drained()


async def test_the_time_limit_runs_on_while_a_pool_is_suspended(make_pool: MakePool) -> None:
    """L4, R4: a wait is a wait."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        with pool.suspended("gone"):
            waiting = await house.arrive("waiting", max_wait=0.01)
            await waiting.left()
            assert waiting.error is not None


@pytest.mark.parametrize("wrong", [0, -1])
async def test_a_pool_has_a_slot_at_least(make_pool: MakePool, wrong: int) -> None:
    """R2: `ValueError`, and nothing has changed."""
    with pytest.raises(ValueError, match="slots"):
        await make_pool(wrong)
    pool = await make_pool(1)
    with pytest.raises(ValueError, match="slots"):
        pool.resize(wrong)
    with pytest.raises(ValueError, match="kv_tokens"):
        pool.resize(kv_tokens=wrong)
    assert pool.statistics().slots == 1
