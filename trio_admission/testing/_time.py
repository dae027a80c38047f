"""Time in tests: a clock that jumps, and waiting for what other tasks do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio
import trio.testing

from ._standstill import told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

STANDSTILL: Final = 86_400 + 1 / 7  # a day, and no multiple of what tests sleep: then it would be a race


def run_in_virtual_time(
    main: Callable[[], Awaitable[T]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> T:
    """Run ``main`` as `trio.run` does, on a clock that jumps to the next deadline while all tasks wait.

    So sleeping costs no real time, and the times that a test sees are exact, from 0 on. When every task
    waits and no deadline is left (a lost wake-up, a slot that nobody gives back), the run fails within
    milliseconds, where it would otherwise hang: the clock jumps one virtual day ahead, and everybody is
    cancelled. A run that is not over after that day fails, too.

    pytest-trio runs a test with it when it is marked ``@pytest.mark.trio(run=run_in_virtual_time)``.
    Tests that use real sockets, threads or processes cannot use it: the clock would jump while they work.

    Args:
        main: An async function without arguments.
        clock: Another clock than ``MockClock(autojump_threshold=0)``.
        instruments: Trio's instruments.

    Raises:
        trio.TooSlowError: after a virtual day; says which tasks wait, and in which lines of the tested code.
            Its ``__cause__`` is the error with which the cancelled tasks have left, if there is one.
    """
    __tracebackhide__ = True

    async def watched() -> T:
        __tracebackhide__ = True
        standstill: list[str] = []
        try:
            with trio.CancelScope() as scope:
                trio.lowlevel.spawn_system_task(_watch, trio.lowlevel.current_task(), scope, standstill)
                return await main()
        except Exception as error:
            if standstill:
                raise trio.TooSlowError(*standstill) from error
            raise
        raise trio.TooSlowError(*standstill)

    return trio.run(
        watched, clock=clock or trio.testing.MockClock(autojump_threshold=0), instruments=instruments
    )


async def _watch(task: trio.lowlevel.Task, scope: trio.CancelScope, standstill: list[str]) -> None:
    """Stop the run after a day. Who waits is looked at before that: what is cancelled waits no more."""
    await trio.sleep(STANDSTILL)
    standstill.append(told(task))
    scope.cancel(reason="the test stands still")


async def until(condition: Callable[[], object], *, within: float = 5.0) -> None:
    """Wait until ``condition()`` is true, looking once a millisecond on Trio's clock.

    For what happens in other tasks or processes, at a time that a test cannot know: ``await until(lambda:
    pool.statistics().waiting == 3)``. Works on any clock. A checkpoint also if it is true at once.

    Raises:
        trio.TooSlowError: if it is still not true after ``within`` seconds.
    """
    with trio.fail_after(within):
        await trio.lowlevel.checkpoint()
        while not condition():  # noqa: ASYNC110  # a condition of another process has no event
            await trio.sleep(0.001)
