"""What the pool in memory does between two steps of a task."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

import trio_admission
from tests.support.visitors import visiting
from trio_admission import Cost, ParkBudget, SlotPool
from trio_admission.testing import check

if TYPE_CHECKING:
    from collections.abc import Iterator


def core_methods() -> Iterator[ast.FunctionDef]:
    """Yield the methods of the books of a pool: of the modules that begin changes, and that grant."""
    for path in Path(inspect.getfile(trio_admission)).parent.glob("_*.py"):
        source = path.read_text(encoding="utf-8")
        if "self._begin()" in source or "def _fill(" in source:
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ClassDef):
                    yield from (part for part in node.body if isinstance(part, ast.FunctionDef))


def calls(method: ast.FunctionDef) -> list[str]:
    return [
        node.func.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


def test_every_change_ends_in_the_function_that_grants() -> None:
    """G1: whatever begins a change also fills the slots."""
    changes = [method for method in core_methods() if "_begin" in calls(method)]
    assert len(changes) >= 12
    for change in changes:
        assert "_fill" in calls(change), change.name


def test_one_function_takes_slots() -> None:
    """G1: nothing else gives a waiting claim ids, or a charge. It has a short way and a careful one."""
    takers = [method.name for method in core_methods() if {"take", "popitem"}.intersection(calls(method))]
    assert takers == ["_fill", "_fill_with_care"]
    assert [method.name for method in core_methods() if "_fill_with_care" in calls(method)] == ["_fill"]


async def test_a_grant_is_recorded_before_anybody_wakes() -> None:
    """G2: in the very step in which the holder leaves, although no other task has run."""
    pool = SlotPool(1)
    async with trio.open_nursery() as nursery:
        woken = False

        async def wait() -> None:
            nonlocal woken
            async with pool.admit():
                woken = True

        async with pool.admit():
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
        now = pool.statistics()
        assert (now.held, now.waiting, now.free) == (1, 0, 0)
        assert not woken
        check(pool)


async def test_between_grant_and_wake_up_nobody_else_gets_the_slot() -> None:
    """G2: not even somebody who arrives in that step."""
    pool = SlotPool(1)
    async with visiting(pool) as house:
        async with pool.admit():
            waiting = await house.arrive("waiting")
        async with pool.reserve() as newcomer:
            assert newcomer.position == 1
            assert waiting.reservation.position == 0
        await waiting.served()


async def test_the_order_of_calls_is_the_order_of_arrival() -> None:
    """F1: a pool in memory lets one arrive before its one checkpoint, whatever Trio does with the tasks."""
    pool = SlotPool(1)
    called: list[int] = []
    arrived: dict[int, int] = {}

    async def call(number: int) -> None:
        called.append(number)
        async with pool.reserve() as reservation:
            arrived[reservation.id] = number

    async with trio.open_nursery() as nursery, pool.admit():
        for number in range(50):
            nursery.start_soon(call, number)
        await trio.testing.wait_all_tasks_blocked()
    assert called != sorted(called), "Trio runs the tasks of one batch in a random order"
    assert [arrived[number] for number in sorted(arrived)] == called


@pytest.mark.parametrize("way_in", ["admit", "reserve"])
async def test_entering_is_a_checkpoint_and_leaving_is_none(way_in: str) -> None:
    """G3: on success, whether there was a slot or not."""
    pool = SlotPool(2)
    scope = pool.admit() if way_in == "admit" else pool.reserve()
    with trio.testing.assert_checkpoints():
        await scope.__aenter__()
    with trio.testing.assert_no_checkpoints():
        await scope.__aexit__(None, None, None)


async def test_the_users_code_is_not_protected_from_ctrl_c() -> None:
    """G3: only the library's own steps are; the bodies of the scopes get it at once."""
    pool = SlotPool(1, park_budget=ParkBudget(1))
    protected = trio.lowlevel.currently_ki_protected

    async def task() -> None:
        assert not protected()

    assert not protected()
    async with pool.reserve() as reservation:
        assert not protected()
        lease = await reservation.wait()
        assert not protected()
        async with lease.parked() as parked:
            assert not protected()
            parked.nursery.start_soon(task)
            async with parked.unparked() as held:
                assert not protected()
                held.nursery.start_soon(task)
        assert not protected()
    async with pool.admit():
        assert not protected()
    with pool.suspended("restarting"):
        assert not protected()
    await pool.drained()
    assert not protected()


async def test_arriving_with_a_cancel_pending_leaves_nothing() -> None:
    """G3: the checkpoint of the entry is where it shows."""
    pool = SlotPool(1)
    for scope in (pool.admit(), pool.reserve()):
        with trio.CancelScope() as cancelled:
            cancelled.cancel()
            async with scope:
                pytest.fail("entered")
        assert cancelled.cancelled_caught
        check(pool)
        assert pool.statistics().held == 0


async def test_a_cancel_in_the_same_tick_as_the_grant_passes_it_on_before_anybody_runs() -> None:
    """G3: three in the line are cancelled, granted and gone, and the fourth has the slot."""
    pool = SlotPool(1)
    async with visiting(pool) as house:
        async with pool.admit():
            cancelled = [await house.arrive(name) for name in "abc"]
            fourth = await house.arrive("d")
            await trio.testing.wait_all_tasks_blocked()
        for visitor in cancelled:
            visitor.cancel()
        await fourth.served()
        assert house.served[-1] == "d"
        check(pool)


async def test_a_suspension_says_why() -> None:
    """R4: so that those who wait can be told; the latest reason first."""
    pool = SlotPool(1)
    assert pool.suspension is None
    with pool.suspended("restarting"):
        assert pool.suspension == "restarting"
        with pool.suspended("reloading"):
            assert pool.suspension == "reloading"
        assert pool.suspension == "restarting"
    assert pool.suspension is None


async def test_what_is_held_is_counted_once_through_all_changes() -> None:
    """E2, G6: checked after each step of a longer story."""
    pool = SlotPool(3, kv_tokens=300, park_budget=ParkBudget(1))
    pool.add_instrument(lambda event: check(pool))
    async with visiting(pool) as house:
        a = await house.serve("a", cost=Cost(slots=2, tokens=100))
        await a.park()
        b = await house.serve("b", cost=Cost(tokens=150))
        await b.park()
        child = await house.serve("child", parent=b.lease)
        c = await house.serve("c", cost=Cost(tokens=20))
        whole = await house.arrive("whole", cost=Cost(slots=9))
        await a.return_to_line()
        pool.resize(2)
        child.leave()
        b.come_back()
        await b.served()
        b.leave()
        c.leave()
        await a.served()
        a.cancel()
        await whole.served()
        pool.resize(5, kv_tokens=10)
        whole.leave()
        await whole.left()
        check(pool)
