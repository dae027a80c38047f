"""Ctrl-C at each line of the library leaves nothing held, waiting, parked or claimed (G3).

A trace function raises SIGINT, and Trio's own handler decides what becomes of it: a `KeyboardInterrupt` on
the spot, or, in code that is protected, one at the next checkpoint of the main task.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import trio_admission
from tests.library.proofs.stories import STORIES, Stage, admits, stage_for
from trio_admission._lease import Lease
from trio_admission.testing import run_in_virtual_time

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from tests.library.proofs.stories import Story

Place = tuple[str, int]

SOAK = "PROOF_SOAK" in os.environ  # every visit of every line, in place of the first in any story
LIBRARY = {str(path) for path in Path(trio_admission.__file__).parent.glob("*.py")}


class Interrupter:
    """Counts the lines of the library that are run, and presses Ctrl-C at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.lines: list[Place] = []
        self._at = at

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in LIBRARY:
            return None
        if event in {"call", "line"}:
            number = len(self.lines)
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if number == self._at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._trace


def play(stage: Stage, story: Story, interrupter: Interrupter, *, crowded: bool) -> BaseException | None:
    """Play a story, and return what came out of its run."""

    async def main() -> None:
        await stage.play(story, crowded=crowded)

    trio._core._run._r.seed(0)
    try:
        with interrupter:
            run_in_virtual_time(main)
    except BaseException as error:  # noqa: BLE001  # that is the question
        return error
    return None


def interrupt_everywhere(story: Story, *, crowded: bool, done: set[Place]) -> None:
    listener = Interrupter()
    assert play(stage_for(story), story, listener, crowded=crowded) is None
    for moment, (path, line) in enumerate(listener.lines):
        if (path, line) in done and not SOAK:
            continue
        done.add((path, line))
        stage = stage_for(story)
        try:
            came_out = play(stage, story, Interrupter(moment), crowded=crowded)
            assert only_ctrl_c(came_out), f"something else came out: {came_out!r}"
            stage.look()
        except BaseException as error:
            error.add_note(f"Ctrl-C at {Path(path).name}:{line}, line {moment} of the run")
            raise


def only_ctrl_c(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(only_ctrl_c, error.exceptions))
    return isinstance(error, KeyboardInterrupt)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)


@pytest.fixture(scope="module")
def done() -> set[Place]:
    """The lines that have been interrupted so far."""
    return set()


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("crowded", [True, False], ids=["crowded", "alone"])
@pytest.mark.parametrize("story", STORIES)
def test_ctrl_c_at_any_line_leaves_nothing_when_somebody(
    story: Story, crowded: bool, done: set[Place]
) -> None:
    """G3: nothing is left held, waiting, parked, claimed or suspended."""
    interrupt_everywhere(story, crowded=crowded, done=done)


@pytest.mark.usefixtures("scheduler")
def test_the_lines_catch_an_exit_that_is_not_protected(monkeypatch: pytest.MonkeyPatch) -> None:
    unprotected = Lease.__aexit__.__code__.replace()  # Trio knows the other code object
    monkeypatch.setattr(Lease.__aexit__, "__code__", unprotected)
    with pytest.raises(AssertionError, match="something"):
        interrupt_everywhere(admits, crowded=False, done=set())
