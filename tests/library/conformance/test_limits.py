"""Who is refused at the door, who waits too long, and what they are told."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, Cost, LineFull, ParkBudget, WaitTimeout
from trio_admission.testing import until

if TYPE_CHECKING:
    from tests.library.conformance.conftest import MakePool


async def test_a_free_slot_is_looked_for_before_the_limit_is_tested(make_pool: MakePool) -> None:
    """L1, F4: nobody may wait, and still somebody is served."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting_per_flow=0))
    async with visiting(pool) as house:
        await house.serve("holder")
        with pytest.raises(LineFull):
            await house.arrive("refused")


async def test_a_full_line_does_not_refuse_who_is_next_and_fits(make_pool: MakePool) -> None:
    """L1: the head needs two slots, one is free, and somebody of higher priority comes for it."""
    pool = await make_pool(2, config=AdmissionConfig(max_waiting=1))
    async with visiting(pool) as house:
        await house.serve("holder")
        large = await house.arrive("large", cost=Cost(slots=2))
        with pytest.raises(LineFull):
            await house.arrive("refused")
        await house.serve("urgent", priority=1)
        assert large.reservation.position == 1


async def test_who_needs_more_than_is_free_is_refused_and_leaves_nothing_behind(make_pool: MakePool) -> None:
    """L1, L3: nobody may wait; one slot of two is free, and stays so for the next."""
    pool = await make_pool(2, config=AdmissionConfig(max_waiting_per_flow=0))
    async with visiting(pool) as house:
        await house.serve("holder")
        with pytest.raises(LineFull):
            await house.arrive("large", cost=Cost(slots=2))
        await house.serve("small")


WRONG: list[tuple[str, object]] = [
    ("cost", 1),
    ("flow", None),
    ("weight", "2"),
    ("weight", 10**400),
    ("weight", 1e-17),
    ("priority", "high"),
    ("prefer_slot", [0]),
    ("ticket", b"token"),
    ("parent", "me"),
    ("max_wait", "30"),
    ("max_wait", 10**400),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
async def test_a_wrong_argument_fails_for_who_gave_it_alone(
    make_pool: MakePool, name: str, value: object
) -> None:
    """G3: the error names it, and the pool is as if it had not been asked, also while others wait."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        waiter = await house.arrive("waiter")
        for method in (pool.admit, pool.reserve):
            with pytest.raises((TypeError, ValueError), match=f"^{name} must be "):
                async with method(**{name: value}):  # type: ignore[arg-type]  # that is the point
                    pytest.fail("came in")
        assert pool.statistics().waiting == 1
        holder.leave()
        await waiter.served()


async def test_a_park_at_a_wrong_cost_is_none(make_pool: MakePool) -> None:
    """E6: it fails before the slot is given back; one that is set inside loses the lease alone."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        async with pool.admit() as lease:
            with pytest.raises(TypeError, match=r"^cost must be Cost"):
                lease.parked(cost=0)  # type: ignore[arg-type]  # that is the point
            assert lease.slot == 0
        with pytest.raises(TypeError, match=r"^cost must be Cost"):
            async with pool.admit() as lease, lease.parked() as parked:
                parked.cost = None  # type: ignore[assignment]  # that is the point
                await house.serve("meanwhile")
        assert pool.statistics().returning == pool.statistics().parked == 0


async def test_returning_holders_are_neither_counted_nor_refused(make_pool: MakePool) -> None:
    """L1, W1: three come back to a line that is full with one newcomer."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting=1))
    async with visiting(pool) as house:
        parkers = []
        for name in "abc":
            parkers.append(await house.serve(name))
            await parkers[-1].park()
        holder = await house.serve("holder")
        await parkers[0].return_to_line()
        newcomer = await house.arrive("newcomer")
        for parker in parkers[1:]:
            await parker.return_to_line()
        now = pool.statistics()
        assert (now.waiting, now.returning, now.parked) == (1, 3, 0)
        with pytest.raises(LineFull):
            await house.arrive("refused")
        for leaver, following in zip([holder, *parkers], [*parkers, newcomer], strict=True):
            leaver.leave()
            await following.served()


async def test_only_those_who_still_wait_are_counted(make_pool: MakePool) -> None:
    """L1: who has left the line has made room in it."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting=1))
    async with visiting(pool) as house:
        await house.serve("holder")
        for name in ("first", "second", "third"):
            waiting = await house.arrive(name)
            waiting.cancel()
            await waiting.left()


async def test_the_limit_follows_a_resize(make_pool: MakePool) -> None:
    """L2: two places for each slot; those who are beyond a smaller limit stay."""
    pool = await make_pool(1, config=AdmissionConfig(waiting_per_slot=2, min_waiting=None))
    async with visiting(pool) as house:
        await house.serve("holder")
        for number in range(2):
            await house.arrive(f"a{number}")
        with pytest.raises(LineFull):
            await house.arrive("refused")
        pool.resize(2)
        await until(lambda: pool.statistics().waiting == 1)
        for number in range(3):
            await house.arrive(f"b{number}")
        with pytest.raises(LineFull):
            await house.arrive("refused")
        pool.resize(1)
        assert pool.statistics().waiting == 4
        with pytest.raises(LineFull):
            await house.arrive("refused")


async def test_no_limit(make_pool: MakePool) -> None:
    """L2: 0 or less is no limit."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting=0))
    async with visiting(pool) as house:
        await house.serve("holder")
        for number in range(200):
            await house.arrive(f"{number}")
        assert pool.statistics().waiting == 200


async def test_what_a_refusal_tells(make_pool: MakePool) -> None:
    """L3: counts of that moment, when to come again in seconds, and which limit it was."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting=2, max_waiting_per_flow=1))
    async with visiting(pool) as house:
        await house.serve("holder", flow="x")
        await house.arrive("x", flow="x")
        with pytest.raises(LineFull, match=r"flow's part of the line is full") as of_flow:
            await house.arrive("x again", flow="x")
        await house.arrive("y", flow="y")
        with pytest.raises(LineFull, match=r"^the line is full \(2 waiting for 1 slots\)$") as of_line:
            await house.arrive("z", flow="z")
        assert (of_flow.value.reason, of_line.value.reason) == ("flow", "line")
        assert (of_flow.value.statistics.waiting, of_line.value.statistics.waiting) == (1, 2)
        for refusal in (of_flow.value, of_line.value):
            assert 1 <= refusal.retry_after <= 60


async def test_the_flows_own_limit_is_told_even_when_the_line_is_full_too(make_pool: MakePool) -> None:
    """L3, F4: coming again is of no use to this flow before its own requests are done."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting=1, max_waiting_per_flow=1))
    async with visiting(pool) as house:
        await house.serve("holder")
        await house.arrive("waiting", flow="x")
        with pytest.raises(LineFull) as refused:
            await house.arrive("refused", flow="x")
        assert refused.value.reason == "flow"


async def test_a_flow_has_its_limit_over_all_priorities(make_pool: MakePool) -> None:
    """F4: returning holders are not in it."""
    pool = await make_pool(1, config=AdmissionConfig(max_waiting_per_flow=2))
    async with visiting(pool) as house:
        parker = await house.serve("parker", flow="x")
        await parker.park()
        await house.serve("holder", flow="x")
        await parker.return_to_line()
        await house.arrive("low", flow="x")
        await house.arrive("high", flow="x", priority=7)
        with pytest.raises(LineFull):
            await house.arrive("refused", flow="x", priority=3)
        await house.arrive("other", flow="y")


async def test_what_a_timeout_tells(make_pool: MakePool) -> None:
    """L3, L4: the counts are without the one who gave up."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        await house.serve("holder")
        with pytest.raises(WaitTimeout) as passed:
            async with pool.admit(max_wait=0.01):
                pytest.fail("admitted")
        assert passed.value.statistics == pool.statistics()
        assert passed.value.statistics.waiting == 0
        assert 1 <= passed.value.retry_after <= 60
        assert str(passed.value) == "waited too long (0 waiting for 1 slots)"


async def test_the_facts_survive_copies(make_pool: MakePool) -> None:
    """L3: refusals go through pickle and copy as they are."""
    pool = await make_pool(1)
    statistics = pool.statistics()
    for error in (LineFull(statistics, 2.5, "flow"), WaitTimeout(statistics, 2.5)):
        for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(twin) is type(error)
            assert vars(twin) == vars(error)
            assert str(twin) == str(error)


async def test_a_wait_has_no_limit_of_its_own(make_pool: MakePool) -> None:
    """L4: unless the argument or the configuration says so; the argument wins, None over a number too."""
    patient = await make_pool(1)
    async with visiting(patient) as house:
        holder = await house.serve("holder")
        waiting = await house.arrive("waiting")
        async with patient.reserve() as reservation:
            assert await reservation.wait_at_most(0.05) is None
        holder.leave()
        await waiting.served()
    hasty = await make_pool(1, config=AdmissionConfig(max_wait=0.01))
    async with visiting(hasty) as house:
        holder = await house.serve("holder")
        by_config = await house.arrive("by config")
        by_argument = await house.arrive("by argument", max_wait=None)
        await by_config.left()
        assert isinstance(by_config.error, WaitTimeout)
        async with hasty.reserve(max_wait=None) as reservation:
            assert await reservation.wait_at_most(0.05) is None
        assert by_argument.waits


async def test_a_place_whose_time_has_passed_is_gone(make_pool: MakePool) -> None:
    """L4: `wait()` says so as often as it is asked, and the others have moved up."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        await house.serve("holder")
        async with pool.reserve(max_wait=0.01) as reservation:
            behind = await house.arrive("behind")
            for _ in range(2):
                with pytest.raises(WaitTimeout):
                    await reservation.wait()
            assert behind.reservation.position == 1
            assert pool.statistics().waiting == 1


async def test_the_time_limit_ends_with_the_grant(make_pool: MakePool) -> None:
    """L4: neither a lease nor its return from a park is bounded by it."""
    pool = await make_pool(1, park_budget=ParkBudget(1))
    async with visiting(pool) as house:
        parker = await house.serve("parker", max_wait=0.02)
        await parker.park()
        holder = await house.serve("holder")
        parker.come_back()
        async with pool.reserve() as clock:
            assert await clock.wait_at_most(0.05) is None
        holder.leave()
        await parker.served()


@pytest.mark.parametrize("wrong", [-1, float("nan"), -0.5])
async def test_a_senseless_time_limit_is_refused(make_pool: MakePool, wrong: float) -> None:
    """L4: as a mistake of the caller, not as a refusal."""
    pool = await make_pool(1)
    with pytest.raises(ValueError, match="max_wait"):
        pool.admit(max_wait=wrong)
