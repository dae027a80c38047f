"""Children of a lease that keeps its slot while it waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.support.visitors import visiting
from trio_admission import Cost, LeaseState, ParkBudget, WaitTimeout
from trio_admission.testing import until

if TYPE_CHECKING:
    from tests.library.conformance.conftest import MakePool
    from trio_admission import Pool


@pytest.fixture
async def pool(make_pool: MakePool) -> Pool:
    """One slot, and every park is refused."""
    return await make_pool(1, park_budget=ParkBudget(0))


async def test_a_child_borrows_the_slot_of_its_parents_refused_park(pool: Pool) -> None:
    """E9: otherwise an agent would wait for the slot that it holds itself, for ever."""
    async with visiting(pool) as house, pool.admit() as parent:
        newcomer = await house.arrive("newcomer")
        async with parent.parked() as parked:
            assert parked.refused
            with trio.fail_after(5):
                async with pool.admit(parent=parent) as child:
                    assert child.slot == 0
                    now = pool.statistics()
                    assert (now.held, now.free) == (1, 0)
            assert newcomer.waits
        assert parent.slot == 0


async def test_a_child_that_waits_gets_the_slot_when_the_parent_parks(pool: Pool) -> None:
    """E9: the parent decodes first, and lends nothing meanwhile; it waits for nobody."""
    async with visiting(pool) as house, pool.admit() as parent:
        child = await house.arrive("child", parent=parent)
        with pytest.raises(WaitTimeout):
            async with pool.admit(parent=parent, max_wait=0):
                pytest.fail("admitted")
        assert child.waits
        async with parent.parked():
            await child.served()
            child.leave()
            await child.left()


async def test_a_decoding_parent_lends_nothing_whatever_others_do(make_pool: MakePool) -> None:
    """E9: although somebody else has a slot to lend."""
    pool = await make_pool(2, park_budget=ParkBudget(0))
    async with visiting(pool) as house:
        lender, decoding = await house.serve("lender"), await house.serve("decoding")
        child = await house.arrive("child", parent=decoding.lease)
        await lender.park()
        assert child.waits
        own = await house.serve("own", parent=lender.lease)
        assert child.waits
        own.leave()


async def test_a_child_takes_a_free_slot_rather_than_its_parents(make_pool: MakePool) -> None:
    """E9: it borrows only if no other is free."""
    pool = await make_pool(2, park_budget=ParkBudget(0))
    async with pool.admit() as parent, parent.parked(), pool.admit(parent=parent) as child:
        assert {parent.slot, child.slot} == {0, 1}
        assert pool.statistics().held == 2


async def test_one_child_at_a_time(pool: Pool) -> None:
    """E9: in the order in which they came."""
    async with visiting(pool) as house, pool.admit() as parent, parent.parked():
        children = [await house.arrive(f"child {number}", parent=parent) for number in range(3)]
        for number, child in enumerate(children):
            await child.served()
            assert house.most == 1
            assert all(other.waits for other in children[number + 1 :])
            child.leave()
            await child.left()


async def test_a_borrowed_slot_is_passed_down(pool: Pool) -> None:
    """E9: the child is itself inside a refused park, and its child needs a slot; then they go back up."""
    async with pool.admit() as parent, parent.parked():
        async with pool.admit(parent=parent) as child, child.parked() as parked:
            assert parked.refused
            with trio.fail_after(5):
                async with (
                    pool.admit(parent=child) as grandchild,
                    grandchild.parked(),
                    pool.admit(parent=grandchild) as last,
                ):
                    assert last.slot == 0
                    assert pool.statistics().held == 1
            assert child.slot == 0
        with trio.fail_after(5):
            async with pool.admit(parent=parent) as second_child:
                assert second_child.slot == 0


async def test_a_child_whose_parent_is_really_parked_waits_like_everybody(make_pool: MakePool) -> None:
    """E9: the parent has no slot to lend."""
    pool = await make_pool(1)
    async with visiting(pool) as house, pool.admit() as parent, parent.parked() as parked:
        assert not parked.refused
        holder = await house.serve("holder")
        first = await house.arrive("first")
        child = await house.arrive("child", parent=parent)
        assert child.reservation.position == 2
        holder.leave()
        await first.served()
        first.leave()
        await child.served()
        child.leave()


async def test_a_refused_park_that_ends_while_its_slot_is_lent_waits_to_return(pool: Pool) -> None:
    """E9, E3: the child keeps the slot to its end, and the parent has priority over newcomers."""
    async with visiting(pool) as house, pool.admit() as parent:
        newcomer = await house.arrive("newcomer")
        async with parent.parked() as parked:
            child = await house.serve("child", parent=parent)

            async def let_go() -> None:
                await until(lambda: pool.statistics().returning == 1)
                assert parent.state is LeaseState.RETURNING
                assert parent.slot is None
                assert pool.statistics().held == 1
                child.leave()

            parked.nursery.start_soon(let_go)
        assert parent.slot == 0
        assert child.gone
        assert newcomer.waits


async def test_a_parent_that_ends_while_its_slot_is_lent_leaves_it_to_the_child(pool: Pool) -> None:
    """E9, E2: nobody else gets the slot before the child is done."""
    async with visiting(pool) as house:
        parent = await house.serve("parent")
        await parent.park()
        child = await house.serve("child", parent=parent.lease)
        newcomer = await house.arrive("newcomer")
        parent.cancel()
        await parent.left()
        assert pool.statistics().held == 1
        assert newcomer.waits
        child.leave()
        await newcomer.served()


async def test_a_borrower_that_is_cancelled_gives_the_slot_back_to_its_parent(pool: Pool) -> None:
    """E9, E2: not to the line."""
    async with visiting(pool) as house:
        parent = await house.serve("parent")
        newcomer = await house.arrive("newcomer")
        await parent.park()
        for _ in range(3):
            child = await house.serve("child", parent=parent.lease)
            child.cancel()
            await child.left()
            assert newcomer.waits
        parent.come_back()
        await parent.served()


async def test_tokens_of_a_child_that_borrows_are_those_of_its_parent(make_pool: MakePool) -> None:
    """E9, G6: what is held does not grow beyond the pool."""
    pool = await make_pool(1, kv_tokens=100, park_budget=ParkBudget(0))
    async with pool.admit(cost=Cost(tokens=80)) as parent, parent.parked():
        async with pool.admit(parent=parent, cost=Cost(tokens=50)):
            assert pool.statistics().kv_held <= 100
        assert pool.statistics().kv_held == 80


async def test_a_child_borrows_whatever_it_costs(make_pool: MakePool) -> None:
    """E9: it has its parent's slots, and no more is charged: the parent may wait for just this child."""
    pool = await make_pool(4, kv_tokens=16, park_budget=ParkBudget(0))
    async with visiting(pool) as house:
        parent = await house.serve("parent", cost=Cost(tokens=1))
        child = await house.arrive("child", parent=parent.lease, cost=Cost(slots=5, tokens=20))
        behind = await house.arrive("behind", cost=Cost(slots=3))
        assert child.waits
        assert behind.waits
        await parent.park()
        await child.served()
        assert child.lease is not None
        assert parent.lease is not None
        assert child.lease.slots == parent.lease.slots
        await behind.served()  # G5, G7: the head went, and those behind it are looked at
        assert (pool.statistics().held, pool.statistics().kv_held) == (4, 1)


async def test_a_borrowed_slot_can_be_parked(make_pool: MakePool) -> None:
    """E9, E3: it goes back to the parent meanwhile, who may lend it again."""
    budget = ParkBudget(1)
    pool = await make_pool(1, park_budget=budget)
    other_pool = await make_pool(1, park_budget=budget)
    async with visiting(other_pool) as elsewhere, visiting(pool) as house:
        blocker = await elsewhere.serve("blocker")
        await blocker.park()
        parent = await house.serve("parent")
        await parent.park()
        assert parent.parked is not None
        assert parent.parked.refused
        child = await house.serve("child", parent=parent.lease)
        blocker.come_back()
        await blocker.served()
        await child.park()
        assert child.parked is not None
        assert not child.parked.refused
        sibling = await house.serve("sibling", parent=parent.lease)
        await child.return_to_line()
        sibling.leave()
        await child.served()
        child.leave()
        await child.left()
        parent.come_back()
        await parent.served()
        assert pool.statistics().held == 1


async def test_a_lease_of_another_pool_is_no_parent(make_pool: MakePool) -> None:
    """E9: it has nothing to lend here; the child is a newcomer."""
    pool = await make_pool(1, park_budget=ParkBudget(0))
    other_pool = await make_pool(1, park_budget=ParkBudget(0))
    async with visiting(pool) as house, other_pool.admit() as stranger, stranger.parked():
        await house.serve("holder")
        child = await house.arrive("child", parent=stranger)
        assert child.waits


async def test_nothing_is_lent_while_a_pool_is_suspended(pool: Pool) -> None:
    """E9, R4: a loan is a grant."""
    async with visiting(pool) as house, pool.admit() as parent, parent.parked():
        with pool.suspended("restarting"):
            child = await house.arrive("child", parent=parent)
            assert child.waits
        await child.served()
        child.leave()
        await child.left()
