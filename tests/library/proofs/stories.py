"""What tasks do at a pool, so that a test can cut one of them short at any point.

A story is told by its hero, who gives the test a cancel scope by entering `Stage.cut_here`; the others are
there to be in the way, and must be served whatever happens to the hero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.support.visitors import empty
from trio_admission import Cost, LeaseLost, LeaseState, ParkBudget, SlotPool, WaitTimeout
from trio_admission.testing import check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio_admission import Lease

    Story = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A pool with people at it."""

    def __init__(self, *, slots: int = 1, parks: int = 3) -> None:
        self.budget = ParkBudget(parks)
        self.pool = SlotPool(slots, kv_tokens=100, park_budget=self.budget)
        self.scope: trio.CancelScope | None = None  # of the hero, while it may be cut
        self.crowd = 0
        self.served = 0

    def cut_here(self) -> trio.CancelScope:
        self.scope = trio.CancelScope()
        return self.scope

    async def play(self, story: Story, *, crowded: bool) -> None:
        """Let the hero play its story, among others if it is crowded, and see that nothing is left."""
        async with trio.open_nursery() as nursery:
            if crowded:
                self.crowd = 3
                nursery.start_soon(self._visit, "a")
                nursery.start_soon(self._visit, "b")
                nursery.start_soon(self._park_in_the_way)
                if trio._core._run._r.random() < 0.5:
                    await trio.lowlevel.checkpoint()  # they come before the hero, or after
            await story(self)
            self.scope = None
        self.look()
        assert self.served == self.crowd, f"{self.crowd - self.served} others were not served"

    async def _visit(self, flow: str) -> None:
        async with self.pool.admit(flow=flow, cost=Cost(tokens=60)):
            await trio.sleep(1)
        self.served += 1

    async def _park_in_the_way(self) -> None:
        async with self.pool.admit() as lease:
            async with lease.parked():
                await trio.lowlevel.checkpoint()
            assert lease.slot is not None
        self.served += 1

    def look(self) -> None:
        """Assert that nothing is left of anybody."""
        check(self.pool)
        assert empty(self.pool), f"something is left: {self.pool.statistics()}"
        assert self.pool.suspension is None, "the pool is still suspended"
        claims = len(self.pool._core.tickets)  # those that are out and have not expired
        assert repr(self.budget).startswith(f"<ParkBudget {claims} of"), f"a park is claimed: {self.budget}"


def must_hold(lease: Lease) -> None:
    assert lease.state is LeaseState.HELD
    assert lease.slot is not None


async def admits(stage: Stage) -> None:
    with stage.cut_here():
        async with stage.pool.admit(cost=Cost(tokens=40)) as lease:
            must_hold(lease)
            await trio.sleep(1)
            must_hold(lease)


async def admits_in_time_or_not(stage: Stage) -> None:
    with stage.cut_here():
        try:
            async with stage.pool.admit(max_wait=1) as lease:
                must_hold(lease)
        except WaitTimeout:
            pass


async def reserves_and_waits(stage: Stage) -> None:
    with stage.cut_here():
        async with stage.pool.reserve() as reservation:
            must_hold(await reservation.wait())
            await trio.lowlevel.checkpoint()


async def keeps_its_place_when_a_wait_is_cut(stage: Stage) -> None:
    async with stage.pool.reserve() as reservation:
        with stage.cut_here():
            await reservation.wait()
        stage.scope = None
        must_hold(await reservation.wait())


async def looks_up_between_waits(stage: Stage) -> None:
    with stage.cut_here():
        async with stage.pool.reserve(max_wait=10) as reservation:
            while (lease := await reservation.wait_at_most(0.5)) is None:
                await trio.sleep(0.25)
                assert reservation.position <= 4
            must_hold(lease)


async def never_waits(stage: Stage) -> None:
    with stage.cut_here():
        async with stage.pool.reserve(max_wait=1):
            await trio.sleep(2)


async def parks(stage: Stage) -> None:
    with stage.cut_here():
        async with stage.pool.admit() as lease:
            async with lease.parked() as parked:
                parked.nursery.start_soon(trio.sleep_forever)
                await trio.sleep(1)
                parked.cost = Cost(tokens=70)
            must_hold(lease)


async def loses_its_lease_when_a_park_is_cut(stage: Stage) -> None:
    scope = None
    try:
        async with stage.pool.admit() as lease:
            with stage.cut_here() as scope:
                async with lease.parked():
                    await trio.sleep(1)
            must_hold(lease)  # if it comes here at all
            await trio.lowlevel.checkpoint()
            must_hold(lease)
    except LeaseLost:
        assert scope is not None
        assert scope.cancel_called


async def is_refused_a_park_and_lends(stage: Stage) -> None:
    with stage.cut_here():
        async with stage.pool.admit() as lease:
            async with lease.parked() as parked, trio.open_nursery() as nursery:
                assert parked.refused
                nursery.start_soon(_child, stage, lease)
                nursery.start_soon(_child, stage, lease)
            must_hold(lease)


async def _child(stage: Stage, parent: Lease) -> None:
    async with stage.pool.admit(parent=parent) as lease:
        must_hold(lease)
        await trio.sleep(0.5)


async def leaves_while_its_child_works(stage: Stage) -> None:
    async with trio.open_nursery() as nursery:
        with stage.cut_here():
            async with stage.pool.admit() as lease:
                async with lease.parked():
                    nursery.start_soon(_child, stage, lease)
                    await trio.sleep(0.25)
                must_hold(lease)


async def holds_again_inside_a_park(stage: Stage) -> None:
    with stage.cut_here():
        async with stage.pool.admit() as lease:
            async with lease.parked() as parked:
                await trio.lowlevel.checkpoint()
                async with parked.unparked() as held:
                    assert held.slot is not None
                    held.nursery.start_soon(trio.sleep, 0.5)
                    await trio.lowlevel.checkpoint()
            must_hold(lease)


async def stays_parked_when_unparking_is_cut(stage: Stage) -> None:
    async with stage.pool.admit() as lease:
        async with lease.parked() as parked:
            with stage.cut_here():
                async with parked.unparked() as held:
                    assert held.slot is not None
                    await trio.sleep(0.5)
            stage.scope = None
            assert lease.state is LeaseState.PARKED
        must_hold(lease)


async def comes_again_with_a_ticket(stage: Stage) -> None:
    ticket = None
    with stage.cut_here():
        async with stage.pool.admit() as lease:
            ticket = lease.issue_ticket(20)
        async with stage.pool.admit(ticket=ticket) as lease:
            must_hold(lease)
            ticket = None
    stage.scope = None
    if ticket is not None:  # it was cut before it could use the ticket: somebody else uses it up
        async with stage.pool.admit(ticket=ticket):
            pass


async def owns_the_pool(stage: Stage) -> None:
    with stage.cut_here():
        with stage.pool.suspended("restarting"):
            await trio.sleep(0.25)
            stage.pool.resize(2, kv_tokens=50)
        async with stage.pool.reserve(flow="c") as reservation:
            assert reservation.position == len(stage.pool.waiting())
            stage.pool.resize(1, kv_tokens=100)
            await trio.sleep(0.25)
        stage.pool.estimated_wait()
        await stage.pool.drained()


STORIES: list[Story] = [
    owns_the_pool,
    admits,
    admits_in_time_or_not,
    reserves_and_waits,
    keeps_its_place_when_a_wait_is_cut,
    looks_up_between_waits,
    never_waits,
    parks,
    loses_its_lease_when_a_park_is_cut,
    is_refused_a_park_and_lends,
    leaves_while_its_child_works,
    holds_again_inside_a_park,
    stays_parked_when_unparking_is_cut,
    comes_again_with_a_ticket,
]
REFUSED = {is_refused_a_park_and_lends, leaves_while_its_child_works}


def stage_for(story: Story, slots: int = 1) -> Stage:
    return Stage(slots=slots, parks=0 if story in REFUSED else 3)
