"""Who is next: granting, the order in the line, and leaving it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.support.visitors import House, Visitor, visiting
from trio_admission import Cost, LineFull, ParkBudget, WaitTimeout
from trio_admission.testing import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.library.conformance.conftest import MakePool

TWO = Cost(slots=2)


async def arrives(house: House) -> Visitor:
    return await house.arrive("next")


async def holder_leaves(house: House) -> Visitor:
    await house.serve("a")
    holder = await house.serve("b")
    following = await house.arrive("next")
    holder.leave()
    return following


async def holder_is_cancelled(house: House) -> Visitor:
    await house.serve("a")
    holder = await house.serve("b")
    following = await house.arrive("next")
    holder.cancel()
    return following


async def head_is_cancelled(house: House) -> Visitor:
    await house.serve("a")
    head = await house.arrive("too large for now", cost=TWO)
    following = await house.arrive("next")
    head.cancel()
    return following


async def head_times_out(house: House) -> Visitor:
    await house.serve("a")
    await house.arrive("too large for now", cost=TWO, max_wait=0.02)
    return await house.arrive("next")


async def pool_grows(house: House) -> Visitor:
    await house.serve("a", cost=TWO)
    following = await house.arrive("next")
    house.pool.resize(3)
    return following


async def pool_gets_more_tokens(house: House) -> Visitor:
    await house.serve("a", cost=Cost(tokens=70))
    following = await house.arrive("next", cost=Cost(tokens=70))
    house.pool.resize(kv_tokens=140)
    return following


async def pool_shrinks_under_the_head(house: House) -> Visitor:
    """The head becomes larger than the pool, and there is nobody beside whom it could not run."""
    with house.pool.suspended("for the scene"):
        following = await house.arrive("next", cost=Cost(slots=2))
        house.pool.resize(1)
    return following


async def holder_parks(house: House) -> Visitor:
    holder = await house.serve("a", cost=TWO)
    following = await house.arrive("next")
    await holder.park()
    return following


async def holder_returns_for_less(house: House) -> Visitor:
    """The budget has refused the park, so the tokens were kept until its end."""
    parker = await house.serve("parker")
    await parker.park()
    holder = await house.serve("a", cost=Cost(tokens=70))
    await holder.park()
    assert holder.parked is not None
    assert holder.parked.refused
    following = await house.arrive("next", cost=Cost(tokens=70))
    holder.parked.cost = Cost(tokens=30)
    holder.come_back()
    return following


async def parked_holder_unparks(house: House) -> Visitor:
    parker = await house.serve("next")
    await parker.park()
    parker.unpark()
    return parker


async def parked_holder_gives_the_slot_on_again(house: House) -> Visitor:
    parker = await house.serve("parker", cost=TWO)
    await parker.park()
    parker.unpark()
    await parker.served()
    following = await house.arrive("next")
    parker.repark()
    return following


async def parked_holder_returns(house: House) -> Visitor:
    parker = await house.serve("next")
    await parker.park()
    parker.come_back()
    return parker


async def suspension_ends(house: House) -> Visitor:
    with house.pool.suspended("restarting"):
        following = await house.arrive("next")
        assert following.waits
    return following


async def pool_is_closed(house: House) -> Visitor:
    """A newcomer who stands before nobody is thrown out; who comes back is not."""
    await house.serve("a")
    parker = await house.serve("next")
    await parker.park()
    b = await house.serve("b")
    await parker.return_to_line()
    house.pool.close()
    b.leave()
    return parker


@pytest.mark.parametrize(
    "change",
    [
        arrives,
        holder_leaves,
        holder_is_cancelled,
        head_is_cancelled,
        head_times_out,
        pool_grows,
        pool_gets_more_tokens,
        pool_shrinks_under_the_head,
        holder_parks,
        holder_returns_for_less,
        parked_holder_unparks,
        parked_holder_gives_the_slot_on_again,
        parked_holder_returns,
        suspension_ends,
        pool_is_closed,
    ],
)
async def test_every_change_that_makes_room_grants(
    make_pool: MakePool, change: Callable[[House], Awaitable[Visitor]]
) -> None:
    """G1, G7: whatever made the room, the next in line is served without another push."""
    pool = await make_pool(2, kv_tokens=100, park_budget=ParkBudget(1))
    async with visiting(pool) as house:
        following = await change(house)
        await following.served()


async def test_a_cancelled_wait_keeps_its_place(make_pool: MakePool) -> None:
    """G3: the place belongs to the reservation's scope, not to the call that waits."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        async with pool.reserve() as reservation:
            behind = await house.arrive("behind")
            with trio.move_on_after(0.01) as scope:
                await reservation.wait()
            assert scope.cancelled_caught
            assert reservation.position == 1
            holder.leave()
            lease = await reservation.wait()
            assert lease.slot == 0
            assert reservation.position == 0
            assert behind.reservation.position == 1
        await behind.served()


async def test_waiting_for_a_while_keeps_the_place(make_pool: MakePool) -> None:
    """G3: `wait_at_most` returns None as often as it takes, and then the lease."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        async with pool.reserve() as reservation:
            behind = await house.arrive("behind")
            for _ in range(3):
                assert await reservation.wait_at_most(0.005) is None
                assert reservation.lease is None
            assert (reservation.position, behind.reservation.position) == (1, 2)
            holder.leave()
            lease = await reservation.wait_at_most(5)
            assert lease is not None
            assert reservation.lease is lease
            assert await reservation.wait() is lease


async def test_leaving_the_line_leaves_the_pool_as_if_it_had_never_been_asked(make_pool: MakePool) -> None:
    """G3: the head, one in the middle and the last leave, by cancel and by their scope's end."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("a")
        async with pool.reserve() as head:
            b, c, d, e = [await house.arrive(name) for name in "bcde"]
            assert [visitor.reservation.position for visitor in (b, c, d, e)] == [2, 3, 4, 5]
            assert head.position == 1
            c.cancel()
            e.cancel()
            await c.left()
            await e.left()
        await until(lambda: pool.statistics().waiting == 2)
        assert [visitor.reservation.position for visitor in (b, d)] == [1, 2]
        holder.leave()
        await b.served()
        b.leave()
        await d.served()
        assert house.served == ["a", "b", "d"]


async def test_a_cancelled_admit_leaves_nothing_behind(make_pool: MakePool) -> None:
    """G3: unlike `wait`, `admit` is its own scope."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        with trio.move_on_after(0.01) as scope:
            async with pool.admit():
                pytest.fail("admitted")
        assert scope.cancelled_caught
        await until(lambda: pool.statistics().waiting == 0)
        holder.leave()
        await holder.left()
        async with pool.admit():
            pass


@pytest.mark.parametrize("order", ["leave, cancel", "cancel, leave"])
async def test_a_slot_that_goes_to_somebody_who_is_just_cancelled_goes_on(
    make_pool: MakePool, order: str
) -> None:
    """G3: granted and cancelled in one tick, whichever was first: the next in line gets the slot."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        async with pool.admit():
            cancelled = await house.arrive("cancelled")
            following = await house.arrive("following")
            last = await house.arrive("last")
            await trio.testing.wait_all_tasks_blocked()
            if order == "cancel, leave":
                cancelled.cancel()
        if order == "leave, cancel":
            cancelled.cancel()
        await following.served()
        await cancelled.left()
        assert last.reservation.position == 1
        assert pool.statistics().held == 1


@pytest.mark.parametrize("error", [ValueError("in the body"), KeyboardInterrupt(), SystemExit(3)])
async def test_an_error_in_the_body_leaves_bare_and_gives_the_slot_back(
    make_pool: MakePool, error: BaseException
) -> None:
    """G3, E2: for `admit` and for `reserve`."""
    pool = await make_pool(1)
    with pytest.raises(type(error)) as raised:
        async with pool.admit():
            raise error
    assert raised.value is error
    with pytest.raises(type(error)) as raised:
        async with pool.reserve() as reservation:
            await reservation.wait()
            raise error
    assert raised.value is error
    await until(lambda: pool.statistics().held == 0)


async def test_those_who_come_back_go_first_in_the_order_in_which_they_came_back(make_pool: MakePool) -> None:
    """G4: whatever their priority, and whatever the order in which they parked."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        for name in "ab":
            visitor = await house.serve(name)
            await visitor.park()
            if name == "a":
                a = visitor
            else:
                b = visitor
        holder = await house.serve("holder")
        newcomer = await house.arrive("newcomer", priority=100)
        await b.return_to_line()
        await a.return_to_line()
        assert newcomer.reservation.position == 3
        assert b.parked is not None
        assert a.parked is not None
        assert (b.parked.position, a.parked.position) == (1, 2)
        holder.leave()
        await b.served()
        b.leave()
        await a.served()
        a.leave()
        await newcomer.served()


async def test_arriving_is_no_advantage(make_pool: MakePool) -> None:
    """G4, G5: a slot is free, but it is being saved for the head, who needs two."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        large = await house.arrive("large", cost=TWO)
        newcomer = await house.arrive("newcomer")
        assert newcomer.reservation.position == 2
        with pytest.raises(WaitTimeout):
            async with pool.admit(max_wait=0):
                pytest.fail("admitted")
        holder.leave()
        await large.served()
        assert newcomer.waits
        large.leave()
        await newcomer.served()
        assert house.served == ["holder", "large", "newcomer"]


async def test_a_newcomer_of_higher_priority_that_fits_does_not_wait_behind_the_head(
    make_pool: MakePool,
) -> None:
    """G4, F3: it is the next, so it is granted at once."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        await house.serve("holder")
        large = await house.arrive("large", cost=TWO)
        urgent = await house.arrive("urgent", priority=1)
        await urgent.served()
        assert large.reservation.position == 1


async def test_when_a_head_that_does_not_fit_leaves_all_behind_it_are_looked_at(make_pool: MakePool) -> None:
    """G5, G7: two slots are free, so two of the three behind it are served."""
    pool = await make_pool(3)
    async with visiting(pool) as house:
        await house.serve("holder")
        head = await house.arrive("head", cost=Cost(slots=3))
        b, c, d = [await house.arrive(name) for name in "bcd"]
        assert pool.statistics().waiting == 4
        head.cancel()
        await b.served()
        await c.served()
        assert d.reservation.position == 1


async def test_the_one_that_runs_alone_lets_others_in_while_it_is_parked(make_pool: MakePool) -> None:
    """G6: and waits on its way back until it is alone again."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        large = await house.serve("large", cost=Cost(slots=9))
        small = await house.arrive("small")
        assert small.waits
        await large.park()
        await small.served()
        await large.return_to_line()
        newcomer = await house.arrive("newcomer")
        assert newcomer.reservation.position == 2
        small.leave()
        await large.served()
        assert newcomer.waits


async def test_a_resize_can_make_a_waiting_request_larger_than_the_pool(make_pool: MakePool) -> None:
    """G6: it fitted beside the holder, and now has to wait until it is alone."""
    pool = await make_pool(4)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        wide = await house.serve("wide", cost=Cost(slots=3))
        waits = await house.arrive("waits", cost=Cost(slots=3))
        pool.resize(2)
        wide.leave()
        await wide.left()
        assert waits.waits
        assert pool.statistics().free == 1
        holder.leave()
        await waits.served()
        assert pool.statistics().held == 2


async def test_a_resize_can_make_a_waiting_request_fit_beside_others(make_pool: MakePool) -> None:
    """G6: it is larger than the pool, and then no more."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        await house.serve("holder")
        wide = await house.arrive("wide", cost=Cost(slots=3))
        assert wide.waits
        pool.resize(4)
        await wide.served()
        assert pool.statistics().held == 4


async def test_who_runs_alone_stays_alone_when_the_pool_grows(make_pool: MakePool) -> None:
    """G6: nothing joins it until it leaves."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        large = await house.serve("large", cost=Cost(slots=3))
        pool.resize(8)
        small = await house.arrive("small")
        pool.resize(9)
        assert small.waits
        assert pool.statistics().free == 0
        large.leave()
        await small.served()


async def test_nothing_is_queued_by_a_refusal(make_pool: MakePool) -> None:
    """G3, L3: after it the pool is as before."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        await house.serve("holder")
        for number in range(64):
            await house.arrive(f"waiting {number}")
        before = pool.statistics()
        with pytest.raises(LineFull) as refused:
            async with pool.reserve():
                pytest.fail("in the line")
        assert pool.statistics() == before
        assert refused.value.statistics == before
