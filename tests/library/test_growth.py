"""What operations cost when many wait. Real time, in the pure core: best of several, with a wide margin."""

from __future__ import annotations

import gc
import itertools
import time
from typing import TYPE_CHECKING
from weakref import WeakSet

import pytest

from trio_admission import AdmissionConfig, LeaseState, ParkBudget
from trio_admission._claim import Claim
from trio_admission._core import Core
from trio_admission._holdings import Holdings

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, MANY = 100, 50_000
ROUNDS = 15

# An operation that looks at every waiter would be 500 times as slow; a factor of log n is below 3.
MARGIN = 20


class Scene:
    """A pool of one slot that is held, with many in the line, of several flows and priorities."""

    def __init__(self, waiting: int) -> None:
        self.numbers = itertools.count()
        config = AdmissionConfig(max_waiting=0)
        self.core = Core("", Holdings(1), config, ParkBudget.unlimited(), lambda: 0.0)
        self.holder = self.arrive()
        self.line = [self.arrive() for _ in range(waiting)]

    def arrive(self) -> Claim:
        number = next(self.numbers)
        claim = Claim(flow=f"flow {number % 50}", priority=number % 3)
        self.core.arrive(claim)
        return claim


def arrive(scene: Scene) -> None:
    scene.line.append(scene.arrive())


def cancel_one_in_the_line(scene: Scene) -> None:
    claim = scene.line.pop(len(scene.line) * 3 // 4)
    assert claim.state is LeaseState.WAITING
    scene.core.leave(claim)


def hand_over(scene: Scene) -> None:
    scene.core.leave(scene.holder)
    (scene.holder,) = scene.core.holders


def park_and_return(scene: Scene) -> None:
    scene.core.park(scene.holder)
    (other,) = scene.core.holders
    scene.core.come_back(scene.holder, scene.holder.cost)
    scene.core.leave(other)


def statistics(scene: Scene) -> None:
    scene.core.statistics()


def ask_again_for_positions(scene: Scene) -> None:
    """The ranking of the first question serves the others, until the next change."""
    for claim in scene.line[-20:]:
        scene.core.position(claim)


def time_of(operation: Callable[[Scene], None], scene: Scene) -> float:
    def once() -> float:
        start = time.perf_counter()
        operation(scene)
        return time.perf_counter() - start

    once()
    return min(once() for _ in range(ROUNDS))


@pytest.fixture(scope="module")
def scenes() -> tuple[Scene, Scene]:
    """One pool with a short line, and one with a long one."""
    return Scene(FEW), Scene(MANY)


@pytest.mark.parametrize(
    "operation",
    [arrive, cancel_one_in_the_line, hand_over, park_and_return, statistics, ask_again_for_positions],
)
def test_no_operation_looks_at_everybody(
    operation: Callable[[Scene], None], scenes: tuple[Scene, Scene]
) -> None:
    """G8: five hundred times as many wait, and it takes a little longer."""
    short, long = scenes
    assert time_of(operation, long) < MARGIN * time_of(operation, short)


def test_priorities_that_nobody_has_any_more_cost_nothing() -> None:
    """G8: who is next is looked for among those who wait, not among all who ever did."""

    def after(priorities: int) -> Scene:
        scene = Scene(FEW)
        for priority in range(priorities):
            claim = Claim(priority=-priority)
            scene.core.arrive(claim)
            scene.core.leave(claim)
        return scene

    assert time_of(hand_over, after(MANY)) < MARGIN * time_of(hand_over, after(FEW))


def served_at_once(core: Core, claim: Claim) -> None:
    core.arrive(claim)
    core.leave(claim)


def served_after_a_wait(core: Core, claim: Claim) -> None:
    holder = Claim()
    core.arrive(holder)
    core.arrive(claim)
    core.leave(holder)
    core.leave(claim)


def gone_before_its_turn(core: Core, claim: Claim) -> None:
    holder = Claim()
    core.arrive(holder)
    core.arrive(claim)
    core.leave(claim)
    core.leave(holder)


@pytest.mark.parametrize("visit", [served_at_once, served_after_a_wait, gone_before_its_turn])
def test_who_is_gone_is_forgotten_long_before_its_time_would_have_passed(
    visit: Callable[[Core, Claim], None],
) -> None:
    """G8: a thousand come one after the other, who might have waited for a day each."""
    core = Core("", Holdings(1), AdmissionConfig(), ParkBudget.unlimited(), lambda: 0.0)
    remembered: WeakSet[Claim] = WeakSet()
    for _ in range(1000):
        claim = Claim(max_wait=86400)
        remembered.add(claim)
        visit(core, claim)
    del claim
    gc.collect()
    assert len(remembered) < FEW
