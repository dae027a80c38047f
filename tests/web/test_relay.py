from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_admission_web.relay import PORTION, Relay


def make_relay(*, interval: float = 5.0, limit: int = 100) -> Relay:
    return Relay(interval=interval, keepalive=lambda: b": alive\n\n", limit=limit)


async def test_what_waits_is_handed_over_in_one_portion() -> None:
    relay = make_relay()
    relay.put(b"one")
    relay.put(b"two")
    relay.close()
    assert [portion async for portion in relay] == [b"onetwo"]


async def test_no_portion_is_larger_than_one_send_should_be() -> None:
    relay = make_relay()
    relay.put(b"x" * (2 * PORTION + 1))
    relay.close()
    assert [len(portion) async for portion in relay] == [PORTION, PORTION, 1]


async def test_a_keepalive_comes_each_interval_after_the_last_bytes(autojump_clock: MockClock) -> None:
    relay = make_relay(interval=5.0)
    seen: list[tuple[float, bytes]] = []

    async def drain() -> None:
        seen.extend([(trio.current_time(), portion) async for portion in relay])

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain)
        await trio.sleep(12)
        relay.put(b"event")
        await trio.sleep(6)
        relay.close()
    alive = b": alive\n\n"
    assert [(at - start, what) for at, what in seen] == [(5, alive), (10, alive), (12, b"event"), (17, alive)]


async def test_room_is_waited_for_while_the_reader_takes_its_time(autojump_clock: MockClock) -> None:
    relay = make_relay(limit=PORTION)
    relay.put(b"x" * (3 * PORTION))
    start = trio.current_time()

    async def read_slowly() -> None:
        for _ in range(3):
            await trio.sleep(4)
            await anext(relay)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_slowly)
        await relay.room(5)  # 8 s in all, but something was taken every 4 s
        assert trio.current_time() - start == 8
    assert not relay.full


async def test_a_reader_that_takes_nothing_is_too_slow(autojump_clock: MockClock) -> None:
    relay = make_relay(limit=10)
    relay.put(b"x" * 11)
    start = trio.current_time()
    with pytest.raises(trio.TooSlowError):
        await relay.room(5)
    assert trio.current_time() - start == 5


async def test_a_reader_that_is_cancelled_leaves_the_bytes(nursery: trio.Nursery) -> None:
    relay = make_relay()
    with trio.CancelScope() as scope:
        nursery.start_soon(cancel_when_blocked, scope)
        await anext(relay)
    relay.put(b"still here")
    assert await anext(relay) == b"still here"


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()
