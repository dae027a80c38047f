"""Resume tickets: returning although the lease has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, LineFull, ParkBudget, PoolClosed, ResumeTicket

if TYPE_CHECKING:
    from tests.library.conformance.conftest import MakePool
    from trio_admission import Pool


async def ticket_of(pool: Pool, *, flow: str = "", ttl: float = 60.0) -> ResumeTicket:
    async with pool.admit(flow=flow) as lease:
        ticket = lease.issue_ticket(ttl)
    assert ticket is not None
    return ticket


async def test_a_ticket_returns_ahead_of_newcomers(make_pool: MakePool) -> None:
    """E8, G4: and behind those who were back before."""
    pool = await make_pool(1)
    ticket = await ticket_of(pool)
    async with visiting(pool) as house:
        parker = await house.serve("parker")
        await parker.park()
        holder = await house.serve("holder")
        newcomer = await house.arrive("newcomer", priority=9)
        await parker.return_to_line()
        resumed = await house.arrive("resumed", ticket=ticket)
        now = pool.statistics()
        assert (now.waiting, now.returning) == (1, 2)
        assert (resumed.reservation.position, newcomer.reservation.position) == (2, 3)
        holder.leave()
        await parker.served()
        parker.leave()
        await resumed.served()


async def test_the_token_alone_is_as_good_as_the_ticket(make_pool: MakePool) -> None:
    """E8: it is what travels through a client; it is not in the repr, and no two are alike."""
    pool = await make_pool(1)
    first, second = await ticket_of(pool), await ticket_of(pool)
    assert first.token != second.token
    assert len(first.token) >= 20
    assert first.token not in repr(first)
    async with visiting(pool) as house:
        await house.serve("holder")
        await house.arrive("newcomer")
        resumed = await house.arrive("resumed", ticket=first.token)
        assert resumed.reservation.position == 1


async def test_a_returning_holder_by_ticket_is_not_refused(make_pool: MakePool) -> None:
    """L1, E8: the line is full, which does not concern it."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting=1))
    ticket = await ticket_of(pool)
    async with visiting(pool) as house:
        await house.serve("holder")
        await house.arrive("newcomer")
        await house.arrive("resumed", ticket=ticket)
        with pytest.raises(LineFull):
            await house.arrive("refused", ticket=ticket)


@pytest.mark.parametrize("kind", ["used", "expired", "foreign", "other flow's", "nonsense"])
async def test_a_ticket_that_is_no_good_makes_a_plain_newcomer(make_pool: MakePool, kind: str) -> None:
    """E8: and never an error."""
    pool = await make_pool(1)
    ticket: ResumeTicket | str = await ticket_of(pool, flow="alice", ttl=0.01 if kind == "expired" else 60)
    flow = "alice"
    match kind:
        case "used":
            async with pool.admit(flow=flow, ticket=ticket):
                pass
        case "expired":
            await trio.sleep(0.02)
        case "foreign":
            ticket = await ticket_of(await make_pool(1), flow=flow)
        case "other flow's":
            flow = "bob"
        case _:
            ticket = "\N{SNOWMAN} not a token"
    async with visiting(pool) as house:
        await house.serve("holder", flow=flow)
        newcomer = await house.arrive("newcomer", flow=flow)
        visitor = await house.arrive("with a bad ticket", flow=flow, ticket=ticket)
        assert newcomer.reservation.position == 1
        assert visitor.reservation.position == 2
        assert pool.statistics().returning == 0


async def test_another_flow_does_not_use_a_ticket_up(make_pool: MakePool) -> None:
    """E8: its owner can still come with it."""
    pool = await make_pool(1)
    ticket = await ticket_of(pool, flow="alice")
    async with pool.admit(flow="bob", ticket=ticket):
        pass
    async with visiting(pool) as house:
        await house.serve("holder")
        await house.arrive("alice", flow="alice", ticket=ticket)
        assert pool.statistics().returning == 1


async def test_there_is_one_ticket_for_each_lease(make_pool: MakePool) -> None:
    """E8: asking again gives the same, and costs the budget nothing."""
    pool = await make_pool(1, park_budget=ParkBudget(1))
    async with pool.admit() as lease:
        ticket = lease.issue_ticket(60)
        assert ticket is not None
        assert lease.issue_ticket(1) == ticket
        assert ticket.expires_at == pytest.approx(trio.current_time() + 60)


async def test_tickets_count_against_the_park_budget(make_pool: MakePool) -> None:
    """E8, E7: until they are used, or have expired; no task is needed for that."""
    pool = await make_pool(2, park_budget=ParkBudget(1))

    async def refuses() -> bool:
        async with pool.admit() as lease, lease.parked() as parked:
            return parked.refused

    assert not await refuses()
    ticket = await ticket_of(pool)
    assert await refuses()
    async with pool.admit() as lease:
        assert lease.issue_ticket(60) is None
    async with pool.admit(ticket=ticket):
        assert not await refuses()
    await ticket_of(pool, ttl=0.01)
    assert await refuses()
    await trio.sleep(0.02)
    assert not await refuses()
    async with pool.admit() as lease:
        assert lease.issue_ticket(60) is not None


async def test_a_parked_lease_can_have_a_ticket(make_pool: MakePool) -> None:
    """E8: the park and the ticket each count."""
    pool = await make_pool(1, park_budget=ParkBudget(2))
    async with pool.admit() as lease, lease.parked():
        assert lease.issue_ticket(60) is not None
        async with pool.admit() as other:
            assert other.issue_ticket(60) is None


async def test_a_returning_holder_can_give_up(make_pool: MakePool) -> None:
    """E8, G3: its place is gone, and the ticket is used."""
    pool = await make_pool(1)
    ticket = await ticket_of(pool)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        resumed = await house.arrive("resumed", ticket=ticket)
        newcomer = await house.arrive("newcomer")
        resumed.cancel()
        await resumed.left()
        assert newcomer.reservation.position == 1
        holder.leave()
        await newcomer.served()


async def test_the_time_limit_holds_for_those_who_return_by_ticket(make_pool: MakePool) -> None:
    """E8, L4: they are reservations like others."""
    pool = await make_pool(1)
    ticket = await ticket_of(pool)
    async with visiting(pool) as house:
        await house.serve("holder")
        resumed = await house.arrive("resumed", ticket=ticket, max_wait=0.01)
        await resumed.left()
        assert resumed.error is not None
        assert pool.statistics().returning == 0


async def test_a_closed_pool_lets_in_who_returns_by_ticket(make_pool: MakePool) -> None:
    """E8, R3: it refuses newcomers, and who comes with a good ticket is none."""
    pool = await make_pool(1)
    ticket = await ticket_of(pool)
    pool.close()
    async with pool.admit(ticket=ticket):
        pass
    with pytest.raises(PoolClosed):
        async with pool.admit(ticket=ticket):
            pytest.fail("used twice")


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
async def test_a_ticket_lives_for_some_time(make_pool: MakePool, wrong: float) -> None:
    """E8: `ValueError` for a senseless time, and the budget is untouched."""
    pool = await make_pool(1, park_budget=ParkBudget(1))
    async with pool.admit() as lease:
        with pytest.raises(ValueError, match="ttl"):
            lease.issue_ticket(wrong)
        assert lease.issue_ticket(1) is not None
