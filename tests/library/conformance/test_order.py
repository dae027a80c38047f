"""The order between flows and priorities, and which slot one gets."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.visitors import House, Visitor, visiting
from trio_admission import AdmissionConfig, Cost, LeaseState, WaitTimeout
from trio_admission.testing import until

if TYPE_CHECKING:
    from tests.library.conformance.conftest import MakePool

NO_LIMIT = AdmissionConfig(max_waiting=0)


async def serve_all(house: House, holder: Visitor, waiting: list[Visitor]) -> list[str]:
    """Let one after the other have the only slot, and say in what order they were served."""
    already = len(house.served)
    while waiting:
        holder.leave()
        await holder.left()
        await until(lambda: any(visitor.holds for visitor in waiting))
        (holder,) = [visitor for visitor in waiting if visitor.holds]
        waiting.remove(holder)
    return house.served[already:]


async def order_of(
    make_pool: MakePool, *arrivals: tuple[str, dict[str, Any]], kv_tokens: int | None = None
) -> str:
    """Let them arrive while somebody of another flow holds the only slot, and say who is served when."""
    pool = await make_pool(1, kv_tokens=kv_tokens, config=NO_LIMIT)
    async with visiting(pool) as house:
        holder = await house.serve("holder", flow="holder")
        waiting = [await house.arrive(name, **how) for name, how in arrivals]
        by_position = sorted(waiting, key=lambda visitor: visitor.reservation.position)
        names = [visitor.name for visitor in by_position]
        served = await serve_all(house, holder, waiting)
        assert served == names, "the positions said something else"
        return " ".join(served)


def of(flow: str, count: int, **how: Any) -> list[tuple[str, dict[str, Any]]]:
    """Make ``count`` arrivals of one flow: a1, a2, ..."""
    return [(f"{flow}{number}", {"flow": flow, **how}) for number in range(1, count + 1)]


async def test_one_flow_is_first_in_first_out(make_pool: MakePool) -> None:
    """F1: whatever the weights and costs."""
    arrivals: list[tuple[str, dict[str, Any]]] = [
        ("first", {"cost": Cost(tokens=90)}),
        ("second", {"weight": 7.0}),
        ("third", {"cost": Cost(slots=3)}),
        ("fourth", {"cost": Cost(tokens=1), "weight": 0.1}),
    ]
    assert await order_of(make_pool, *arrivals, kv_tokens=100) == "first second third fourth"


async def test_flows_take_turns(make_pool: MakePool) -> None:
    """F2: however many each has in the line."""
    assert await order_of(make_pool, *of("a", 4), *of("b", 2), *of("c", 1)) == "a1 b1 c1 a2 b2 a3 a4"


async def test_a_flow_of_twice_the_weight_is_served_twice_as_often(make_pool: MakePool) -> None:
    """F2: in proportion, not in blocks."""
    order = await order_of(make_pool, *of("a", 6, weight=2.0), *of("b", 3))
    assert order == "a1 b1 a2 a3 b2 a4 a5 b3 a6"


async def test_a_request_of_many_tokens_is_charged_more(make_pool: MakePool) -> None:
    """F2: the charge is the larger of its shares of the slots and of the tokens."""
    light = {"cost": Cost(tokens=250)}
    pool_of_four = await make_pool(4, kv_tokens=1000, config=NO_LIMIT)
    async with visiting(pool_of_four) as house:
        holders = [await house.serve(f"holder {number}", flow="holder") for number in range(3)]
        last = await house.serve("holder 4", flow="holder")
        heavy = [
            await house.arrive(name, cost=Cost(tokens=700), **how) for name, how in of("heavy", 2)
        ]  # 0.7 each
        small = [await house.arrive(name, **light, **how) for name, how in of("small", 4)]  # 0.25 each
        positions = {visitor.name: visitor.reservation.position for visitor in [*heavy, *small]}
        assert sorted(positions, key=positions.__getitem__) == [
            "heavy1", "small1", "small2", "small3", "heavy2", "small4",
        ]  # fmt: skip
        for holder in [*holders, last]:
            holder.leave()


async def test_a_request_of_many_slots_is_charged_more(make_pool: MakePool) -> None:
    """F2: by its share of the slots."""
    pool = await make_pool(4, config=NO_LIMIT)
    async with visiting(pool) as house:
        for number in range(4):
            await house.serve(f"holder {number}", flow="holder")
        wide = [await house.arrive(name, cost=Cost(slots=2), **how) for name, how in of("wide", 2)]
        small = [await house.arrive(name, **how) for name, how in of("small", 3)]
        assert [visitor.reservation.position for visitor in wide] == [1, 4]
        assert [visitor.reservation.position for visitor in small] == [2, 3, 5]


async def test_leaving_the_line_costs_a_flow_nothing(make_pool: MakePool) -> None:
    """F2: a1 and a2 give up, and a3 is where a1 would have been."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        holder = await house.serve("holder", flow="holder")
        a1, a2, a3 = [await house.arrive(name, **how) for name, how in of("a", 3)]
        b1 = await house.arrive("b1", flow="b")
        for visitor in (a1, a2):
            visitor.cancel()
            await visitor.left()
        assert (a3.reservation.position, b1.reservation.position) == (1, 2)
        assert await serve_all(house, holder, [a3, b1]) == ["a3", "b1"]


async def test_a_return_is_charged_like_a_grant(make_pool: MakePool) -> None:
    """F2, G4: it goes ahead of everybody, and its flow's newcomer waits a turn longer."""
    pool = await make_pool(1)
    async with visiting(pool) as house:
        parker = await house.serve("parker", flow="a")
        a = await house.arrive("a", flow="a")
        b1, b2 = await house.arrive("b1", flow="b"), await house.arrive("b2", flow="b")
        await parker.park()
        await b1.served()
        assert (a.reservation.position, b2.reservation.position) == (1, 2)
        await parker.return_to_line()
        b1.leave()
        await parker.served()
        assert (a.reservation.position, b2.reservation.position) == (2, 1)


async def test_returns_are_charged_to_a_flow_that_is_alone(make_pool: MakePool) -> None:
    """F2: what it had before others came counts for as long as it holds something."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        await house.serve("first", flow="a")
        parker = await house.serve("parker", flow="a")
        for _ in range(2):
            await parker.park()
            parker.come_back()
            await parker.served()
        a = await house.arrive("third", flow="a")
        others = [await house.arrive(name, **how) for name, how in of("b", 4)]
        # two returns and the latest request, half of the pool each, against three halves of b
        assert [visitor.reservation.position for visitor in (a, *others)] == [4, 1, 2, 3, 5]


async def test_a_flow_that_was_alone_and_has_gone_is_forgotten(make_pool: MakePool) -> None:
    """F2: whatever its last request was charged."""
    pool = await make_pool(1)
    async with pool.admit(flow="a", weight=0.1):
        pass
    async with visiting(pool) as house:
        with pool.suspended("restarting"):
            a, b = await house.arrive("a", flow="a"), await house.arrive("b", flow="b")
            assert (a.reservation.position, b.reservation.position) == (1, 2)


async def test_a_flow_that_neither_holds_nor_waits_is_forgotten(make_pool: MakePool) -> None:
    """F2: what it had while nobody else wanted it is no debt."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        await house.serve("other", flow="other")
        for _ in range(5):
            async with pool.admit(flow="a"):
                pass
        await house.serve("holder", flow="holder")
        a, b = await house.arrive("a", flow="a"), await house.arrive("b", flow="b")
        assert (a.reservation.position, b.reservation.position) == (1, 2)


async def test_a_flow_that_holds_is_charged_for_what_it_has(make_pool: MakePool) -> None:
    """F2: the counterpart; as long as it holds one slot, what it has had counts."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        await house.serve("a", flow="a")
        await house.serve("holder", flow="holder")
        flows = ("a", "holder", "new")
        again = [await house.arrive(f"{flow} again", flow=flow) for flow in flows]
        assert [visitor.reservation.position for visitor in again] == [2, 3, 1]


async def test_what_a_flow_had_while_it_was_alone_counts_by_its_weight(make_pool: MakePool) -> None:
    """F2: its latest request had a quarter of the weight, so two of another flow go before its next."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        await house.serve("first", flow="a")
        await house.serve("second", flow="a", weight=0.25)
        a = await house.arrive("third", flow="a")
        b1, b2 = [await house.arrive(name, **how) for name, how in of("b", 2)]
        assert [visitor.reservation.position for visitor in (a, b1, b2)] == [3, 1, 2]


async def test_higher_priorities_go_first(make_pool: MakePool) -> None:
    """F3: without aging whatever the wait; first come, first served inside one."""
    arrivals = [
        (f"{name}", {"priority": priority})
        for name, priority in (("l1", -5), ("m1", 0), ("h1", 3), ("l2", -5), ("h2", 3), ("m2", 0))
    ]
    assert await order_of(make_pool, *arrivals) == "h1 h2 m1 m2 l1 l2"


async def test_flows_share_inside_a_priority(make_pool: MakePool) -> None:
    """F3, F2: and each priority by itself: what a had in the higher one is no debt in the lower."""
    arrivals = [*of("a", 3, priority=1), *of("b", 1, priority=1)]
    arrivals += [(f"low {name}", how) for name, how in [*of("a", 2), *of("b", 1)]]
    assert await order_of(make_pool, *arrivals) == "a1 b1 a2 a3 low a1 low b1 low a2"


@pytest.mark.parametrize("seed", range(20))
async def test_positions_tell_the_order_of_service(make_pool: MakePool, seed: int) -> None:
    """W1, F2, F3, G8: for thirty of random flow, weight, priority and cost, and some who come back."""
    choose = random.Random(seed)
    pool = await make_pool(1, kv_tokens=1000, config=NO_LIMIT)
    async with visiting(pool) as house:
        parkers = [
            await _parked(house, f"parker {number}", flow=choose.choice("abcd")) for number in range(3)
        ]
        holder = await house.serve("holder", flow="a")
        waiting = [
            await house.arrive(
                f"{number}",
                flow=choose.choice("abcd"),
                weight=choose.choice([0.5, 1.0, 3.0]),
                priority=choose.choice([0, 0, 0, 1, 5]),
                cost=Cost(tokens=choose.choice([0, 10, 500, 990, 2000])),
            )
            for number in range(30)
        ]
        for visitor in choose.sample(waiting, 6):
            visitor.cancel()
            await visitor.left()
            waiting.remove(visitor)
        for parker in choose.sample(parkers, 2):
            await parker.return_to_line()
        listed = pool.waiting()
        assert [entry.position for entry in listed] == list(range(1, 27))
        assert [entry.returning for entry in listed] == [True, True] + 24 * [False]
        positions = {visitor.reservation.id: visitor.reservation.position for visitor in waiting}
        assert {entry.id: entry.position for entry in listed if not entry.returning} == positions
        back = [parker for parker in parkers if parker.lease and parker.lease.state is LeaseState.RETURNING]
        expected = sorted(waiting, key=lambda visitor: visitor.reservation.position)
        served = await serve_all(house, holder, [*waiting, *back])
        assert served[2:] == [visitor.name for visitor in expected]


async def _parked(house: House, name: str, **how: Any) -> Visitor:
    visitor = await house.serve(name, **how)
    await visitor.park()
    return visitor


async def test_what_waiting_lists(make_pool: MakePool) -> None:
    """W1: position, flow, priority, time waited, and whether it comes back."""
    pool = await make_pool(1)
    assert pool.waiting() == []
    async with visiting(pool) as house:
        parker = await _parked(house, "parker", flow="a", priority=2)
        await house.serve("holder")
        newcomer = await house.arrive("newcomer", flow="b", priority=7)
        await parker.return_to_line()
        first, second = pool.waiting()
        assert (first.position, first.flow, first.priority, first.returning) == (1, "a", 2, True)
        assert (second.position, second.flow, second.priority, second.returning) == (2, "b", 7, False)
        assert second.id == newcomer.reservation.id
        assert second.waited >= first.waited >= 0
        with pytest.raises(AttributeError):
            first.position = 2  # type: ignore[misc]


# Slots


async def test_slots_freed_by_an_end_go_first_the_latest_of_them_first(make_pool: MakePool) -> None:
    """S1: what was used last is least likely to be evicted from caches elsewhere."""
    pool = await make_pool(4)
    async with visiting(pool) as house:
        visitors = [await house.serve(name) for name in "abcd"]
        slots = {visitor.name: _slot(visitor) for visitor in visitors}
        assert sorted(slots.values()) == [0, 1, 2, 3]
        for index in (1, 3, 0):
            visitors[index].leave()
            await visitors[index].left()
        later = [_slot(await house.serve(f"later {number}")) for number in range(3)]
        assert later == [slots["a"], slots["d"], slots["b"]]


async def test_slots_freed_by_a_park_go_last_the_oldest_park_first(make_pool: MakePool) -> None:
    """S1: their caches are still wanted."""
    pool = await make_pool(4)
    async with visiting(pool) as house:
        a, b, c, d = [await house.serve(name) for name in "abcd"]
        slots = [_slot(visitor) for visitor in (a, b, c, d)]
        d.leave()
        await d.left()
        await b.park()
        await a.park()
        c.leave()
        await c.left()
        later = [_slot(await house.serve(f"later {number}")) for number in range(4)]
        assert later == [slots[2], slots[3], slots[1], slots[0]]


async def test_a_preferred_slot_is_taken_if_it_is_free_and_never_waited_for(make_pool: MakePool) -> None:
    """S1: also one that a parked lease has left; an id that does not exist is no preference."""
    pool = await make_pool(3)
    async with visiting(pool) as house:
        for slot in (2, 0, 1):
            async with pool.admit(prefer_slot=slot) as lease:
                assert lease.slot == slot
        parker = await house.serve("parker", prefer_slot=2)
        await parker.park()
        assert _slot(await house.serve("prefers", prefer_slot=2)) == 2
        assert _slot(await house.serve("too late", prefer_slot=2)) in {0, 1}
        for wrong in (99, -1):
            async with pool.admit(prefer_slot=wrong) as lease:
                assert lease.slot in {0, 1}


async def test_a_preference_is_the_first_of_several_slots(make_pool: MakePool) -> None:
    """S1, S2: the others follow in the usual order."""
    pool = await make_pool(3)
    async with pool.admit(prefer_slot=1, cost=Cost(slots=2)) as lease:
        assert lease.slots[0] == lease.slot == 1
        assert len(set(lease.slots)) == 2


async def test_a_return_prefers_the_slot_that_it_had(make_pool: MakePool) -> None:
    """S1: and takes another one rather than wait for it."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        other = await house.serve("other", prefer_slot=0)
        parker = await house.serve("parker")
        await parker.park()
        other.leave()
        await other.left()
        parker.come_back()
        await parker.served()
        assert _slot(parker) == 1
        await parker.park()
        await house.serve("thief", prefer_slot=1)
        parker.come_back()
        await parker.served()
        assert _slot(parker) == 0


async def test_a_slot_named_by_a_live_ticket_is_given_away_last(make_pool: MakePool) -> None:
    """S1, E8: and its holder gets it again."""
    pool = await make_pool(2)
    async with pool.admit(prefer_slot=0) as lease:
        ticket = lease.issue_ticket(60)
    for _ in range(3):
        async with pool.admit() as lease:
            assert lease.slot == 1
    async with pool.admit(ticket=ticket) as lease:
        assert lease.slot == 0


async def test_a_slot_whose_holder_has_come_back_elsewhere_is_like_any_other(make_pool: MakePool) -> None:
    """S1: nobody wants its cache any more."""
    pool = await make_pool(3)
    async with visiting(pool) as house:
        gone = await house.serve("gone", prefer_slot=0)
        await gone.park()
        still_parked = await house.serve("still parked", prefer_slot=1)
        await still_parked.park()
        gone.cancel()
        await gone.left()
        async with pool.admit(prefer_slot=2):
            assert _slot(await house.serve("next")) == 0


async def test_a_slot_whose_ticket_was_used_in_vain_is_like_any_other(make_pool: MakePool) -> None:
    """S1, E8: who came with the ticket has waited too long, and cannot come with it again."""
    pool = await make_pool(2)
    async with visiting(pool) as house:
        still_parked = await house.serve("still parked", prefer_slot=0)
        await still_parked.park()
        async with pool.admit(prefer_slot=1) as lease:
            ticket = lease.issue_ticket(60)
        with pool.suspended("restarting"), pytest.raises(WaitTimeout):
            async with pool.admit(ticket=ticket, max_wait=0.01):
                pytest.fail("admitted")
        assert _slot(await house.serve("next")) == 1


async def test_a_slot_that_a_return_does_not_need_any_more_is_like_any_other(make_pool: MakePool) -> None:
    """S1, E6: it held two, and comes back for one; the other is not kept for it before an older park's."""
    pool = await make_pool(3)
    async with visiting(pool) as house:
        older = await house.serve("older", prefer_slot=0)
        await older.park()
        async with pool.admit(cost=Cost(slots=2), prefer_slot=1) as lease:
            assert sorted(lease.slots) == [1, 2]
            async with lease.parked(Cost(slots=1)):
                pass
            (kept,) = lease.slots
            assert _slot(await house.serve("next")) == {1: 2, 2: 1}[kept]


def _slot(visitor: Visitor) -> int:
    assert visitor.lease is not None
    assert visitor.lease.slot is not None
    return visitor.lease.slot
