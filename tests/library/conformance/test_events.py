"""What instruments are told, and what they may do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, Cost, EventKind, LineFull, ParkBudget, PoolClosed, PoolEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.library.conformance.conftest import MakePool
    from trio_admission import Pool


def record(pool: Pool) -> list[PoolEvent]:
    events: list[PoolEvent] = []
    pool.add_instrument(events.append)
    return events


def words(events: list[PoolEvent], number: int | None = None) -> list[str]:
    return [event.kind.value for event in events if number is None or event.id == number]


async def test_the_life_of_a_lease(make_pool: MakePool) -> None:
    """W2: arrived, granted, parked, unparked, parked again, returned, ended."""
    pool = await make_pool(1)
    events = record(pool)
    async with pool.admit(flow="alice", priority=3) as lease, lease.parked() as parked, parked.unparked():
        pass
    assert words(events) == ["arrived", "granted", "parked", "unparked", "parked", "returned", "ended"]
    assert {(event.flow, event.priority, event.id) for event in events} == {("alice", 3, 1)}
    assert [event.slots for event in events] == [(), (0,), (0,), (0,), (0,), (0,), (0,)]
    with pytest.raises(AttributeError):
        events[0].flow = "bob"  # type: ignore[misc]


async def test_times_are_told(make_pool: MakePool) -> None:
    """W2: how long it waited, or held; and when."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        events = record(pool)
        start = trio.current_time()
        waiting = await house.arrive("waiting")
        await trio.sleep(0.1)
        holder.leave()
        await waiting.served()
        await trio.sleep(0.2)
        waiting.leave()
        await waiting.left()
    of_waiting = [event for event in events if event.id == waiting.reservation.id]
    assert [event.seconds for event in of_waiting] == [
        None, pytest.approx(0.1, abs=0.05), pytest.approx(0.2, abs=0.05),
    ]  # fmt: skip
    assert [event.at - start for event in of_waiting] == [
        pytest.approx(0, abs=0.05), pytest.approx(0.1, abs=0.05), pytest.approx(0.3, abs=0.05),
    ]  # fmt: skip


async def test_ways_of_not_getting_a_slot(make_pool: MakePool) -> None:
    """W2: refused (and why), timed out, cancelled."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting=1, max_waiting_per_flow=1))
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        events = record(pool)
        cancelled = await house.arrive("cancelled", flow="a")
        for flow in ("a", "b"):
            with pytest.raises(LineFull):
                async with pool.reserve(flow=flow):
                    pytest.fail("a place")
        cancelled.cancel()
        await cancelled.left()
        late = await house.arrive("late", max_wait=0.01)
        await late.left()
        dismissed = await house.arrive("dismissed")
        pool.close()
        await dismissed.left()
        with pytest.raises(PoolClosed):
            async with pool.reserve():
                pytest.fail("a place")
        holder.leave()
    assert words(events) == [
        "arrived",
        *("arrived", "refused"),
        *("arrived", "refused"),
        "cancelled",
        *("arrived", "timed out"),
        *("arrived", "closed", "refused"),
        *("arrived", "refused"),
        "ended",
    ]
    reasons = [event.reason for event in events if event.kind is EventKind.REFUSED]
    assert reasons == ["flow", "line", "closed", "closed"]


async def test_changes_of_the_pool(make_pool: MakePool) -> None:
    """W2: they carry no reservation."""
    pool = await make_pool(1)
    events = record(pool)
    pool.resize(2)
    with pool.suspended("restarting"):
        pass
    pool.close()
    pool.close()
    assert words(events) == ["resized", "suspended", "resumed", "closed"]
    assert [event.reason for event in events] == [None, "restarting", "restarting", None]
    assert {event.id for event in events} == {None}


async def test_parks_refused_and_lost(make_pool: MakePool) -> None:
    """W2: `lost` stands in the place of `ended`."""
    pool = await make_pool(1, park_budget=ParkBudget(0))
    events = record(pool)
    async with pool.admit() as lease, lease.parked():
        pass
    assert words(events, 1) == ["arrived", "granted", "park refused", "ended"]
    with pytest.raises(ValueError, match="denied"):
        async with pool.admit() as lease, lease.parked():
            raise ValueError("denied")
    assert words(events, 2) == ["arrived", "granted", "park refused", "lost"]


async def test_tickets(make_pool: MakePool) -> None:
    """W2: issued once, used once."""
    pool = await make_pool(1)
    events = record(pool)
    async with pool.admit() as lease:
        ticket = lease.issue_ticket(60)
        lease.issue_ticket(60)
    for _ in range(2):
        async with pool.admit(ticket=ticket):
            pass
    assert words(events, 1) == ["arrived", "granted", "ticket issued", "ended"]
    assert words(events, 2) == ["arrived", "ticket used", "granted", "ended"]
    assert words(events, 3) == ["arrived", "granted", "ended"]


async def test_every_kind_of_event_can_be_told(make_pool: MakePool) -> None:
    """W2: one story in which each of the words occurs."""
    pool = await make_pool(2, config=AdmissionConfig(max_waiting=1), park_budget=ParkBudget(2))
    events = record(pool)
    async with visiting(pool) as house:
        with pool.suspended("restarting"):
            pass
        parker = await house.serve("parker")
        await parker.park()
        parker.unpark()
        await parker.served()
        async with pool.admit() as lease:
            ticket = lease.issue_ticket(60)
            async with lease.parked() as parked:
                assert parked.refused
            late = await house.arrive("late", max_wait=0.01)
            await late.left()
            waiting = await house.arrive("waiting")
            with pytest.raises(LineFull):
                await house.arrive("refused")
            parker.repark()
            await waiting.served()
            waiting.leave()
        async with pool.admit(ticket=ticket):
            pass
        parker.come_back()
        await parker.served()
        with pytest.raises(ValueError, match="denied"):
            async with pool.admit() as lease, lease.parked():
                raise ValueError("denied")
        pool.resize(1)
        cancelled = await house.arrive("cancelled")
        cancelled.cancel()
        await cancelled.left()
        pool.close()
    assert {event.kind for event in events} == set(EventKind)


async def test_an_instrument_is_told_after_the_change(make_pool: MakePool) -> None:
    """W2: what it sees of the pool is what has become of it."""
    pool = await make_pool(1)
    seen: list[tuple[str, int, int, int]] = []

    def look(event: PoolEvent) -> None:
        now = pool.statistics()
        seen.append((event.kind.value, now.held, now.waiting, len(pool.waiting())))

    async with visiting(pool) as house:
        holder = await house.serve("holder")
        pool.add_instrument(look)
        waiting = await house.arrive("waiting")
        holder.leave()
        await waiting.served()
        pool.remove_instrument(look)
    assert seen == [("arrived", 1, 1, 1), ("ended", 1, 0, 0), ("granted", 1, 0, 0)]


async def test_an_instrument_that_is_removed_is_told_no_more(make_pool: MakePool) -> None:
    """W2: removing one that is not there is a mistake."""
    pool = await make_pool(1)
    events: list[PoolEvent] = []
    instrument = events.append
    pool.add_instrument(instrument)
    pool.remove_instrument(instrument)
    pool.resize(2)
    assert events == []
    with pytest.raises(ValueError):  # noqa: PT011  # the list's own
        pool.remove_instrument(instrument)


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What went to `sys.unraisablehook`."""
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    return reports


async def test_an_instrument_that_raises_is_removed_and_reported(
    make_pool: MakePool, unraisable: list[Any]
) -> None:
    """W2: the change stands, and the other instruments are told."""
    pool = await make_pool(1)
    error, calls = ValueError("full disk"), 0

    def fail(event: PoolEvent) -> None:
        nonlocal calls
        calls += 1
        raise error

    pool.add_instrument(fail)
    events = record(pool)
    async with pool.admit() as lease:
        assert lease.slot == 0
    assert words(events) == ["arrived", "granted", "ended"]
    assert calls == 1
    (report,) = unraisable
    assert report.exc_value is error
    assert report.exc_type is ValueError
    assert "RemovedInstrument" in repr(report.object)


async def test_python_itself_can_report_an_instrument_that_raises(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W2: with the hook that is there when nobody has set another one."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    pool = await make_pool(1)
    pool.add_instrument(lambda _: 1 / 0)
    async with pool.admit() as lease:
        assert lease.slot == 0
    assert pool.statistics().held == 0
    told = capsys.readouterr().err
    assert "RemovedInstrument" in told
    assert "ZeroDivisionError" in told


async def test_a_report_that_fails_as_well_breaks_nothing(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W2, E2: the slot comes and goes as if nobody had looked."""

    def fail(*_: object) -> None:
        raise ValueError("full disk")

    monkeypatch.setattr(sys, "unraisablehook", fail)
    pool = await make_pool(1)
    pool.add_instrument(fail)
    async with pool.admit() as lease:
        assert lease.slot == 0
    assert pool.statistics().held == 0
    assert "full disk" in capsys.readouterr().err


async def test_an_instrument_that_has_removed_itself_may_still_raise(
    make_pool: MakePool, unraisable: list[Any]
) -> None:
    """W2: it is reported, and the slot that was being granted is not lost."""
    pool = await make_pool(1)

    def once(event: PoolEvent) -> None:
        pool.remove_instrument(once)
        raise ValueError("after the removal")

    pool.add_instrument(once)
    async with pool.admit():
        pass
    async with pool.admit(max_wait=1):
        pass
    assert len(unraisable) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda pool: pool.resize(5),
        lambda pool: pool.close(),
        lambda pool: pool.suspended("no").__enter__(),
    ],
)
async def test_an_instrument_must_not_change_the_pool(
    make_pool: MakePool, unraisable: list[Any], change: Callable[[Pool], object]
) -> None:
    """W2: it gets `RuntimeError`, and nothing has changed."""
    pool = await make_pool(1)

    def meddle(event: PoolEvent) -> None:
        change(pool)

    pool.add_instrument(meddle)
    async with pool.admit() as lease:
        assert lease.slot == 0
    (report,) = unraisable
    assert isinstance(report.exc_value, RuntimeError)
    assert pool.statistics().slots == 1
    async with pool.admit():
        pass


async def test_an_instrument_may_change_another_pool(make_pool: MakePool) -> None:
    """W2: for example one that follows the size of the first."""
    pool, follower = await make_pool(1), await make_pool(1)
    pool.add_instrument(lambda event: follower.resize(pool.statistics().slots))
    pool.resize(3)
    assert follower.statistics().slots == 3


async def test_statistics_are_a_record_of_one_moment(make_pool: MakePool) -> None:
    """W1: frozen; waiting counts newcomers only, and parked not those who are on their way back."""
    pool = await make_pool(3, kv_tokens=100)
    async with visiting(pool) as house:
        for name in ("parker", "returner"):
            visitor = await house.serve(name, cost=Cost(tokens=40))
            await visitor.park()
        await house.serve("holder", cost=Cost(slots=2, tokens=70))
        await visitor.return_to_line()
        await house.arrive("newcomer")
        now = pool.statistics()
        assert (now.slots, now.held, now.waiting, now.parked, now.returning) == (3, 2, 1, 1, 1)
        assert (now.kv_tokens, now.kv_held) == (100, 70)
        with pytest.raises(AttributeError):
            now.held = 0  # type: ignore[misc]
    assert (now.held, pool.statistics().held) == (2, 0)
