"""Pools by the name of their backend."""

from __future__ import annotations

import pytest
import trio

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, ParkBudget, PoolClosed, PoolRegistry
from trio_admission.testing import check


async def test_get_makes_a_pool_and_then_returns_it() -> None:
    """P1: with the name, and the registry's settings."""
    config = AdmissionConfig(max_waiting=3)
    registry = PoolRegistry(config=config)
    pool = registry.get("gpu-0", 4)
    assert (pool.name, pool.statistics().slots, pool.config) == ("gpu-0", 4, config)
    assert registry.get("gpu-0", 4) is pool
    assert "gpu-0" in registry
    assert "gpu-1" not in registry
    assert len(registry) == 1
    assert list(registry) == [pool]


async def test_get_never_resizes() -> None:
    """P1, R2: a request that thinks that it knows the size does not set it."""
    registry = PoolRegistry()
    pool = registry.get("gpu-0", 4)
    assert registry.get("gpu-0", 8) is pool
    assert pool.statistics().slots == 4


async def test_pools_do_not_touch_each_other() -> None:
    """P1: a full line in front of one backend is nothing to the other."""
    registry = PoolRegistry(config=AdmissionConfig(max_waiting=1))
    async with visiting(registry.get("a", 1)) as a, visiting(registry.get("b", 1)) as b:
        await a.serve("holder")
        await a.arrive("waiting")
        await b.serve("holder")
        registry.discard("a")
        await b.arrive("waiting")


async def test_pools_of_a_registry_share_its_budget() -> None:
    """P1, E7: one park over all of them."""
    registry = PoolRegistry(park_budget=ParkBudget(1))
    async with visiting(registry.get("a", 1)) as a, visiting(registry.get("b", 1)) as b:
        first = await a.serve("first")
        await first.park()
        second = await b.serve("second")
        await second.park()
        assert second.parked is not None
        assert second.parked.refused


async def test_a_discarded_pool_that_nobody_uses_is_forgotten_at_once() -> None:
    """P1: and the next `get` of that name makes a new one; an unknown name is ignored."""
    registry = PoolRegistry()
    pool = registry.get("gpu-0", 4)
    registry.discard("gpu-0")
    registry.discard("no such backend")
    assert len(registry) == 0
    assert registry.get("gpu-0", 2) is not pool
    with pytest.raises(PoolClosed):
        async with pool.admit():
            pytest.fail("admitted")


async def test_a_discarded_pool_stays_until_it_has_drained() -> None:
    """P1: newcomers are refused; who holds, waits, is parked or returns is served to the end."""
    registry = PoolRegistry(park_budget=ParkBudget.unlimited())
    pool = registry.get("gpu-0", 1)
    async with visiting(pool) as house:
        parker = await house.serve("parker")
        await parker.park()
        holder = await house.serve("holder")
        waiting = await house.arrive("waiting")
        registry.discard("gpu-0")
        assert registry.get("gpu-0", 8) is pool
        with pytest.raises(PoolClosed):
            await house.arrive("newcomer")
        holder.leave()
        await waiting.served()
        await parker.return_to_line()
        assert "gpu-0" in registry
        waiting.leave()
        await parker.served()
        assert "gpu-0" in registry
        parker.leave()
        await parker.left()
        assert "gpu-0" not in registry
        check(pool)


async def test_a_discarded_pool_stays_while_a_ticket_is_out() -> None:
    """P1, E8: until it is used or has expired."""
    registry = PoolRegistry()
    for used in (True, False):
        pool = registry.get("gpu-0", 1)
        async with pool.admit() as lease:
            ticket = lease.issue_ticket(60)
        registry.discard("gpu-0")
        await trio.sleep(59)
        assert registry.get("gpu-0", 1) is pool
        if used:
            async with pool.admit(ticket=ticket):
                pass
        else:
            await trio.sleep(2)
        assert "gpu-0" not in registry


async def test_names_that_come_and_go_leave_nothing() -> None:
    """P1: the registry cannot grow without bound, though backends get a new name each time."""
    registry = PoolRegistry()
    for number in range(100):
        async with registry.get(f"gpu-{number}", 1).admit():
            registry.discard(f"gpu-{number}")
    assert len(registry) == 0
