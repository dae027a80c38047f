"""How people write against the library. Type checkers read this file; nobody runs it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import assert_type

import trio

from trio_admission import (
    AdmissionConfig,
    AdmissionError,
    Cost,
    Held,
    Lease,
    LeaseState,
    LineFull,
    ParkBudget,
    Parked,
    Pool,
    PoolEvent,
    PoolRegistry,
    PoolStatistics,
    Reservation,
    ResumeTicket,
    SlotPool,
    Waiting,
    WaitTimeout,
)
from trio_admission.testing import FakeLlamaServer, OpenPool, check, run_in_virtual_time, until


async def generate(slot: int | None) -> str:
    await trio.lowlevel.checkpoint()
    return f"from slot {slot}"


async def a_block_that_returns_needs_nothing_after_it(pool: SlotPool) -> str:
    async with pool.admit(flow="alice", max_wait=30) as lease:
        return await generate(lease.slot)


async def a_reservation_that_returns_needs_nothing_after_it(pool: SlotPool) -> str:
    async with pool.reserve(cost=Cost(tokens=1200)) as reservation:
        return await generate((await reservation.wait()).slot)


async def a_park_that_returns_needs_nothing_after_it(lease: Lease) -> str:
    async with lease.parked():
        return await generate(None)


async def leases(pool: SlotPool) -> None:
    async with pool.admit(
        cost=Cost(slots=2, tokens=100),
        flow="alice",
        weight=2.0,
        priority=-1,
        prefer_slot=3,
        ticket=None,
        parent=None,
        max_wait=None,
    ) as lease:
        assert_type(lease, Lease)
        assert_type(lease.slot, int | None)
        assert_type(lease.slots, tuple[int, ...])
        assert_type(lease.state, LeaseState)
        assert_type(lease.issue_ticket(60), ResumeTicket | None)
        async with lease.parked(Cost(tokens=5)) as parked:
            assert_type(parked, Parked)
            assert_type(parked.refused, bool)
            assert_type(parked.position, int)
            assert_type(parked.estimated_wait, float | None)
            parked.nursery.start_soon(generate, 1)
            parked.cost = Cost(tokens=6)
            async with parked.unparked() as held:
                assert_type(held, Held)
                assert_type(held.slot, int | None)
                held.nursery.start_soon(generate, held.slot)
        async with pool.admit(parent=lease) as child:
            assert_type(child, Lease)


async def reservations(pool: SlotPool, ticket: ResumeTicket) -> None:
    async with pool.reserve(ticket=ticket.token, max_wait=0) as reservation:
        assert_type(reservation, Reservation)
        assert_type(reservation.id, int)
        assert_type(reservation.lease, Lease | None)
        assert_type(reservation.position, int)
        assert_type(reservation.estimated_wait, float | None)
        assert_type(await reservation.wait_at_most(5.0), Lease | None)
        assert_type(await reservation.wait(), Lease)
    async with pool.reserve(ticket=ticket):
        pass


async def refusals(pool: SlotPool) -> tuple[int, float] | str | None:
    try:
        async with pool.admit():
            return None
    except LineFull as full:
        return (full.statistics.waiting, full.retry_after) if full.reason == "line" else full.reason
    except WaitTimeout as late:
        return (late.statistics.waiting, late.retry_after)
    except AdmissionError as other:
        return str(other)


def pools() -> None:
    config = AdmissionConfig(enabled=True, max_wait=1.5, aging=30, max_waiting_per_flow=4)
    assert_type(config.line_limit(4), int | None)
    assert_type(AdmissionConfig.from_env(), AdmissionConfig)
    assert_type(AdmissionConfig.from_env({"TRIO_ADMISSION_CONTROL": "off"}), AdmissionConfig)
    pool = SlotPool(4, name="gpu", kv_tokens=8192, config=config, park_budget=ParkBudget.unlimited())
    assert_type(pool.name, str)
    assert_type(pool.statistics(), PoolStatistics)
    assert_type(pool.waiting(), list[Waiting])
    assert_type(pool.estimated_wait(), float | None)
    pool.resize(5)
    pool.resize(slots=5, kv_tokens=100)
    pool.resize(kv_tokens=100)
    with pool.suspended("restarting"):
        pass
    registry = PoolRegistry(config=config, park_budget=ParkBudget(3))
    assert_type(registry.get("gpu", 4), SlotPool)
    registry.discard("gpu")


class Log:
    """An instrument may be any callable."""

    def __call__(self, event: PoolEvent) -> None:
        print(event.kind.value, event.pool, event.at, event.id, event.seconds, event.reason)


def instruments(pool: Pool) -> None:
    events: list[PoolEvent] = []
    pool.add_instrument(events.append)
    pool.add_instrument(Log())
    pool.add_instrument(lambda event: event.kind)
    pool.remove_instrument(Log())


async def any_pool(pool: Pool) -> str:
    assert_type(pool.admit(), AbstractAsyncContextManager[Lease])
    assert_type(pool.reserve(), AbstractAsyncContextManager[Reservation])
    async with pool.admit() as lease:
        return await generate(lease.slot)


async def pools_are_alike() -> None:
    await any_pool(SlotPool(1))
    await any_pool(OpenPool(1))
    await SlotPool(1).drained()


async def helpers() -> None:
    check(SlotPool(1))
    check(OpenPool(1))
    await until(lambda: True, within=1)
    async with FakeLlamaServer(total_slots=2) as server:
        assert_type(server, FakeLlamaServer)


async def answer() -> int:
    await trio.lowlevel.checkpoint()
    return 42


assert_type(run_in_virtual_time(answer), int)


# What must not pass. An ignore that is not needed is an error too, so these are checks.


async def mistakes(pool: SlotPool, lease: Lease) -> None:
    SlotPool()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SlotPool("4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.admit(Cost())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    pool.admit(flow=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.admit(max_wait="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    lease.slot = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    Cost(slots=1).tokens = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    with pool.admit():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    pool.add_instrument(print_nothing)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def print_nothing() -> None:
    """Take no event, and so be no instrument."""
