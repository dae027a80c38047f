"""Parking, unparking, and every way out of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, Cost, LeaseLost, LeaseState, ParkBudget, PoolClosed
from trio_admission.testing import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.library.conformance.conftest import MakePool
    from trio_admission import Lease, Pool


@pytest.fixture
async def pool(make_pool: MakePool) -> Pool:
    """A pool with one slot and no bound on parks."""
    return await make_pool(1)


@pytest.fixture(params=["free", "contended"])
async def busy_pool(pool: Pool, request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    """A pool where the slot is free when somebody wants it back, and one where somebody else has it."""
    if request.param == "free":
        yield pool
        return

    async def take_it_when_it_is_free() -> None:
        await until(lambda: pool.statistics().parked > 0)
        async with pool.admit():
            await until(lambda: not pool.statistics().parked)
            await trio.sleep(0.005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_it_when_it_is_free)
        yield pool
        nursery.cancel_scope.cancel()


async def nothing_is_left(pool: Pool) -> None:
    await until(lambda: not (pool.statistics().parked or pool.statistics().returning))
    with trio.fail_after(5):
        async with pool.admit(max_wait=1):
            pass


# E1


async def test_a_lease_is_held_then_parked_then_returning_then_held_then_ended(pool: Pool) -> None:
    """E1: each state has its name, and its slots."""
    async with visiting(pool) as house:
        seen: list[tuple[LeaseState, int | None]] = []

        def look(lease: Lease) -> None:
            seen.append((lease.state, lease.slot))

        async with pool.reserve() as reservation:
            lease = await reservation.wait()
            look(lease)
            async with lease.parked() as parked:
                look(lease)
                async with parked.unparked():
                    look(lease)
                look(lease)
                holder = await house.serve("holder")

                async def watch() -> None:
                    await until(lambda: lease.state is LeaseState.RETURNING)
                    look(lease)
                    holder.leave()

                parked.nursery.start_soon(watch)
            look(lease)
        look(lease)
    assert seen == [
        (LeaseState.HELD, 0),
        (LeaseState.PARKED, None),
        (LeaseState.HELD_AGAIN, 0),
        (LeaseState.PARKED, None),
        (LeaseState.RETURNING, None),
        (LeaseState.HELD, 0),
        (LeaseState.ENDED, None),
    ]


async def test_a_move_that_is_not_in_the_table_changes_nothing(pool: Pool) -> None:
    """E1: `RuntimeError`, and the lease is where it was."""
    async with pool.admit() as lease:
        async with lease.parked() as parked:
            with pytest.raises(RuntimeError, match="cannot park a lease that is parked"):
                async with lease.parked():
                    pytest.fail("parked twice")
            assert pool.statistics().parked == 1
            async with parked.unparked():
                with pytest.raises(RuntimeError, match="cannot unpark a lease that is held again"):
                    async with parked.unparked():
                        pytest.fail("unparked twice")
                with pytest.raises(RuntimeError, match="cannot park a lease that is held again"):
                    async with lease.parked():
                        pytest.fail("parked while unparked")
                assert lease.slot == 0
                assert pool.statistics().held == 1
        with pytest.raises(RuntimeError, match="cannot unpark a lease that is held"):
            async with parked.unparked():
                pytest.fail("unparked after the park")
        assert lease.slot == 0
    with pytest.raises(RuntimeError, match="cannot park a lease that is ended"):
        async with lease.parked():
            pytest.fail("parked after the end")
    with pytest.raises(RuntimeError, match="lease that is ended"):
        lease.issue_ticket(1)
    await nothing_is_left(pool)


# E2, E3


async def test_the_slot_is_handed_on_before_the_body_runs(pool: Pool) -> None:
    """E3: entering does not block, and is no checkpoint."""
    async with visiting(pool) as house, pool.admit() as lease:
        following = await house.arrive("following")
        park = lease.parked()
        with trio.testing.assert_no_checkpoints():
            await park.__aenter__()
        try:
            assert lease.slot is None
            assert pool.statistics().parked == 1
            await following.served()
            following.leave()
        finally:
            await park.__aexit__(None, None, None)
        assert lease.slot == 0


async def test_finishing_the_block_waits_for_a_slot_ahead_of_newcomers(pool: Pool) -> None:
    """E3: and prefers the one that it had (S1)."""
    async with visiting(pool) as house, pool.admit() as lease:
        async with lease.parked() as parked:
            holder = await house.serve("holder")
            newcomer = await house.arrive("newcomer")

            async def let_go() -> None:
                await until(lambda: pool.statistics().returning == 1)
                assert (parked.position, newcomer.reservation.position) == (1, 2)
                holder.leave()

            parked.nursery.start_soon(let_go)
            assert parked.position == 0
        assert lease.slot == 0
        assert newcomer.waits


async def test_the_tasks_of_a_park_run_until_a_slot_is_held_again(pool: Pool) -> None:
    """E3: the wait to return included; then they are cancelled."""
    async with visiting(pool) as house, pool.admit() as lease:
        keepalives: list[LeaseState] = []

        async def keep_alive() -> None:
            while True:
                keepalives.append(lease.state)
                await trio.sleep(0.002)

        async with lease.parked() as parked:
            parked.nursery.start_soon(keep_alive)
            holder = await house.serve("holder")

            async def let_go_later() -> None:
                await until(lambda: keepalives.count(LeaseState.RETURNING) >= 3)
                holder.leave()

            parked.nursery.start_soon(let_go_later)
        so_far = len(keepalives)
        await trio.sleep(0.01)
        assert len(keepalives) == so_far
        assert keepalives[0] is LeaseState.PARKED


async def test_leaving_a_park_is_a_checkpoint(pool: Pool) -> None:
    """E3: also when the slot is there at once."""
    async with pool.admit() as lease:
        for _ in range(2):
            with trio.testing.assert_checkpoints():
                async with lease.parked():
                    pass


async def test_a_park_can_be_followed_by_another(pool: Pool) -> None:
    """E2: each park takes its own claim of the budget and gives it back."""
    async with pool.admit() as lease:
        for _ in range(50):
            async with lease.parked() as parked:
                assert not parked.refused
                assert pool.statistics().held == 0
            assert pool.statistics().held == 1
    await nothing_is_left(pool)


async def test_the_blocks_own_error_leaves_bare_and_waits_for_no_slot(busy_pool: Pool) -> None:
    """E3, E2: the lease has ended, and its tasks are cancelled."""
    error, ended = ValueError("denied"), False

    async def task() -> None:
        nonlocal ended
        try:
            await trio.sleep_forever()
        finally:
            ended = True

    with pytest.raises(ValueError, match="denied") as raised:
        async with busy_pool.admit() as lease, lease.parked() as parked:
            parked.nursery.start_soon(task)
            await trio.sleep(0.01)
            raise error
    assert raised.value is error
    assert ended
    assert lease.state is LeaseState.ENDED
    await nothing_is_left(busy_pool)


async def test_the_blocks_own_error_leaves_bare_although_a_cancel_is_on_its_way(busy_pool: Pool) -> None:
    """E3: its tasks are ended by the outer cancel, which adds nothing to the error."""
    error = ValueError("denied")
    with trio.CancelScope() as outer, pytest.raises(ValueError, match="denied") as raised:
        async with busy_pool.admit() as lease, lease.parked() as parked:
            parked.nursery.start_soon(trio.sleep_forever)
            await trio.sleep(0.01)
            outer.cancel()
            raise error
    assert raised.value is error
    await nothing_is_left(busy_pool)


async def test_a_tasks_error_leaves_as_a_group_and_waits_for_no_slot(busy_pool: Pool) -> None:
    """E3: the body is cancelled."""

    async def fail() -> None:
        await trio.sleep(0.01)
        raise ValueError("keepalive failed")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="keepalive failed")):
        async with busy_pool.admit() as lease, lease.parked() as parked:
            parked.nursery.start_soon(fail)
            await trio.sleep_forever()
    assert lease.state is LeaseState.ENDED
    await nothing_is_left(busy_pool)


async def test_a_tasks_error_on_the_way_back_leaves_as_a_group(pool: Pool) -> None:
    """E3: the wait for a slot is given up at once."""

    async def fail() -> None:
        await until(lambda: pool.statistics().returning == 1)
        raise ValueError("keepalive failed")

    async with visiting(pool) as house:
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="keepalive failed")):
            async with pool.admit() as lease, lease.parked() as parked:
                await house.serve("holder")
                parked.nursery.start_soon(fail)
        now = pool.statistics()
        assert (now.held, now.parked, now.returning) == (1, 0, 0)


async def test_errors_of_the_block_and_of_a_task_leave_together(pool: Pool) -> None:
    """E3: neither is lost."""

    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("while it was cancelled")

    with pytest.RaisesGroup(
        pytest.RaisesExc(ValueError, match="denied"), pytest.RaisesExc(OSError, match="while it")
    ):
        async with pool.admit() as lease, lease.parked() as parked:
            parked.nursery.start_soon(fail)
            await trio.lowlevel.checkpoint()
            raise ValueError("denied")
    await nothing_is_left(pool)


# E5


async def test_a_deadline_round_a_park_loses_the_lease(busy_pool: Pool) -> None:
    """E5: it passes while the body waits; what follows the park does not run on without a slot."""
    with pytest.raises(LeaseLost) as lost:
        async with busy_pool.admit() as lease:
            with trio.move_on_after(0.01):
                async with lease.parked():
                    await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            pytest.fail("decoding without a slot")
    assert isinstance(lost.value.__cause__, trio.Cancelled)
    assert lease.state is LeaseState.ENDED
    await nothing_is_left(busy_pool)


async def test_a_deadline_that_passed_during_the_body_loses_the_lease_at_the_return(busy_pool: Pool) -> None:
    """E5: the return looks for cancellation first, so the mistake shows also when a slot is free."""
    with pytest.raises(LeaseLost):
        async with busy_pool.admit() as lease:
            with trio.move_on_after(0.01):
                async with lease.parked():
                    with trio.CancelScope(shield=True):
                        await trio.sleep(0.02)
            await trio.lowlevel.checkpoint()
            pytest.fail("decoding without a slot")
    await nothing_is_left(busy_pool)


async def test_a_deadline_that_passes_during_the_wait_to_return_loses_the_lease(pool: Pool) -> None:
    """E5: the place in the line is gone, too."""
    async with visiting(pool) as house:
        with pytest.raises(LeaseLost):
            async with pool.admit() as lease:
                with trio.move_on_after(0.02):
                    async with lease.parked():
                        await house.serve("holder")
                await trio.lowlevel.checkpoint()
                pytest.fail("decoding without a slot")
        now = pool.statistics()
        assert (now.held, now.parked, now.returning) == (1, 0, 0)


async def test_a_deadline_inside_the_park_is_how_it_is_done(busy_pool: Pool) -> None:
    """E5: the person takes too long, and the lease comes back."""
    async with busy_pool.admit() as lease:
        async with lease.parked():
            with trio.move_on_after(0.01) as patience:
                await trio.sleep_forever()
            assert patience.cancelled_caught
        assert lease.slot == 0


async def test_a_block_that_catches_the_parks_error_still_loses_the_lease(pool: Pool) -> None:
    """E5: `__cause__` says why."""
    error = ValueError("denied")
    with pytest.raises(LeaseLost) as lost:
        async with pool.admit() as lease:
            with pytest.raises(ValueError, match="denied"):
                async with lease.parked():
                    raise error
            # Without another checkpoint the body ends, and is told at its end.
    assert lost.value.__cause__ is error


async def test_cancelling_the_parks_nursery_is_no_way_to_finish_it(busy_pool: Pool) -> None:
    """E5: it cancels the block as well, and the lease is lost."""
    with pytest.raises(LeaseLost):
        async with busy_pool.admit() as lease:
            async with lease.parked() as parked:
                parked.nursery.cancel_scope.cancel()
                await trio.sleep(0.01)
            await trio.lowlevel.checkpoint()
            pytest.fail("decoding without a slot")
    await nothing_is_left(busy_pool)


async def test_leaving_the_park_by_return_or_break_is_finishing_it(pool: Pool) -> None:
    """E3: no error, so the slot comes back."""

    async def ask(lease: Lease) -> str:
        async with lease.parked():
            return "allow"

    async with pool.admit() as lease:
        assert await ask(lease) == "allow"
        assert lease.slot == 0
        for _ in range(2):
            async with lease.parked():
                break
        assert lease.slot == 0


async def test_another_error_goes_before_the_loss(pool: Pool) -> None:
    """E5: `LeaseLost` leaves the scope only if nothing else does."""
    with pytest.raises(OSError, match="disk"):
        async with pool.admit() as lease:
            with pytest.raises(ValueError, match="denied"):
                async with lease.parked():
                    raise ValueError("denied")
            raise OSError("disk")
    await nothing_is_left(pool)


async def test_an_outer_cancel_goes_before_the_loss(busy_pool: Pool) -> None:
    """E5: whoever cancels from outside gets silence, as everywhere in Trio."""
    with trio.move_on_after(0.01) as scope:
        async with busy_pool.admit() as lease, lease.parked():
            await trio.sleep_forever()
    assert scope.cancelled_caught
    await nothing_is_left(busy_pool)


async def test_the_loss_leaves_reserve_too(pool: Pool) -> None:
    """E5: bare, from the scope in which the lease was got."""
    with pytest.raises(LeaseLost):
        async with pool.reserve() as reservation:
            lease = await reservation.wait()
            with trio.move_on_after(0.01):
                async with lease.parked():
                    await trio.sleep_forever()
            await trio.sleep_forever()
    await nothing_is_left(pool)


async def test_a_lost_lease_gives_its_slot_back_before_its_scope_ends(pool: Pool) -> None:
    """E2, E5: the rest of the block may take its time to clean up."""
    async with visiting(pool) as house:
        with pytest.raises(LeaseLost):
            async with pool.admit() as lease:
                try:
                    with trio.move_on_after(0.01):
                        async with lease.parked():
                            await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        await house.serve("next")
        assert pool.statistics().held == 1


# E4


async def test_unparked_holds_a_slot_for_a_nested_block(pool: Pool) -> None:
    """E4: it waits on entry ahead of newcomers, and hands the slot on at its end."""
    async with visiting(pool) as house, pool.admit() as lease, lease.parked() as parked:
        holder = await house.serve("holder")
        newcomer = await house.arrive("newcomer")

        async def let_go() -> None:
            await until(lambda: pool.statistics().returning == 1)
            holder.leave()

        parked.nursery.start_soon(let_go)
        async with parked.unparked() as held:
            assert held.slot == lease.slot == 0
            assert newcomer.waits
        assert lease.slot is None
        await newcomer.served()
        newcomer.leave()


async def test_unparked_cut_on_entry_leaves_the_lease_parked(pool: Pool) -> None:
    """E4: and the park goes on as if it had not been tried."""
    async with visiting(pool) as house, pool.admit() as lease:
        async with lease.parked() as parked:
            holder = await house.serve("holder")
            for _ in range(2):
                with trio.move_on_after(0.01) as scope:
                    async with parked.unparked():
                        pytest.fail("a slot")
                assert scope.cancelled_caught
                await until(lambda: pool.statistics().returning == 0)
                assert (lease.state, pool.statistics().parked) == (LeaseState.PARKED, 1)
            holder.leave()
            async with parked.unparked() as held:
                assert held.slot == 0
        assert lease.slot == 0


async def test_a_deadline_round_unparked_leaves_the_lease_parked(pool: Pool) -> None:
    """E4: one that passed before the entry, although a slot is free, and one that passes in the block."""
    async with pool.admit() as lease:
        async with lease.parked() as parked:
            with trio.CancelScope() as scope:
                scope.cancel()
                async with parked.unparked():
                    pytest.fail("entered")
            assert scope.cancelled_caught
            assert (lease.slot, pool.statistics().parked) == (None, 1)
            with trio.move_on_after(0.01) as scope:
                async with parked.unparked() as held:
                    assert held.slot == 0
                    await trio.sleep_forever()
            assert scope.cancelled_caught
            assert (lease.slot, pool.statistics().parked) == (None, 1)
        assert lease.slot == 0


async def test_cancelling_the_nursery_of_unparked_ends_its_block_only(pool: Pool) -> None:
    """E4: as a nursery does."""
    async with pool.admit() as lease:
        async with lease.parked() as parked:
            async with parked.unparked() as held:
                held.nursery.start_soon(trio.sleep_forever)
                held.nursery.cancel_scope.cancel()
                await trio.sleep_forever()
            assert (lease.slot, pool.statistics().parked) == (None, 1)
        assert lease.slot == 0


async def test_the_tasks_of_unparked_are_waited_for_before_the_slot_goes_on(pool: Pool) -> None:
    """E4: while the tasks of the park around it keep running."""
    async with visiting(pool) as house, pool.admit() as lease, lease.parked() as parked:
        ticks: list[LeaseState] = []
        done: list[int | None] = []

        async def tick() -> None:
            while True:
                ticks.append(lease.state)
                await trio.sleep(0.001)

        async def decode() -> None:
            await trio.sleep(0.01)
            done.append(lease.slot)

        parked.nursery.start_soon(tick)
        async with parked.unparked() as held:
            newcomer = await house.arrive("newcomer")
            held.nursery.start_soon(decode)
        assert done == [0]
        assert LeaseState.HELD_AGAIN in ticks
        await newcomer.served()
        newcomer.leave()


async def test_an_error_in_unparked_leaves_bare_and_ends_the_lease(busy_pool: Pool) -> None:
    """E4, E3: it passes the park's block, too, and that is a way out of it."""
    error = ValueError("bad tool")
    with pytest.raises(ValueError, match="bad tool") as raised:
        async with busy_pool.admit() as lease, lease.parked() as parked, parked.unparked():
            raise error
    assert raised.value is error
    await nothing_is_left(busy_pool)


async def test_an_error_of_a_task_of_unparked_leaves_as_a_group(pool: Pool) -> None:
    """E4: and, caught inside the park, leaves the lease parked."""

    async def fail() -> None:
        raise ValueError("bad tool")

    async with pool.admit() as lease:
        async with lease.parked() as parked:
            with pytest.RaisesGroup(ValueError):
                async with parked.unparked() as held:
                    held.nursery.start_soon(fail)
                    await trio.sleep_forever()
            assert lease.state is LeaseState.PARKED
            assert pool.statistics().held == 0
        assert lease.slot == 0


async def test_only_the_task_that_entered_the_park_may_unpark(pool: Pool) -> None:
    """E4: another gets `RuntimeError`, and the lease is still parked."""
    async with pool.admit() as lease, lease.parked() as parked:

        async def try_it() -> None:
            with pytest.raises(RuntimeError, match="only the task that entered the park"):
                async with parked.unparked():
                    pytest.fail("unparked")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_it)
        assert lease.state is LeaseState.PARKED


# E6


async def test_a_park_may_state_a_new_cost_for_the_return(make_pool: MakePool) -> None:
    """E6: given on entry, or set inside; counted from the return on."""
    pool = await make_pool(2, kv_tokens=1000)
    async with visiting(pool) as house, pool.admit(cost=Cost(tokens=100)) as lease:
        async with lease.parked(Cost(tokens=600)) as parked:
            assert pool.statistics().kv_held == 0
            assert parked.cost == Cost(tokens=600)
        assert pool.statistics().kv_held == 600
        async with lease.parked() as parked:
            assert parked.cost == Cost(tokens=600)
            other = await house.serve("other", cost=Cost(tokens=500))
            parked.cost = Cost(tokens=700)

            async def let_go() -> None:
                await until(lambda: pool.statistics().returning == 1)
                assert pool.statistics().kv_held == 500
                other.leave()

            parked.nursery.start_soon(let_go)
        assert pool.statistics().kv_held == 700
        async with lease.parked(Cost(slots=2)):
            pass
        assert sorted(lease.slots) == [0, 1]


async def test_a_new_cost_holds_for_unparked_as_well(make_pool: MakePool) -> None:
    """E6, E4: the block decodes with the context as it is by then."""
    pool = await make_pool(2, kv_tokens=1000)
    async with pool.admit(cost=Cost(tokens=100)) as lease, lease.parked() as parked:
        parked.cost = Cost(tokens=300)
        async with parked.unparked():
            assert pool.statistics().kv_held == 300


@pytest.mark.parametrize("cost", [Cost(tokens=800), Cost(slots=2)])
async def test_a_refused_park_with_a_new_cost_waits_if_that_does_not_fit(
    make_pool: MakePool, cost: Cost
) -> None:
    """E6, E7: it has kept its slot, but what it wants now is not there."""
    pool = await make_pool(2, kv_tokens=1000, park_budget=ParkBudget(0))
    async with visiting(pool) as house:
        other = await house.serve("other", cost=Cost(tokens=500))
        async with pool.admit(cost=Cost(tokens=100)) as lease:
            async with lease.parked(cost) as parked:
                assert parked.refused
                assert pool.statistics().kv_held == 600

                async def let_go() -> None:
                    await until(lambda: pool.statistics().returning == 1)
                    assert pool.statistics().kv_held == 500
                    other.leave()

                parked.nursery.start_soon(let_go)
            assert pool.statistics().kv_held == cost.tokens
            assert len(lease.slots) == cost.slots


async def test_a_refused_park_with_a_new_cost_that_fits_goes_on_at_once(make_pool: MakePool) -> None:
    """E6, E7: on the slot that it has kept."""
    pool = await make_pool(2, kv_tokens=1000, park_budget=ParkBudget(0))
    async with visiting(pool) as house:
        await house.serve("other", cost=Cost(tokens=500))
        async with pool.admit(cost=Cost(tokens=100)) as lease:
            slot = lease.slot
            for tokens in (500, 50):
                async with lease.parked(Cost(tokens=tokens)):
                    pass
                assert pool.statistics().kv_held == 500 + tokens
                assert lease.slot == slot


async def test_a_refused_park_with_a_smaller_cost_goes_on_at_once_though_the_tokens_shrank(
    make_pool: MakePool,
) -> None:
    """E6, E7, R1: more is held than there is, but nobody is thrown out, and least of all who needs less."""
    pool = await make_pool(2, kv_tokens=1000, park_budget=ParkBudget(0))
    async with visiting(pool) as house:
        await house.serve("other", cost=Cost(tokens=500))
        async with pool.admit(cost=Cost(tokens=300)) as lease:
            pool.resize(kv_tokens=600)
            async with lease.parked(Cost(tokens=200)) as parked:
                assert parked.refused
            now = pool.statistics()
            assert (now.kv_tokens, now.kv_held) == (600, 700)


# E7


async def test_parks_are_bounded(make_pool: MakePool) -> None:
    """E7: one may be parked; the second keeps its slot, and asks again at its next park."""
    pool = await make_pool(2, park_budget=ParkBudget(1))
    async with visiting(pool) as house:
        first = await house.serve("first")
        await first.park()
        async with pool.admit() as lease:
            async with lease.parked() as parked:
                assert parked.refused
                assert lease.slot is not None
                assert lease.state is LeaseState.PARKED
                now = pool.statistics()
                assert (now.held, now.parked) == (1, 1)
            assert lease.state.value == "held"
            first.come_back()
            await first.served()
            async with lease.parked() as parked:
                assert not parked.refused
                assert lease.slot is None


async def test_a_refused_park_runs_its_tasks_until_its_body_ends(make_pool: MakePool) -> None:
    """E7: slower for others, never an error."""
    pool = await make_pool(1, park_budget=ParkBudget(0))
    async with visiting(pool) as house, pool.admit() as lease:
        newcomer = await house.arrive("newcomer")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await trio.sleep(0.001)

        async with lease.parked() as parked:
            parked.nursery.start_soon(tick)
            await until(lambda: ticks > 5)
            assert newcomer.waits
        so_far = ticks
        await trio.sleep(0.01)
        assert (ticks, lease.slot) == (so_far, 0)


async def test_unparked_does_nothing_in_a_refused_park(make_pool: MakePool) -> None:
    """E4: the slot is there already; its tasks are waited for all the same."""
    pool = await make_pool(1, park_budget=ParkBudget(0))
    async with pool.admit() as lease, lease.parked() as parked:
        done = False

        async def work() -> None:
            nonlocal done
            await trio.sleep(0.01)
            done = True

        async with parked.unparked() as held:
            held.nursery.start_soon(work)
            assert held.slot == lease.slot == 0
            assert lease.state is LeaseState.PARKED
        assert done
        assert lease.slot == 0


@pytest.mark.parametrize("way_out", ["error", "deadline"])
async def test_a_refused_park_is_left_by_the_same_rule(make_pool: MakePool, way_out: str) -> None:
    """E3, E5, E7: who leaves it without finishing loses the lease, although it had its slot."""
    pool = await make_pool(1, park_budget=ParkBudget(0))
    if way_out == "error":
        with pytest.raises(ValueError, match="denied"):
            async with pool.admit() as lease, lease.parked():
                raise ValueError("denied")
    else:
        with pytest.raises(LeaseLost):
            async with pool.admit() as lease:
                with trio.move_on_after(0.01):
                    async with lease.parked():
                        await trio.sleep_forever()
                await trio.sleep_forever()
    await nothing_is_left(pool)


async def test_the_claim_comes_back_when_the_body_ends_not_when_the_slot_is_regained(
    make_pool: MakePool,
) -> None:
    """E7: who waits to return is no reason to refuse another's park."""
    pool = await make_pool(1, park_budget=ParkBudget(1))
    async with visiting(pool) as house:
        first = await house.serve("first")
        await first.park()
        second = await house.serve("second")
        await first.return_to_line()
        await second.park()
        assert second.parked is not None
        assert not second.parked.refused
        await first.served()


async def test_the_claim_lasts_over_unparked_blocks(make_pool: MakePool) -> None:
    """E4, E7: it is one park, from its entry to the end of its body."""
    pool = await make_pool(2, park_budget=ParkBudget(1))
    async with visiting(pool) as house, pool.admit() as lease, lease.parked() as parked, parked.unparked():
        other = await house.serve("other")
        await other.park()
        assert other.parked is not None
        assert other.parked.refused


@pytest.mark.parametrize("way_out", ["error", "cancel", "finished"])
async def test_no_way_out_of_a_park_leaks_the_budget(make_pool: MakePool, way_out: str) -> None:
    """E2, E7: the budget of one is there for each of ten parks."""
    pool = await make_pool(1, park_budget=ParkBudget(1))
    for _ in range(10):
        with trio.CancelScope() as scope:
            try:
                async with pool.admit() as lease, lease.parked() as parked:
                    assert not parked.refused
                    if way_out == "error":
                        raise ValueError  # noqa: TRY301  # the body's own
                    if way_out == "cancel":
                        scope.cancel()
            except ValueError:
                pass
    await nothing_is_left(pool)


async def test_pools_share_a_budget(make_pool: MakePool) -> None:
    """E7: two parks over two pools, whichever they are in."""
    budget = ParkBudget(2)
    left, right = await make_pool(1, park_budget=budget), await make_pool(1, park_budget=budget)
    async with visiting(left) as here, visiting(right) as there:
        parkers = []
        for house in (here, here, there):
            visitor = await house.serve("parker")
            await visitor.park()
            parkers.append(visitor)
        assert [visitor.parked.refused for visitor in parkers if visitor.parked] == [False, False, True]
        parkers[2].come_back()
        await parkers[2].served()
        parkers[0].cancel()
        await parkers[0].left()
        await parkers[2].park()
        assert parkers[2].parked is not None
        assert not parkers[2].parked.refused


async def test_an_unlimited_budget_refuses_nobody(make_pool: MakePool) -> None:
    """E7: a hundred parks on one slot."""
    pool = await make_pool(1, park_budget=ParkBudget.unlimited())
    async with visiting(pool) as house:
        for number in range(100):
            visitor = await house.serve(f"{number}")
            await visitor.park()
        assert pool.statistics().parked == 100


async def test_what_a_child_has_from_its_parent_is_counted_right_to_its_end(make_pool: MakePool) -> None:
    """E6, E9, G6: it keeps the slot of a parent that has gone, and parks at another cost."""
    pool = await make_pool(1, kv_tokens=100, park_budget=ParkBudget(0))
    async with visiting(pool) as house:
        parent = await house.serve("parent", cost=Cost(tokens=80))
        await parent.park()
        async with pool.admit(parent=parent.lease, cost=Cost(tokens=10)) as child:
            parent.cancel()
            await parent.left()
            assert pool.statistics().kv_held == 80
            async with child.parked(Cost(tokens=30)):
                pass
            assert (pool.statistics().held, pool.statistics().kv_held) == (1, 30)
        assert (pool.statistics().held, pool.statistics().kv_held) == (0, 0)


# C2


async def test_with_control_off_everybody_is_granted_at_once(make_pool: MakePool) -> None:
    """C2: and holds no slot; only a closed pool refuses, and a drain still waits for those inside."""
    pool = await make_pool(1, config=AdmissionConfig(enabled=False, max_wait=0, max_waiting=1))
    async with visiting(pool) as house, trio.open_nursery() as nursery:
        visitors = [await house.serve(f"{number}", cost=Cost(slots=9)) for number in range(5)]
        async with pool.reserve() as reservation:
            assert reservation.position == 0
            assert reservation.lease is not None
            assert (reservation.lease.slot, reservation.lease.slots) == (None, ())
        assert pool.estimated_wait() == 0
        assert pool.statistics().held == 0
        pool.close()
        with pytest.raises(PoolClosed):
            await house.arrive("late")
        drained = trio.Event()

        async def drain() -> None:
            await pool.drained()
            drained.set()

        nursery.start_soon(drain)
        await trio.sleep(0.01)
        for visitor in visitors:
            assert not drained.is_set()
            visitor.leave()
            await visitor.left()
        with trio.fail_after(5):
            await drained.wait()


async def test_with_control_off_a_park_does_nothing(make_pool: MakePool) -> None:
    """C2: it is not refused, its tasks run, and nothing blocks."""
    pool = await make_pool(1, config=AdmissionConfig(enabled=False), park_budget=ParkBudget(0))
    async with visiting(pool) as house:
        for number in range(5):
            await house.serve(f"{number}")
        async with pool.admit() as lease:
            ran = trio.Event()

            async def task() -> None:
                ran.set()
                await trio.sleep_forever()

            async with lease.parked() as parked:
                parked.nursery.start_soon(task)
                await ran.wait()
                assert not parked.refused
                assert lease.state is LeaseState.PARKED
                async with parked.unparked() as held:
                    assert held.slot is None
                now = pool.statistics()
                assert (now.held, now.parked, now.waiting) == (0, 0, 0)
            assert (lease.state, lease.slot, lease.slots) == (LeaseState.HELD, None, ())
