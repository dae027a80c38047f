"""Who is served at which second: the pool in memory, on the virtual clock."""

from __future__ import annotations

import pytest
import trio

from tests.support.visitors import timeline, visit
from trio_admission import AdmissionConfig, Cost, LeaseLost, ParkBudget, SlotPool, WaitTimeout
from trio_admission.testing import check


def pool_of(
    slots: int, *, aging: float | None = None, max_waiting: int | None = 0, kv_tokens: int | None = None
) -> SlotPool:
    config = AdmissionConfig(aging=aging, max_waiting=max_waiting)
    return SlotPool(slots, kv_tokens=kv_tokens, config=config, park_budget=ParkBudget.unlimited())


async def test_one_slot_serves_one_after_the_other() -> None:
    """F1: no time passes between an end and the next grant."""
    served = await timeline(
        pool_of(1), visit("a", 10), visit("b", 5), visit("c", 1, at=12), visit("d", 1, at=12)
    )
    assert served == {"a": [0], "b": [10], "c": [15], "d": [16]}


async def test_a_burst_is_served_slot_by_slot() -> None:
    """F1, G7: ten of a second each on four slots."""
    served = await timeline(pool_of(4), *(visit(f"{number}", 1) for number in range(10)))
    assert list(served.values()) == 4 * [[0]] + 4 * [[1]] + 2 * [[2]]


async def test_the_head_is_not_overtaken_by_smaller_ones() -> None:
    """G5: two of three slots stand idle from 1 to 10, and the small ones do not wait for longer than that."""
    served = await timeline(
        pool_of(3),
        visit("long", 10),
        visit("short", 1),
        visit("wide", 5, cost=Cost(slots=3)),
        visit("small", 1),
        visit("tiny", 1, at=2),
    )
    assert served == {"long": [0], "short": [0], "wide": [10], "small": [15], "tiny": [15]}


async def test_one_that_is_larger_than_the_pool_runs_alone() -> None:
    """G6: from the end of the last holder to its own, with nobody beside it, except while it is parked."""
    served = await timeline(
        pool_of(2),
        visit("a", 4),
        visit("b", 7),
        visit("huge", 3, 5, 3, cost=Cost(slots=50)),
        visit("c", 6),
        visit("d", 2),
        visit("e", 1, at=11),
    )
    # huge decodes 7-10, is parked 10-15, is held up by c until 16, and decodes again 16-19
    assert served == {"a": [0], "b": [0], "huge": [7, 16], "c": [10], "d": [10], "e": [12]}


async def test_a_parked_slot_serves_others_and_comes_back_ahead_of_newcomers() -> None:
    """G4, E3: a is parked from 10 to 15, and stands first from then on."""
    served = await timeline(
        pool_of(1), visit("a", 10, 5, 10), visit("b", 10), visit("c", 10), visit("d", 10, at=14)
    )
    assert served == {"a": [0, 20], "b": [10], "c": [30], "d": [40]}


async def test_returning_holders_stand_in_the_order_in_which_they_came_back() -> None:
    """G4: b parked later than a, and was back earlier."""
    served = await timeline(
        pool_of(1), visit("a", 1, 10, 1), visit("b", 1, 5, 1), visit("c", 20), visit("newcomer", 1)
    )
    assert served == {"a": [0, 23], "b": [1, 22], "c": [2], "newcomer": [24]}


async def test_a_returning_holder_that_does_not_fit_is_waited_for() -> None:
    """G4, G5: the newcomers behind it do not take what it needs."""
    served = await timeline(
        pool_of(2),
        visit("wide", 1, 1, 1, cost=Cost(slots=2)),
        visit("a", 10),
        visit("b", 4),
        visit("c", 1),
    )
    assert served == {"wide": [0, 11], "a": [1], "b": [1], "c": [12]}


async def test_a_quiet_flow_is_delayed_by_one_request_for_each_slot() -> None:
    """F2: a thousand of a heavy flow are before it in the line, and four of them in the slots."""
    served = await timeline(
        pool_of(4),
        *(visit(f"heavy {number}", 10, flow="heavy") for number in range(1004)),
        visit("quiet", 10, at=3, flow="quiet"),
        visit("quiet again", 10, at=15, flow="quiet"),
        visit("third", 10, at=15, flow="third"),
    )
    assert served["quiet"] == [10]
    assert served["quiet again"] == [20]
    assert served["third"] == [20]
    assert max(times[0] for times in served.values()) == 2510


async def test_two_flows_take_turns_from_the_second_one_on() -> None:
    """F2: b comes at 5, when a1 is being served and a2 ... a4 wait."""
    served = await timeline(
        pool_of(1),
        *(visit(f"a{number}", 10, flow="a") for number in range(1, 5)),
        *(visit(f"b{number}", 10, at=5, flow="b") for number in range(1, 3)),
    )
    assert served == {"a1": [0], "b1": [10], "a2": [20], "b2": [30], "a3": [40], "a4": [50]}


async def test_weights_are_shares() -> None:
    """F2: three to one, over sixteen services."""
    served = await timeline(
        pool_of(1),
        visit("first", 10, flow="other"),
        *(visit(f"heavy {number}", 10, flow="heavy", weight=3.0) for number in range(12)),
        *(visit(f"light {number}", 10, flow="light", weight=1.0) for number in range(4)),
    )
    assert [served[f"light {number}"] for number in range(4)] == [[20], [60], [100], [140]]


async def test_cost_counts_in_fairness() -> None:
    """F2: a request of half the tokens is as good as two of a quarter on two slots or more."""
    served = await timeline(
        pool_of(4, kv_tokens=1000),
        *(visit(f"blocker {number}", 10, flow="other", cost=Cost(tokens=250)) for number in range(4)),
        *(visit(f"long {number}", 10, flow="long", cost=Cost(tokens=500)) for number in range(4)),
        *(visit(f"short {number}", 10, flow="short", cost=Cost(tokens=250)) for number in range(8)),
    )
    for turn in range(4):
        assert served[f"long {turn}"] == [10 * (turn + 1)]
        assert served[f"short {2 * turn}"] == served[f"short {2 * turn + 1}"] == [10 * (turn + 1)]


async def test_a_return_is_charged_to_its_flow() -> None:
    """F2: a's second service is its return, so b2 goes before a2, who came earlier."""
    served = await timeline(
        pool_of(1),
        visit("a1", 10, 5, 10, flow="a"),
        visit("a2", 10, flow="a"),
        visit("b1", 10, flow="b"),
        visit("b2", 10, flow="b"),
    )
    assert served == {"a1": [0, 20], "b1": [10], "b2": [30], "a2": [40]}


async def test_a_forgotten_flow_owes_nothing() -> None:
    """F2: a had five services while nobody else wanted any, and c none; a comes first, and goes first."""
    served = await timeline(
        pool_of(2),
        visit("other", 100, flow="other"),
        *(visit(f"a{number}", 10, at=10 * number, flow="a") for number in range(5)),
        visit("blocker", 20, at=50, flow="blocker"),
        visit("a again", 10, at=55, flow="a"),
        visit("c", 10, at=56, flow="c"),
    )
    assert (served["a again"], served["c"]) == ([70], [80])


async def test_a_loan_does_not_move_the_clock_of_fairness() -> None:
    """F2, E9: whoever jumps the queue does not make a quiet flow stand behind it."""
    pool = SlotPool(3, park_budget=ParkBudget(1), config=AdmissionConfig(max_waiting=0))
    served: dict[str, float] = {}

    async def hold(name: str, flow: str, seconds: float) -> None:
        async with pool.admit(flow=flow):
            served[name] = trio.current_time()
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery, pool.admit(flow="heavy"), pool.admit(flow="heavy") as parent:
        for _ in range(100):
            async with parent.parked():
                pass
        async with pool.admit(flow="blocker") as blocker, blocker.parked():
            for number in range(50):
                nursery.start_soon(hold, f"m{number}", "m", 1)
            await trio.testing.wait_all_tasks_blocked()
            async with parent.parked() as parked:
                assert parked.refused
                async with pool.admit(flow="heavy", parent=parent):
                    await trio.sleep(2.5)
                    nursery.start_soon(hold, "quiet", "quiet", 1)
                await trio.sleep(100)
    assert served["quiet"] == 3


async def test_priorities_are_strict_without_aging() -> None:
    """F3: the low one waits until nobody of the high ones is left."""
    served = await timeline(
        pool_of(1),
        visit("holder", 10),
        visit("low", 10),
        *(visit(f"high {number}", 10, at=9 + 10 * number, priority=1) for number in range(5)),
    )
    assert served["low"] == [60]


async def test_aging_lifts_those_who_wait() -> None:
    """F3: each ten seconds of waiting are worth one step; of equals the longer wait wins."""
    served = await timeline(
        pool_of(1, aging=10),
        visit("holder", 10),
        visit("low", 10),
        visit("high 1", 10, at=1, priority=2),  # at 10: low 1, high 1 2
        visit("high 2", 10, at=2, priority=2),  # at 20: low 2, high 2 2+1
        visit("high 3", 10, at=12, priority=2),  # at 30: low 3, high 3 2+1
        visit("high 4", 10, at=13, priority=2),
    )
    assert served == {
        "holder": [0], "high 1": [10], "high 2": [20], "low": [30], "high 3": [40], "high 4": [50],
    }  # fmt: skip


async def test_a_class_is_as_old_as_its_next_waiter() -> None:
    """F3: the one that fairness picks inside it, not its oldest."""
    served = await timeline(
        pool_of(1, aging=10),
        visit("x1", 20, flow="x"),
        visit("x2", 10, flow="x"),  # has waited 20 seconds at 20, but is not the next of its class
        visit("z1", 10, at=18, flow="z", priority=1),
        visit("y1", 10, at=19, flow="y"),
    )
    assert served == {"x1": [0], "z1": [20], "y1": [30], "x2": [40]}


async def test_aging_is_judged_when_something_changes() -> None:
    """F3, G7: at 11 the low one has become the next, and fits; it is served at the next change, at 13."""
    pool = pool_of(2, aging=10)

    async def check_often() -> None:
        while True:
            await trio.sleep(1)
            check(pool)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_often)
        served = await timeline(
            pool,
            visit("holder", 30),
            visit("other", 6),
            visit("low", 5, at=1),
            visit("wide", 5, at=5, priority=1, cost=Cost(slots=2)),
            visit("late", 1, at=13),
        )
        nursery.cancel_scope.cancel()
    assert served == {"holder": [0], "other": [0], "low": [13], "wide": [30], "late": [35]}


async def test_positions_follow_aging_when_something_changes() -> None:
    """F3, G8: the low one overtakes at 12, which shows as soon as somebody comes or goes."""
    pool = pool_of(1, aging=10)
    async with pool.admit(), pool.reserve() as low:
        await trio.sleep_until(5)
        async with pool.reserve(priority=1) as high:
            assert (low.position, high.position) == (2, 1)
            await trio.sleep_until(9)
            assert (low.position, high.position) == (2, 1)
            await trio.sleep_until(12)
            async with pool.reserve():
                assert (low.position, high.position) == (1, 2)
            assert [waiting.id for waiting in pool.waiting()] == [low.id, high.id]


async def test_max_wait_counts_from_arrival() -> None:
    """L4: on `reserve`, too, however late `wait` is called, and in whatever pieces."""
    pool = pool_of(1)
    async with pool.admit():
        async with pool.reserve(max_wait=10) as reservation:
            await trio.sleep(4)
            assert await reservation.wait_at_most(3) is None
            with pytest.raises(WaitTimeout):
                await reservation.wait()
            assert trio.current_time() == 10
        async with pool.reserve(max_wait=10) as reservation:
            with pytest.raises(WaitTimeout):
                await reservation.wait_at_most(100)
            assert trio.current_time() == 20
        with pytest.raises(WaitTimeout):
            async with pool.admit(max_wait=5):
                pytest.fail("admitted")
        assert trio.current_time() == 25


async def test_0_is_judged_at_once() -> None:
    """L4: no time passes."""
    pool = pool_of(1)
    async with pool.admit():
        with pytest.raises(WaitTimeout):
            async with pool.admit(max_wait=0):
                pytest.fail("admitted")
        async with pool.reserve(max_wait=0) as reservation:
            with pytest.raises(WaitTimeout):
                await reservation.wait()
        async with pool.reserve() as reservation:
            assert await reservation.wait_at_most(0) is None
            assert reservation.position == 1
    assert trio.current_time() == 0


@pytest.mark.parametrize("attempt", range(10))  # the order of tasks in one tick is random
async def test_a_grant_in_the_same_tick_wins(attempt: int) -> None:
    """L4: the holder leaves at 10, which is when the time is over."""
    served = await timeline(pool_of(1), visit("holder", 10), visit("just in time", 1, max_wait=10))
    assert served["just in time"] == [10]


@pytest.mark.parametrize("attempt", range(10))
async def test_a_grant_in_the_same_tick_wins_for_a_place_without_a_task(attempt: int) -> None:
    """L4: nobody waits at 10, but the slot comes at 10."""
    pool = pool_of(1)

    async def hold() -> None:
        async with pool.admit():
            await trio.sleep(10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked()
        async with pool.reserve(max_wait=10) as reservation:
            await trio.sleep(11)
            lease = await reservation.wait()
            assert lease.slot == 0


async def test_when_both_times_pass_in_the_same_tick_the_place_is_gone() -> None:
    """L4: who waits for at most 5 of the 5 that it has is told so, whichever task of that tick runs first."""
    pool = pool_of(1)
    told: list[object] = []

    async def wait() -> None:
        async with pool.reserve(max_wait=5) as reservation:
            try:
                told.append(await reservation.wait_at_most(5))
            except WaitTimeout as error:
                told.append(type(error))

    async with pool.admit(), trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(wait)
    assert told == 60 * [WaitTimeout]
    assert trio.current_time() == 5


async def test_a_place_without_a_task_goes_when_its_time_has_passed() -> None:
    """L4, G5, G7: it needed two slots; who stands behind it needs one, and gets it at 5."""
    pool = pool_of(2)
    served: list[float] = []

    async def stand_behind() -> None:
        async with pool.admit():
            served.append(trio.current_time())

    async with (
        trio.open_nursery() as nursery,
        pool.admit(),
        pool.reserve(cost=Cost(slots=2), max_wait=5) as reservation,
    ):
        nursery.start_soon(stand_behind)
        await trio.sleep(50)
        assert served == [5]
        with pytest.raises(WaitTimeout):
            _ = reservation.lease


async def test_drained_learns_of_a_place_that_goes_without_a_task() -> None:
    """R3, L4: at 5, when the last one is gone."""
    pool = pool_of(1)
    drained: list[float] = []

    async def drain() -> None:
        await pool.drained()
        drained.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        with pool.suspended("gone"):
            async with pool.reserve(max_wait=5):
                nursery.start_soon(drain)
                await trio.sleep(50)
    assert drained == [5]


async def test_a_wait_that_is_given_up_leaves_the_time_limit_as_it_is() -> None:
    """L4, G3: the cancelled `wait` keeps the place, until 10."""
    pool = pool_of(1)
    async with pool.admit(), pool.reserve(max_wait=10) as reservation:
        for _ in range(3):
            with trio.move_on_after(2):
                await reservation.wait()
            assert reservation.position == 1
        await trio.sleep_until(9.5)
        assert pool.statistics().waiting == 1
        await trio.sleep_until(10.5)
        assert pool.statistics().waiting == 0


async def test_the_time_limit_does_not_run_in_a_lease() -> None:
    """L4: served at 3 of at most 5, and held for 100, with a park and a return that waits for 20."""
    served = await timeline(
        pool_of(1),
        visit("holder", 3),
        visit("a", 10, 1, 90, max_wait=5),
        visit("b", 30),
    )
    assert served["a"] == [3, 43]


async def test_growing_serves_at_once_and_shrinking_waits() -> None:
    """R1: a second slot from 5 on, and again one from 12 on."""
    pool = pool_of(1)

    async def resize() -> None:
        await trio.sleep_until(5)
        pool.resize(2)
        await trio.sleep_until(12)
        pool.resize(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(resize)
        served = await timeline(pool, *(visit(f"{number}", 10) for number in range(5)))
    # the slot that is free at 15 is above the new size or one too many, so the next is at 20
    assert list(served.values()) == [[0], [5], [10], [20], [30]]


async def test_a_suspension_shifts_everything() -> None:
    """R4: the backend is away from 5 to 65."""
    pool = pool_of(1)

    async def restart() -> None:
        await trio.sleep_until(5)
        with pool.suspended("restarting"):
            await trio.sleep_until(65)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(restart)
        served = await timeline(pool, visit("a", 10, 2, 10), visit("b", 10), visit("c", 10, at=20))
    assert served == {"a": [0, 65], "b": [75], "c": [85]}


async def test_a_deadline_round_a_park_loses_the_lease_when_it_passes() -> None:
    """E5: the slot is given to nobody at 30, since it was handed on at 0."""
    pool = pool_of(1)
    with pytest.raises(LeaseLost):
        async with pool.admit() as lease:
            with trio.move_on_after(30):
                async with lease.parked():
                    await trio.sleep(3600)
            await trio.sleep(3600)
    assert trio.current_time() == 30


async def test_ten_conversations_on_two_slots() -> None:
    """G4, E3: each decodes 5, asks a person for 60, and decodes 5 more; nobody starves."""
    served = await timeline(pool_of(2), *(visit(f"{number}", 5, 60, 5) for number in range(10)))
    firsts, seconds = zip(*served.values(), strict=True)
    assert firsts == (0, 0, 5, 5, 10, 10, 15, 15, 20, 20)
    assert seconds == tuple(first + 65 for first in firsts)


async def test_the_wait_that_is_expected() -> None:
    """W3: from the times for which slots were held, and the place in the line."""
    pool = pool_of(2)
    assert pool.estimated_wait() == 0
    async with pool.admit(), pool.admit():
        assert pool.estimated_wait() is None
        async with pool.reserve() as reservation:
            assert reservation.estimated_wait is None
        await trio.sleep(20)
    async with pool.admit(), pool.admit():
        assert pool.estimated_wait() == 10
        async with pool.reserve() as first, pool.reserve() as second:
            assert (first.estimated_wait, second.estimated_wait) == (10, 20)
            assert pool.estimated_wait() == 30
    assert pool.estimated_wait() == 0


async def test_holders_who_outlast_the_average_raise_it() -> None:
    """W3: who was told a second and has waited for half a minute is not told a second again."""
    pool = pool_of(1)
    async with pool.admit():
        await trio.sleep(1)
    async with pool.admit(), pool.reserve() as reservation:
        told = []
        for seconds in (0, 1, 14, 15):
            await trio.sleep(seconds)
            told.append(reservation.estimated_wait)
    assert told == [1, 1, 15, 30]


async def test_slots_whose_holders_outlast_the_average_are_not_counted_on() -> None:
    """W3: one of two is held for long, however many short holdings were measured before."""
    pool = pool_of(2)
    for _ in range(100):
        async with pool.admit():
            await trio.sleep(1)
    async with pool.admit():
        await trio.sleep(30)
        async with pool.admit(), pool.reserve() as first, pool.reserve() as second:
            assert (first.estimated_wait, second.estimated_wait) == (1, 2)
            await trio.sleep(60)
            assert (first.estimated_wait, second.estimated_wait) == (60, 60.5)


async def test_a_grant_that_nobody_uses_is_not_measured() -> None:
    """W3, G3: clients who have given up do not make the service look instant."""
    pool = pool_of(1)
    async with pool.admit():
        await trio.sleep(10)
    for _ in range(40):
        with trio.CancelScope() as gone:
            gone.cancel()
            async with pool.admit():
                pytest.fail("came in")
    async with pool.admit():
        assert pool.estimated_wait() == 10


async def test_the_average_moves() -> None:
    """W3: towards the times that are measured now; a park ends one, and its return begins another."""
    pool = pool_of(1)
    async with pool.admit() as lease:
        await trio.sleep(10)
        async with lease.parked():
            await trio.sleep(1000)
        await trio.sleep(10)
    async with pool.admit():
        assert pool.estimated_wait() == 10
    for _ in range(200):
        async with pool.admit():
            await trio.sleep(2)
    async with pool.admit():
        estimate = pool.estimated_wait()
        assert estimate is not None
        assert estimate == pytest.approx(2, rel=0.01)
        async with pool.reserve() as reservation:
            assert reservation.estimated_wait == pytest.approx(estimate)


async def test_the_wait_of_a_returning_holder() -> None:
    """W3: for as long as it waits; before and after there is nothing to expect."""
    pool = pool_of(1)
    async with pool.admit():
        await trio.sleep(10)

    async def hold() -> None:
        async with pool.admit():
            await trio.sleep(10)

    async with trio.open_nursery() as nursery, pool.admit() as lease:
        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked()
        seen: list[float | None] = []
        await trio.sleep(10)
        async with lease.parked() as parked:

            async def look() -> None:
                while True:
                    seen.append(parked.estimated_wait)
                    await trio.sleep(4)

            parked.nursery.start_soon(look)
            await trio.sleep(2)
    assert seen == [0, 10, 10]


@pytest.mark.parametrize(("held_for", "least", "most"), [(0.5, 1, 1), (30, 24, 36), (500, 60, 60)])
async def test_when_to_come_again(held_for: float, least: float, most: float) -> None:
    """W3, L3: what is expected, a fifth more or less, and within 1 and 60 seconds."""
    pool = pool_of(1)
    async with pool.admit():
        await trio.sleep(held_for)
    told: set[float] = set()
    async with pool.admit():
        for _ in range(50):
            with pytest.raises(WaitTimeout) as passed:
                async with pool.admit(max_wait=0):
                    pytest.fail("admitted")
            told.add(passed.value.retry_after)
    assert least <= min(told) <= max(told) <= most
    if least != most:
        assert len(told) > 40, "without jitter those who are refused together come back together"
