"""Every way out of `parked` and `unparked`: what leaves, when, and what is left behind (E3-E5).

The hero is admitted at 0 and parks; its block takes one second. Then its way back is free, or contended
(somebody who waited has the slot until 5), or its park was refused (with somebody waiting or not).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.support.visitors import empty
from trio_admission import EventKind, LeaseLost, LeaseState, ParkBudget, PoolEvent, SlotPool
from trio_admission.testing import check, run_in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Way = Callable[["Scene"], Awaitable[None]]


@dataclass
class Scene:
    """One hero at a pool of one slot, and what became of it."""

    contended: bool
    refused: bool = False
    outer: trio.CancelScope = field(default_factory=trio.CancelScope)
    lost_events: int = 0
    left: BaseException | None = None  # what came out of `admit`
    left_at: float = -1
    went_on_with: int | None = None  # the slot that the code after the park found
    other_served_at: float = -1

    def play(self, way: Way) -> Scene:
        run_in_virtual_time(lambda: self._play(way))
        return self

    async def _play(self, way: Way) -> None:
        budget = ParkBudget(0 if self.refused else 1)
        self.pool = SlotPool(1, park_budget=budget)
        self.pool.add_instrument(self._note)
        async with trio.open_nursery() as nursery:
            with self.outer:
                try:
                    async with self.pool.admit() as self.lease:
                        if self.contended:
                            nursery.start_soon(self._other)
                            await trio.testing.wait_all_tasks_blocked()
                        await way(self)
                        self.went_on_with = self.lease.slot
                        await trio.lowlevel.checkpoint()
                except BaseException as error:
                    self.left = error
                    if isinstance(error, trio.Cancelled):
                        raise
                finally:
                    self.left_at = trio.current_time()
                    assert self.lease.state is LeaseState.ENDED
                    assert self.lease.slot is None
                    check(self.pool)
        assert empty(self.pool)
        assert repr(budget).startswith("<ParkBudget 0 of")
        assert (self.other_served_at >= 0) == self.contended

    async def _other(self) -> None:
        async with self.pool.admit():
            self.other_served_at = trio.current_time()
            await trio.sleep_until(5)

    def _note(self, event: PoolEvent) -> None:
        self.lost_events += event.kind is EventKind.LOST


@trio.lowlevel.enable_ki_protection
def press_ctrl_c() -> None:
    """As if it came while Trio waits: the main task, the hero's, gets it at its next checkpoint."""
    signal.raise_signal(signal.SIGINT)


async def later(seconds: float, act: Callable[[], object]) -> None:
    await trio.sleep(seconds)
    act()


def fail() -> None:
    raise ValueError("on purpose")


# Ways out of `parked`.


async def finishes(scene: Scene) -> None:
    async with scene.lease.parked():
        await trio.sleep(1)


async def returns_from_inside(scene: Scene) -> None:
    async with scene.lease.parked():
        await trio.sleep(1)
        return


async def fails(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(trio.sleep_forever)
        await trio.sleep(1)
        fail()


async def raises_generator_exit(scene: Scene) -> None:
    async with scene.lease.parked():
        await trio.sleep(1)
        raise GeneratorExit


async def presses_ctrl_c(scene: Scene) -> None:
    async with scene.lease.parked():
        await trio.sleep(1)
        signal.raise_signal(signal.SIGINT)


async def presses_ctrl_c_at_2(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 2, press_ctrl_c)
        await trio.sleep(1)


async def has_a_task_that_fails_at_a_half(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 0.5, fail)
        await trio.sleep(1)


async def has_a_task_that_fails_at_2(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 2, fail)
        await trio.sleep(1)


async def has_a_deadline_at_a_half(scene: Scene) -> None:
    with trio.move_on_after(0.5):
        async with scene.lease.parked():
            await trio.sleep(1)


async def does_not_look_at_its_deadline(scene: Scene) -> None:
    with trio.move_on_after(0.5):
        async with scene.lease.parked():
            with trio.CancelScope(shield=True):
                await trio.sleep(1)


async def has_a_deadline_that_passed_before(scene: Scene) -> None:
    with trio.move_on_after(0):
        async with scene.lease.parked():
            with trio.CancelScope(shield=True):
                await trio.sleep(1)


async def has_a_deadline_at_2(scene: Scene) -> None:
    with trio.move_on_after(2):
        async with scene.lease.parked():
            await trio.sleep(1)


async def has_a_deadline_at_50(scene: Scene) -> None:
    with trio.move_on_after(50):
        async with scene.lease.parked():
            await trio.sleep(1)


async def is_cancelled_from_outside_at_a_half(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 0.5, scene.outer.cancel)
        await trio.sleep(1)


async def is_cancelled_from_outside_at_2(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 2, scene.outer.cancel)
        await trio.sleep(1)


async def cancels_the_parks_nursery(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        await trio.sleep(1)
        parked.nursery.cancel_scope.cancel()


async def cancels_the_parks_nursery_and_notices(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 0.5, parked.nursery.cancel_scope.cancel)
        await trio.sleep(1)


async def cancels_the_parks_nursery_at_2(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 2, parked.nursery.cancel_scope.cancel)
        await trio.sleep(1)


async def parks_inside_its_park(scene: Scene) -> None:
    async with scene.lease.parked():
        await trio.sleep(1)
        async with scene.lease.parked():
            pass


@dataclass(frozen=True)
class End:
    """What leaves `admit`, when, and the cause of a `LeaseLost`."""

    leaves: type[BaseException] | None
    at: float
    cause: type[BaseException] | None = None


BACK_AT_ONCE, BACK_AT_5 = End(None, 1), End(None, 5)


def lost(at: float) -> End:
    return End(LeaseLost, at, trio.Cancelled)


# way -> how it ends when the way back is free, contended, or not needed because the park was refused
WAYS_OUT: dict[Way, tuple[End, End, End]] = {
    finishes: (BACK_AT_ONCE, BACK_AT_5, BACK_AT_ONCE),
    returns_from_inside: (BACK_AT_ONCE, BACK_AT_5, BACK_AT_ONCE),
    fails: (End(ValueError, 1),) * 3,
    raises_generator_exit: (End(GeneratorExit, 1),) * 3,
    presses_ctrl_c: (End(KeyboardInterrupt, 1),) * 3,
    presses_ctrl_c_at_2: (BACK_AT_ONCE, End(KeyboardInterrupt, 2), BACK_AT_ONCE),
    has_a_task_that_fails_at_a_half: (End(ExceptionGroup, 0.5),) * 3,
    has_a_task_that_fails_at_2: (BACK_AT_ONCE, End(ExceptionGroup, 2), BACK_AT_ONCE),
    has_a_deadline_at_a_half: (lost(0.5),) * 3,
    does_not_look_at_its_deadline: (lost(1),) * 3,
    has_a_deadline_that_passed_before: (lost(1),) * 3,
    has_a_deadline_at_2: (BACK_AT_ONCE, lost(2), BACK_AT_ONCE),
    has_a_deadline_at_50: (BACK_AT_ONCE, BACK_AT_5, BACK_AT_ONCE),
    is_cancelled_from_outside_at_a_half: (End(trio.Cancelled, 0.5),) * 3,
    is_cancelled_from_outside_at_2: (BACK_AT_ONCE, End(trio.Cancelled, 2), BACK_AT_ONCE),
    cancels_the_parks_nursery: (lost(1),) * 3,
    cancels_the_parks_nursery_and_notices: (lost(0.5),) * 3,
    cancels_the_parks_nursery_at_2: (BACK_AT_ONCE, lost(2), BACK_AT_ONCE),
    parks_inside_its_park: (End(RuntimeError, 1),) * 3,
}


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize(
    ("contended", "refused"),
    [
        pytest.param(False, False, id="free"),
        pytest.param(True, False, id="contended"),
        pytest.param(False, True, id="refused"),
        pytest.param(True, True, id="refused and contended"),
    ],
)
def test_a_park_ends_as_it_should_when_its_block(way: Way, contended: bool, refused: bool) -> None:
    """E3, E5: only a block that finishes brings the slot back; see `WAYS_OUT`."""
    scene = Scene(contended, refused).play(way)
    free, after_a_wait, at_once = WAYS_OUT[way]
    expected = at_once if refused else after_a_wait if contended else free
    cause = scene.left.__cause__ if isinstance(scene.left, LeaseLost) else None
    left, because = type(scene.left) if scene.left else None, type(cause) if cause else None
    assert End(left, scene.left_at, because) == expected
    assert (scene.went_on_with is not None) == (scene.left is None), "the slot after the park"
    assert scene.lost_events == (scene.left is not None)
    if contended:
        assert scene.other_served_at == (scene.left_at if refused else 0)


@pytest.mark.parametrize("way", [has_a_task_that_fails_at_a_half, has_a_task_that_fails_at_2])
def test_the_errors_of_a_parks_tasks_leave_in_one_group(way: Way) -> None:
    scene = Scene(contended=True).play(way)
    assert isinstance(scene.left, ExceptionGroup)
    (error,) = scene.left.exceptions
    assert isinstance(error, ValueError)


# Ways out of `unparked`; its block begins at 0 or, contended, at 5, and takes another second.


async def holds_again(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        async with parked.unparked() as held:
            assert held.slot == 0
            await trio.sleep(1)
        assert scene.lease.state is LeaseState.PARKED


async def holds_again_until_its_tasks_are_done(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        async with parked.unparked() as held:
            held.nursery.start_soon(trio.sleep, 1)
        assert scene.lease.state is LeaseState.PARKED


async def fails_while_it_holds(scene: Scene) -> None:
    async with scene.lease.parked() as parked, parked.unparked():
        await trio.sleep(1)
        fail()


async def catches_what_fails_while_it_holds(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        with pytest.raises(ValueError, match="on purpose"):
            async with parked.unparked():
                await trio.sleep(1)
                fail()
        assert scene.lease.state is LeaseState.PARKED


async def has_a_task_that_fails_while_it_holds(scene: Scene) -> None:
    async with scene.lease.parked() as parked, parked.unparked() as held:
        held.nursery.start_soon(later, 0.5, fail)
        await trio.sleep(1)


async def has_a_task_of_the_park_that_fails(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 0.5, fail)
        async with parked.unparked():
            await trio.sleep(1)


async def gives_up_unparking_at_a_half(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        with trio.move_on_after(0.5):
            async with parked.unparked():
                await trio.sleep(0.25)
        assert scene.lease.state is LeaseState.PARKED
        await trio.sleep_until(1)


async def gives_up_what_it_does_with_the_slot(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        async with parked.unparked() as held:
            held.nursery.cancel_scope.deadline = trio.current_time() + 1
            await trio.sleep_forever()
        assert scene.lease.state is LeaseState.PARKED


async def gives_up_the_park_at_2(scene: Scene) -> None:
    with trio.move_on_at(2):
        async with scene.lease.parked() as parked, parked.unparked():
            await trio.sleep(1)


async def is_cancelled_while_it_unparks(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 0.5, scene.outer.cancel)
        async with parked.unparked():
            await trio.sleep(1)


async def presses_ctrl_c_while_it_unparks(scene: Scene) -> None:
    async with scene.lease.parked() as parked:
        parked.nursery.start_soon(later, 0.5, press_ctrl_c)
        async with parked.unparked():
            await trio.sleep(1)


async def lets_another_task_unpark(scene: Scene) -> None:
    async with scene.lease.parked() as parked:

        async def steal() -> None:
            with pytest.raises(RuntimeError, match="only the task"):
                async with parked.unparked():
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(steal)
        assert scene.lease.state is LeaseState.PARKED
        await trio.sleep(1)


async def unparks_twice(scene: Scene) -> None:
    async with scene.lease.parked() as parked, parked.unparked():
        await trio.sleep(1)
        with pytest.raises(RuntimeError):
            async with parked.unparked():
                pass


# way -> how it ends when a slot is free, or contended (then it holds again from 5 on)
WAYS_OUT_AGAIN: dict[Way, tuple[End, End]] = {
    holds_again: (End(None, 1), End(None, 6)),
    holds_again_until_its_tasks_are_done: (End(None, 1), End(None, 6)),
    fails_while_it_holds: (End(ValueError, 1), End(ValueError, 6)),
    catches_what_fails_while_it_holds: (End(None, 1), End(None, 6)),
    has_a_task_that_fails_while_it_holds: (End(ExceptionGroup, 0.5), End(ExceptionGroup, 5.5)),
    has_a_task_of_the_park_that_fails: (End(ExceptionGroup, 0.5), End(ExceptionGroup, 0.5)),
    gives_up_unparking_at_a_half: (End(None, 1), End(None, 5)),
    gives_up_what_it_does_with_the_slot: (End(None, 1), End(None, 6)),
    gives_up_the_park_at_2: (End(None, 1), lost(2)),
    is_cancelled_while_it_unparks: (End(trio.Cancelled, 0.5), End(trio.Cancelled, 0.5)),
    presses_ctrl_c_while_it_unparks: (End(KeyboardInterrupt, 0.5), End(KeyboardInterrupt, 0.5)),
    lets_another_task_unpark: (End(None, 1), End(None, 5)),
    unparks_twice: (End(None, 1), End(None, 6)),
}


@pytest.mark.parametrize("way", WAYS_OUT_AGAIN)
@pytest.mark.parametrize("contended", [False, True], ids=["free", "contended"])
def test_holding_again_ends_as_it_should_when_its_block(way: Way, contended: bool) -> None:
    """E4: the slot goes on in any case, and the park with it only if its own block fails."""
    scene = Scene(contended).play(way)
    expected = WAYS_OUT_AGAIN[way][contended]
    cause = scene.left.__cause__ if isinstance(scene.left, LeaseLost) else None
    left, because = type(scene.left) if scene.left else None, type(cause) if cause else None
    assert End(left, scene.left_at, because) == expected
    assert (scene.went_on_with is not None) == (scene.left is None), "the slot after the park"
    assert scene.lost_events == (scene.left is not None)


NOTHING_TO_UNPARK: dict[Way, End] = {
    holds_again_until_its_tasks_are_done: End(None, 1),
    fails_while_it_holds: End(ValueError, 1),
    has_a_task_that_fails_while_it_holds: End(ExceptionGroup, 0.5),
    gives_up_unparking_at_a_half: End(None, 1),
    gives_up_what_it_does_with_the_slot: End(None, 1),
    lets_another_task_unpark: End(None, 1),
}


@pytest.mark.parametrize("way", NOTHING_TO_UNPARK)
def test_holding_again_in_a_refused_park_only_runs_its_block(way: Way) -> None:
    """E4: it does nothing else."""
    scene = Scene(contended=True, refused=True).play(way)
    assert End(type(scene.left) if scene.left else None, scene.left_at) == NOTHING_TO_UNPARK[way]
    assert scene.other_served_at == scene.left_at
