"""Measure what the library costs beside Trio's own tools, and whether that grows with the line.

    python bench/library.py [--quick] [--json FILE]

Each row runs the library and its peer in turns, in short rounds on the CPU clock of this thread, so that what
else the machine does touches both alike. Two ratios are printed: of the fastest rounds, which is the one that
the targets of the design are held against, and the median of the rounds' own ratios. The garbage collector is
off while a round runs, as in `timeit`. The exit status is 1 if a target was missed.

`--quick` runs fewer rounds and makes the long lines a tenth as long, to see that all is well.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.lowlevel import checkpoint
from trio.testing import wait_all_tasks_blocked

from trio_admission import AdmissionConfig, Cost, ParkBudget, SlotPool
from trio_admission._claim import Claim
from trio_admission._core import Core
from trio_admission._holdings import Holdings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Round = Callable[[], Awaitable[float]]  # does an operation some times, and returns its seconds of CPU

NO_LIMIT: Final = AdmissionConfig(max_waiting=0)
LIMITER: Final = "trio.CapacityLimiter"
EVENT: Final = "trio.Event"
TASKS: Final = 1000
WAKING: Final = 100


@dataclass
class Row:
    """One line of the table: two costs of one operation, and their ratio."""

    what: str
    against: str
    ours: float
    peer: float | None
    ratio: float | None
    median_ratio: float | None = None
    target: float | None = None
    unit: str = "us"
    met: bool | None = field(init=False)

    def __post_init__(self) -> None:
        reached = self.ours if self.ratio is None else self.ratio
        self.met = None if self.target is None else reached <= self.target


async def compare(
    what: str, against: str, ours: Round, peer: Round, each: int, rounds: int, target: float | None = None
) -> Row:
    """Run both in turns; a round does its operation ``each`` times."""
    took: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        gc.collect(0)
        gc.disable()
        took.append((await ours() / each * 1e6, await peer() / each * 1e6))
        gc.enable()
    del took[0]  # the one in which everything was new
    best, peer_best = (min(column) for column in zip(*took, strict=True))
    median = statistics.median(mine / theirs for mine, theirs in took)
    return Row(what, against, best, peer_best, best / peer_best, median, target)


# Admission and hand-over.


async def visit_pool(pool: SlotPool, times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        async with pool.admit():
            pass
    return time.thread_time() - start


async def visit_limiter(limiter: trio.CapacityLimiter, times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        async with limiter:
            pass
    return time.thread_time() - start


async def crowd(visitor: Callable[[int], Awaitable[None]], visits: int) -> float:
    """Start the tasks and wait for all of them; that is counted, as nobody queues without a task."""
    start = time.thread_time()
    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(visitor, visits)
    return time.thread_time() - start


async def beside_the_limiter(rounds: int) -> list[Row]:
    pool, limiter = SlotPool(4, config=NO_LIMIT), trio.CapacityLimiter(4)

    async def pool_visitor(visits: int) -> None:
        for _ in range(visits):
            async with pool.admit():
                await checkpoint()

    async def limiter_visitor(visits: int) -> None:
        for _ in range(visits):
            async with limiter:
                await checkpoint()

    admit = partial(visit_pool, pool, 300), partial(visit_limiter, limiter, 300)
    once = partial(crowd, pool_visitor, 1), partial(crowd, limiter_visitor, 1)
    often = partial(crowd, pool_visitor, 8), partial(crowd, limiter_visitor, 8)
    return [
        await compare("admit + leave, uncontended", LIMITER, *admit, 300, rounds, 2.2),
        await compare("hand-over, 1,000 tasks on 4 slots", LIMITER, *once, TASKS, rounds // 4, 1.6),
        await compare("the same, each task 8 times", LIMITER, *often, TASKS * 8, rounds // 10),
    ]


# Cancelling one of many.


class Crowd:
    """Tasks that wait in line, of which any can be cancelled."""

    def __init__(self, size: int, nursery: trio.Nursery) -> None:
        self.size = size
        self.pool = SlotPool(1, config=NO_LIMIT)
        self._nursery = nursery
        self._waiting: list[trio.CancelScope] = []

    async def _wait(self, scope: trio.CancelScope) -> None:
        with scope:
            async with self.pool.admit():
                raise AssertionError("the slot is taken")

    async def fill(self) -> None:
        for _ in range(self.size - len(self._waiting)):
            scope = trio.CancelScope()
            self._waiting.append(scope)
            self._nursery.start_soon(self._wait, scope)
        await wait_all_tasks_blocked()

    async def cancel(self, count: int) -> float:
        leaving = random.sample(range(len(self._waiting)), count)
        scopes = [self._waiting[at] for at in leaving]
        for at in sorted(leaving, reverse=True):
            del self._waiting[at]
        left = self.pool.statistics().waiting - count
        start = time.thread_time()
        for scope in scopes:
            scope.cancel()
        while self.pool.statistics().waiting > left:
            await checkpoint()
        took = time.thread_time() - start
        await self.fill()
        return took


async def cancelling(rounds: int, many: int) -> Row:
    async with trio.open_nursery() as nursery:
        crowds = [Crowd(size, nursery) for size in (many, 100)]
        for each in crowds:
            nursery.start_soon(hold, each.pool)
        await wait_all_tasks_blocked()
        for each in crowds:
            await each.fill()
        ours, peer = (partial(each.cancel, 20) for each in crowds)
        gc.freeze()  # else each collection would walk through all that waits
        row = await compare(f"cancel one of {many:,} waiters", "one of 100", ours, peer, 20, rounds, 2.0)
        gc.unfreeze()
        nursery.cancel_scope.cancel()
    return row


async def hold(pool: SlotPool) -> None:
    async with pool.admit():
        await trio.sleep_forever()


# Waking a holder that returns.


async def wake_by_event() -> float:
    """Let tasks wait for events, set those, and go on when all have woken."""
    woken = 0

    async def wait(event: trio.Event) -> None:
        nonlocal woken
        await event.wait()
        woken += 1

    events = [trio.Event() for _ in range(WAKING)]
    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)
        await wait_all_tasks_blocked()
        start = time.thread_time()
        for event in events:
            event.set()
        while woken < WAKING:
            await checkpoint()
        return time.thread_time() - start


async def wake_holders(*, whole_park: bool) -> float:
    """Let holders wait for their slots, make room for all of them, and go on when all have theirs.

    Through `parked`, a holder has woken when the code after its park runs, whose nursery has been closed on
    the way; for the grant itself, when the task that waits for it goes on, inside the library.
    """
    woken, ready = 0, trio.Event()
    pool = SlotPool(WAKING, config=NO_LIMIT, park_budget=ParkBudget.unlimited())

    async def park() -> None:
        nonlocal woken
        async with pool.admit() as lease:
            if whole_park:
                async with lease.parked():
                    await ready.wait()
            else:
                core, claim = pool._core, lease._claim
                core.park(claim)
                await ready.wait()
                core.come_back(claim, claim.cost)
                await pool._waits.for_grant(claim)
            woken += 1
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(WAKING):
            nursery.start_soon(park)
        await wait_all_tasks_blocked()
        async with pool.admit(cost=Cost(WAKING)):
            ready.set()
            await wait_all_tasks_blocked()
            start = time.thread_time()
        while woken < WAKING:
            await checkpoint()
        took = time.thread_time() - start
        nursery.cancel_scope.cancel()
    return took


async def waking(rounds: int) -> list[Row]:
    grant, whole = partial(wake_holders, whole_park=False), partial(wake_holders, whole_park=True)
    return [
        await compare("a returning holder's wake-up", EVENT, grant, wake_by_event, WAKING, rounds, 2.0),
        await compare("the same through parked()", EVENT, whole, wake_by_event, WAKING, rounds, 6.0),
    ]


# Memory.


async def bytes_a_waiter(wait: Callable[[], Awaitable[object]]) -> float:
    """Return what a task takes that does nothing but wait."""
    async with trio.open_nursery() as nursery:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(TASKS):
            nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        nursery.cancel_scope.cancel()
    return (after - before) / TASKS


async def memory() -> Row:
    pool = SlotPool(1, config=NO_LIMIT)
    tracemalloc.start()
    async with pool.admit():
        waits_for_slot = await bytes_a_waiter(partial(hold, pool))
        waits_for_nothing = await bytes_a_waiter(trio.sleep_forever)
    tracemalloc.stop()
    share = waits_for_slot - waits_for_nothing
    return Row("library's share of a waiting request", "-", share, None, None, target=4096, unit="bytes")


# How the core's changes grow with the line.


def core_with(waiting: int, flows: int) -> Core:
    core = Core("", Holdings(4), NO_LIMIT, ParkBudget.unlimited(), time.monotonic)
    for number in range(4 + waiting):
        core.arrive(Claim(flow=str(number % flows)))
    return core


def time_arriving(core: Core, newcomers: list[Claim]) -> float:
    start = time.thread_time()
    for claim in newcomers:
        core.arrive(claim)
    return time.thread_time() - start


def time_cancelling(core: Core, newcomers: list[Claim]) -> float:
    for claim in newcomers:
        core.arrive(claim)
    random.shuffle(newcomers)
    start = time.thread_time()
    for claim in newcomers:
        core.leave(claim)
    return time.thread_time() - start


def time_granting(core: Core, newcomers: list[Claim]) -> float:
    for claim in newcomers:
        core.arrive(claim)
    start = time.thread_time()
    for _ in newcomers:
        core.leave(next(iter(core.holders)))
    return time.thread_time() - start


def time_parking(core: Core, newcomers: list[Claim]) -> float:
    for claim in newcomers:
        core.arrive(claim)
    start = time.thread_time()
    for _ in newcomers:
        core.park(next(iter(core.holders)))
    took = time.thread_time() - start
    for claim in tuple(core.parked):
        core.leave(claim)
    return took


def time_position(core: Core, newcomers: list[Claim]) -> float:
    """Ask for many positions after one change: they share a ranking."""
    for claim in newcomers:
        core.arrive(claim)
    last = newcomers[-1]
    asked = 8 * core.line.length
    start = time.thread_time()
    for _ in range(asked):
        core.position(last)
    return (time.thread_time() - start) / asked * len(newcomers)


CHANGES: Final = {
    "arrive": time_arriving,
    "cancel": time_cancelling,
    "grant": time_granting,
    "park": time_parking,
    "position": time_position,
}


def growing(rounds: int, lengths: tuple[int, ...], flows: int) -> dict[str, dict[int, float]]:
    """Return the microseconds of each change at each length of the line."""
    curves: dict[str, dict[int, float]] = {name: {} for name in CHANGES}
    cores = {length: core_with(length, flows) for length in lengths}
    gc.freeze()
    gc.disable()
    for _ in range(rounds):
        for name, change in CHANGES.items():
            for length, core in cores.items():
                newcomers = [Claim(flow=str(number % flows)) for number in range(50)]
                took = change(core, newcomers) / len(newcomers) * 1e6
                curves[name][length] = min(took, curves[name].get(length, took))
                for claim in newcomers:
                    core.leave(claim)
                while core.line.length < length:  # who was granted its turn is replaced
                    core.arrive(Claim(flow=str(core.line.length % flows)))
    gc.enable()
    gc.unfreeze()
    return curves


# The report.


def print_rows(rows: list[Row]) -> None:
    print(f"{'what':38} {'against':20} {'ours':>9} {'peer':>9} {'ratio':>7} {'median':>7} {'target':>8}")
    for row in rows:
        peer = f"{row.peer:6.2f} us" if row.peer is not None else "-"
        ratio = f"{row.ratio:.2f}x" if row.ratio is not None else "-"
        median = f"{row.median_ratio:.2f}x" if row.median_ratio is not None else "-"
        ours = f"{row.ours:6.2f} us" if row.unit == "us" else f"{row.ours:6.0f} B"
        target = (
            "-" if row.target is None else f"{row.target:g}x" if row.unit == "us" else f"{row.target:g} B"
        )
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        print(
            f"{row.what:38} {row.against:20} {ours:>9} {peer:>9} {ratio:>7} {median:>7} {target:>8} {verdict}"
        )


def print_curves(title: str, curves: dict[str, dict[int, float]]) -> None:
    lengths = list(next(iter(curves.values())))
    print(f"\n{title}, microseconds at a line of " + ", ".join(f"{length:,}" for length in lengths))
    for name, costs in curves.items():
        figures = " ".join(f"{cost:8.2f}" for cost in costs.values())
        print(f"{name:10} {figures}   {costs[lengths[-1]] / costs[lengths[0]]:6.2f}x")


async def measure(*, quick: bool) -> list[Row]:
    rounds = 12 if quick else 120
    return [
        *await beside_the_limiter(rounds),
        await cancelling(rounds, 10_000 if quick else 100_000),
        *await waking(rounds),
        await memory(),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter lines")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    options = parser.parse_args()
    rows = trio.run(partial(measure, quick=options.quick))
    lengths = (10, 1000, 10_000 if options.quick else 100_000)
    one_flow = growing(3 if options.quick else 20, lengths, flows=1)
    many_flows = growing(3 if options.quick else 20, lengths, flows=50)
    print(f"Python {platform.python_version()}, trio {trio.__version__}")
    print_rows(rows)
    print_curves("One flow", one_flow)
    print_curves("50 flows", many_flows)
    if options.json is not None:
        report: dict[str, Any] = {
            "python": platform.python_version(),
            "trio": trio.__version__,
            "rows": [asdict(row) for row in rows],
            "growth": {"one flow": one_flow, "50 flows": many_flows},
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
