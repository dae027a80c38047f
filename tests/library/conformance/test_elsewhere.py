"""What one task does with the scope that another one is in, or that nobody is in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, ParkBudget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.library.conformance.conftest import MakePool


async def expect_runtime_error(wait: Callable[[], Awaitable[object]], match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        await wait()


async def test_who_waits_is_told_that_the_scope_ends_elsewhere(make_pool: MakePool) -> None:
    """G3: another task leaves the scope of the reservation; nobody sleeps for ever."""
    pool = await make_pool(1)
    async with visiting(pool) as house, trio.open_nursery() as nursery:
        await house.serve("holder")
        async with pool.reserve() as reservation:
            nursery.start_soon(expect_runtime_error, reservation.wait, "scope has ended")
            await wait_all_tasks_blocked()
        assert pool.statistics().waiting == 0


async def test_who_returns_is_told_that_the_lease_ends_elsewhere(make_pool: MakePool) -> None:
    """E5: its own task leaves the lease while another waits to come back from a park of it."""
    pool = await make_pool(1, park_budget=ParkBudget.unlimited())
    told = trio.Event()

    async with visiting(pool) as house, trio.open_nursery() as nursery:
        async with pool.admit() as lease:

            async def park() -> None:
                with pytest.raises(RuntimeError, match="scope has ended"):
                    async with lease.parked():
                        await house.serve("thief")
                told.set()

            nursery.start_soon(park)
            await wait_all_tasks_blocked()
            assert pool.statistics().returning == 1
        await told.wait()
        assert pool.statistics().returning == pool.statistics().parked == 0


async def test_a_scope_that_was_not_entered_has_nothing(make_pool: MakePool) -> None:
    """E1: nothing to wait for, no place, no ticket."""
    pool = await make_pool(1)
    reservation = pool.reserve()
    with pytest.raises(RuntimeError, match="not entered"):
        await reservation.wait()  # type: ignore[attr-defined]  # it is entered like this by mistake
    assert reservation.position == 0  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="waiting"):
        pool.admit().issue_ticket(5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ttl", [0, -1, math.inf, math.nan, 10**400, "5"])
async def test_a_ticket_ends_some_time(make_pool: MakePool, ttl: float) -> None:
    """E8, P1: else its pool could never be forgotten."""
    pool = await make_pool(1, park_budget=ParkBudget(1))
    async with pool.admit() as lease:
        with pytest.raises((ValueError, TypeError), match="ttl must be"):
            lease.issue_ticket(ttl)
        assert lease.issue_ticket(5) is not None


async def test_with_control_off_there_is_nothing_to_return_to(make_pool: MakePool) -> None:
    """C2, E8: no ticket, which would only take a place of the budget from others."""
    budget = ParkBudget(1)
    free = await make_pool(1, config=AdmissionConfig(enabled=False), park_budget=budget)
    async with free.admit() as lease:
        assert lease.issue_ticket(5) is None
    strict = await make_pool(1, park_budget=budget)
    async with strict.admit() as lease:
        assert lease.issue_ticket(5) is not None
