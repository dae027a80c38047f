"""What to say of a run in which everybody waits for ever: who waits, and where."""

from __future__ import annotations

import linecache
import math
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# The waits of these are not what a test's author wrote.
_MACHINERY: Final = {"contextlib", "outcome", "pytest_trio", "trio", "trio_admission"}
_INSTALLED: Final = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def told(root: trio.lowlevel.Task) -> str:
    """Say that the test stands still, and name the tasks below ``root`` that wait, each with its line."""
    if math.isinf(trio.lowlevel.current_statistics().seconds_to_next_deadline):
        first = "the test stands still: nobody will wake these tasks, and no deadline is left"
    else:
        first = "a virtual day has passed, and the test goes on: these tasks wait"
    return "\n".join([first, *_waits(root, "  ")])


def _waits(task: trio.lowlevel.Task, indent: str) -> Iterator[str]:
    """Yield a line for each task that waits in somebody's code, those that it has started below it."""
    frame = _place(task)
    if frame is not None:
        path, line = frame.f_code.co_filename, frame.f_lineno
        shown = path.removeprefix(f"{Path.cwd()}/")
        yield f"{indent}{frame.f_code.co_name}, {shown}:{line}: {linecache.getline(path, line).strip()}"
        indent += "  "
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda child: child.name):
            yield from _waits(child, indent)


def _place(task: trio.lowlevel.Task) -> FrameType | None:
    """Return the innermost frame of the tested code; if there is none, of whatever library waits."""
    frames = [
        frame
        for frame, _ in task.iter_await_frames()
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _MACHINERY
    ]
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith(_INSTALLED)]
    return next(reversed(own or frames), None)
