"""The help for other people's tests."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import trio
import trio.testing

from tests.support.visitors import visiting
from trio_admission import AdmissionConfig, Cost, PoolClosed, SlotPool
from trio_admission.testing import FakeLlamaServer, OpenPool, check, run_in_virtual_time, until

pytest_plugins = ["pytester"]


# check


async def test_check_accepts_a_pool_in_any_state() -> None:
    """E2, G7: idle, busy, parked, waiting, shrunk, suspended, closed."""
    pool = SlotPool(2, kv_tokens=10)
    check(pool)
    async with visiting(pool) as house:
        parker = await house.serve("parker")
        await house.serve("holder")
        await house.arrive("waiting", cost=Cost(slots=2))
        check(pool)
        await parker.park()
        check(pool)
        pool.resize(1)
        check(pool)
        with pool.suspended("restarting"):
            check(pool)
        pool.close()
        check(pool)


async def test_check_finds_books_that_are_wrong() -> None:
    """E2: a token that is charged to nobody, and a waiter who could have been admitted."""
    pool = SlotPool(2)
    pool._core.held.take_ids(1)
    with pytest.raises(AssertionError, match="held"):
        check(pool)
    pool = SlotPool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        await house.arrive("waiting")
        pool._core._fill = lambda now, newcomer=None: None  # type: ignore[method-assign]
        holder.leave()
        await holder.left()
        with pytest.raises(AssertionError, match="left waiting"):
            check(pool)
        del pool._core._fill
        pool.resize(1)


# run_in_virtual_time


def test_virtual_time_costs_none_and_is_exact() -> None:
    """It starts at 0, and returns what the function returns."""

    async def main() -> float:
        await trio.sleep(3600)
        return trio.current_time()

    assert run_in_virtual_time(main) == 3600


def test_a_lost_wake_up_fails() -> None:
    """Where all tasks wait for ever, a run on a jumping clock would spin for ever."""
    with pytest.raises(trio.TooSlowError):
        run_in_virtual_time(trio.sleep_forever)


def test_a_run_that_stands_still_says_who_waits_and_where() -> None:
    """In lines of the tested code, not of Trio and this library; each task below the one that started it."""
    pool = SlotPool(1)

    async def second() -> None:
        async with pool.admit():
            pytest.fail("a slot")

    async def main() -> None:
        async with pool.admit(), trio.open_nursery() as nursery:
            nursery.start_soon(second)

    with pytest.raises(trio.TooSlowError) as caught:
        run_in_virtual_time(main)
    still, outer, inner = str(caught.value).splitlines()
    assert still == "the test stands still: nobody will wake these tasks, and no deadline is left"
    assert re.fullmatch(r"  main, \S*test_testing\.py:\d+: async with pool\.admit\(\), trio\.open.*", outer)
    assert re.fullmatch(r"    second, \S*test_testing\.py:\d+: async with pool\.admit\(\):", inner)
    assert caught.value.__cause__ is None


def test_a_run_of_more_than_a_day_says_what_it_waits_for() -> None:
    """It does not stand still, but may go on for ever."""

    async def main() -> None:
        await trio.sleep(50_000)
        await trio.sleep(40_000)

    with pytest.raises(trio.TooSlowError, match=r"a virtual day has passed.*\n  main, .*sleep\(40_000\)"):
        run_in_virtual_time(main)


def test_an_error_on_the_way_out_of_a_standstill_is_its_cause() -> None:
    """It is not lost, and does not hide who waited."""
    error = ValueError("not closed")

    async def main() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    with pytest.raises(trio.TooSlowError, match="stands still") as caught:
        run_in_virtual_time(main)
    assert caught.value.__cause__ is error


def test_another_clock_and_instruments_can_be_given() -> None:
    """As pytest-trio does, when a test asks for its fixtures."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    clock.jump(100)
    spawned: list[str] = []

    class Watch(trio.abc.Instrument):
        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            spawned.append(task.name)

    async def main() -> float:
        return trio.current_time()

    assert run_in_virtual_time(main, clock=clock, instruments=[Watch()]) == 100
    assert spawned


def test_errors_leave_as_they_are() -> None:
    """Nothing is wrapped."""

    async def main() -> None:
        raise PoolClosed("bare")

    with pytest.raises(PoolClosed, match="bare"):
        run_in_virtual_time(main)


# until


async def test_until_waits_for_a_condition() -> None:
    """On whatever clock; true at once is a checkpoint as well."""
    start = trio.current_time()
    with trio.testing.assert_checkpoints():
        await until(lambda: True)
    assert trio.current_time() == start
    await until(lambda: trio.current_time() >= start + 2)
    assert trio.current_time() == pytest.approx(start + 2, abs=0.01)


async def test_until_gives_up() -> None:
    """On Trio's clock, after as long as it is told."""
    with pytest.raises(trio.TooSlowError):
        await until(lambda: False, within=0.5)
    assert trio.current_time() == 0.5


# OpenPool


async def test_an_open_pool_admits_everybody() -> None:
    """C2: at once, without slots; whatever it is given as settings."""
    pool = OpenPool(1, name="open", kv_tokens=5, config=AdmissionConfig(max_waiting=1, max_wait=0))
    async with visiting(pool) as house:
        for number in range(10):
            visitor = await house.serve(f"{number}", cost=Cost(slots=7, tokens=100))
            assert visitor.lease is not None
            assert (visitor.lease.slot, visitor.lease.slots) == (None, ())
        now = pool.statistics()
        assert (now.name, now.slots, now.held, now.waiting) == ("open", 1, 0, 0)
        check(pool)
    assert pool.config == AdmissionConfig(enabled=False, max_waiting=1, max_wait=0)


async def test_an_open_pool_closes_and_drains_like_another() -> None:
    """C2, R3: only its capacity is open."""
    pool = OpenPool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder")
        pool.close()
        with pytest.raises(PoolClosed):
            await house.arrive("newcomer")
        holder.leave()
        await pool.drained()
        assert holder.gone


# The pytest plugin

USE_OF_FIXTURES = """
    import pytest
    import trio
    from trio_admission import ParkBudget, SlotPool
    from trio_admission.testing import FakeLlamaServer, run_in_virtual_time

    @pytest.mark.trio
    async def test_a_pool_of_one(slot_pool):
        assert isinstance(slot_pool, SlotPool)
        async with slot_pool.admit() as lease:
            assert lease.slot == 0
            assert slot_pool.statistics().slots == 1

    @pytest.mark.slot_pool(4, name="mine", park_budget=ParkBudget(0))
    @pytest.mark.trio(run=run_in_virtual_time)
    async def test_a_pool_of_my_own(slot_pool):
        now = slot_pool.statistics()
        assert (now.slots, now.name) == (4, "mine")

    def test_a_pool_without_trio(slot_pool):
        assert slot_pool.statistics().free == 1

    @pytest.mark.trio
    async def test_a_server(fake_llama_server, nursery):
        assert isinstance(fake_llama_server, FakeLlamaServer)
        await fake_llama_server.connect().aclose()

    @pytest.mark.fake_llama_server(total_slots=2)
    @pytest.mark.trio(run=run_in_virtual_time)
    async def test_a_server_of_my_own(fake_llama_server):
        assert fake_llama_server.total_slots == 2
"""


def test_pytest_finds_the_fixtures(pytester: pytest.Pytester) -> None:
    """Without a line of configuration, and with strict markers."""
    pytester.makepyfile(USE_OF_FIXTURES)
    result = pytester.runpytest("--strict-markers", "-W", "error")
    result.assert_outcomes(passed=5)


def test_what_is_left_of_a_pool_fails_the_test(pytester: pytest.Pytester) -> None:
    """A scope that was entered by hand and never left: Trio says so, and so does the fixture."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.trio
        async def test_it(slot_pool):
            await slot_pool.reserve().__aenter__()
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines([
        "*left after the test: <SlotPool '': 1 of 1 slots held, 0 waiting, 0 parked>*"
    ])


def test_a_marker_that_is_not_understood_fails_the_test(pytester: pytest.Pytester) -> None:
    """It is not passed over: the server would be another one than the test says."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.fake_llama_server(2)
        @pytest.mark.trio
        async def test_it(fake_llama_server):
            pass
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the marker fake_llama_server takes its arguments by name*"])


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    """It brings neither Trio nor the library into the test runs of those who do not use them."""
    program = "import sys, pytest; before = set(sys.modules); import pytest_trio_admission; "
    program += "print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["pytest_trio_admission"]


def test_a_run_without_trio_is_left_alone(pytester: pytest.Pytester) -> None:
    """Neither pytest-trio nor Trio is needed for tests that do not use them."""
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert not {name for name in sys.modules if name.split(".")[0] in {"trio", "trio_admission"}}
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:trio", "-p", "no:anyio")
    result.assert_outcomes(passed=1)


async def test_the_fake_server_is_here() -> None:
    """What scripts are made of is one module further."""
    async with FakeLlamaServer(total_slots=3) as server:
        assert server.busy_slots == []
