"""A task is cancelled at each step that the scheduler takes, and nothing is lost or doubled (G3, E2)."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest
import trio

from tests.library.proofs.broken import LeavesWithoutGranting
from tests.library.proofs.stories import STORIES, Stage, admits, stage_for
from trio_admission.testing import run_in_virtual_time

if TYPE_CHECKING:
    from tests.library.proofs.stories import Story

SEEDS = range(2 * int(os.environ.get("PROOF_SOAK", "1")))


class CancelAt(trio.abc.Instrument):
    """Cancels a stage's hero at one of the moments before and after the steps of all tasks.

    Moments are counted while the hero lets itself be cut. ``past`` tells that there were none left.
    """

    def __init__(self, stage: Stage, moment: int) -> None:
        self._stage = stage
        self._left = moment

    @property
    def past(self) -> bool:
        return self._left >= 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._count()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._count()

    def _count(self) -> None:
        scope = self._stage.scope
        if scope is not None and self._left >= 0:
            if self._left == 0:
                scope.cancel()
            self._left -= 1


def play(stage: Stage, story: Story, *, crowded: bool, moment: int, seed: int) -> bool:
    """Play a story with a cancel at one moment, and say whether there was such a moment."""
    instrument = CancelAt(stage, moment)

    async def main() -> None:
        await stage.play(story, crowded=crowded)

    trio._core._run._r.seed(seed)
    run_in_virtual_time(main, instruments=[instrument])
    return not instrument.past


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the seed alone decide in which order tasks run."""
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize(
    ("slots", "crowded"),
    [
        pytest.param(1, False, id="alone"),
        pytest.param(1, True, id="crowded"),
        pytest.param(2, True, id="roomy"),
    ],
)
@pytest.mark.parametrize("story", STORIES)
def test_a_cancel_at_any_step_loses_nothing_when_the_hero(story: Story, slots: int, crowded: bool) -> None:
    """G3, E2, L4: it leaves as if it had never been there, and everybody else is served."""
    for seed in SEEDS:
        for moment in itertools.count():
            stage = stage_for(story, slots)
            try:
                if not play(stage, story, crowded=crowded, moment=moment, seed=seed):
                    break
            except BaseException as error:
                error.add_note(f"cancelled at moment {moment}, seed {seed}")
                raise
        assert moment > 1, "the hero was never cut"


@pytest.mark.usefixtures("scheduler")
def test_the_steps_catch_a_pool_that_leaves_without_granting() -> None:
    stage = Stage()
    stage.pool._core.__class__ = LeavesWithoutGranting
    with pytest.raises((trio.TooSlowError, AssertionError, ExceptionGroup)):
        play(stage, admits, crowded=True, moment=10, seed=0)
