"""The books of a backend's slots: which conversation is where, and which slot may be named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from trio_admission_web.placement import Memory, Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio_admission_web.placement import Key

SIZE = 3


@dataclass
class Books:
    """Books, and the shortest way to write into them."""

    placement: Placement = field(default_factory=Placement)
    now: float = 0.0

    def turn(
        self, words: str, slot: int | None = None, *, ticket: float | None = None, token: str = "ticket"
    ) -> Memory:
        """One turn of a conversation, decoded where it should be, or in a slot; each letter is a message."""
        memory = self.recall(words)
        if slot is None:
            slot = self.placement.prefer(memory, SIZE, self.now)
            assert slot is not None
        self.placement.pin(slot)
        self.placement.move(memory, keys(words)[-1], slot)
        self.placement.remember(memory, keys(words)[-1], len(words))
        self.placement.unpin(slot, is_idle=True)
        if ticket is not None:
            self.placement.await_follow_up(memory, token, ticket)
        self.placement.let_go(memory)
        return memory

    def recall(self, words: str, token: str | None = None) -> Memory:
        return self.placement.recall(keys(words), self.now, token)


def keys(words: str, flow: str = "me") -> Sequence[Key]:
    return [(flow, words[: length + 1].encode()) for length in range(len(words))]


def test_the_next_turn_finds_the_slot_of_the_turn_before() -> None:
    books = Books()
    first = books.turn("ab")
    books.turn("ac")
    assert first.slot == 0
    assert books.turn("abxy") is first
    assert first.slot == 0
    assert books.turn("abxyz") is first


def test_the_longest_beginning_counts() -> None:
    books = Books()
    books.turn("ab")
    longer = books.turn("abcd", 2)
    assert books.recall("abcdef") is longer


def test_what_only_begins_alike_is_another_conversation() -> None:
    books = Books()
    assert books.turn("ab") is not books.turn("acd")


def test_nobody_finds_the_conversation_of_another_flow() -> None:
    books = Books()
    mine = books.turn("ab")
    assert books.placement.recall(keys("abcd", "you"), books.now) is not mine


def test_two_at_once_do_not_share_a_slot_s_memory() -> None:
    books = Books()
    books.turn("ab")
    assert books.recall("abc") is not books.recall("abd")


def test_a_twin_does_not_take_what_somebody_comes_back_to() -> None:
    books = Books()
    awaited = books.turn("ab", ticket=10)
    twin = books.recall("ab")
    assert twin is not awaited
    assert books.recall("abc") is awaited


def test_of_twins_each_comes_back_to_its_own_by_its_ticket() -> None:
    books = Books()
    one = books.turn("ab", 0, ticket=10, token="one")
    other = books.turn("ab", 1, ticket=10, token="other")
    assert one is not other
    assert books.recall("abcd", "one") is one
    assert books.recall("abcd", "other") is other


def test_a_used_ticket_is_awaited_no_longer_whatever_it_comes_with() -> None:
    books = Books()
    memory = books.turn("ab", ticket=10)
    books.placement.save(memory, "file")
    assert books.recall("xyz", "ticket") is not memory
    assert books.placement.unwanted_files(0) == ["file"]


def test_the_same_turn_again_finds_its_slot_if_nobody_is_awaited() -> None:
    books = Books()
    memory = books.turn("ab", 1)
    assert books.turn("ab") is memory
    assert memory.slot == 1


def test_a_new_conversation_goes_where_nobody_was_then_to_the_oldest() -> None:
    books = Books()
    assert [books.turn(word).slot for word in "abc"] == [0, 1, 2]
    books.turn("ax")
    assert books.turn("d").slot == 1
    assert books.turn("e").slot == 2
    assert books.turn("f").slot == 0


def test_a_slot_that_somebody_comes_back_to_is_given_away_last() -> None:
    books = Books()
    books.turn("a", ticket=10)
    books.turn("b", ticket=20)
    books.turn("c")
    assert books.turn("d").slot == 2
    books.now = 10
    assert books.turn("e").slot == 0
    books.turn("f", 2, ticket=20)
    books.turn("g", 0, ticket=20)
    assert books.turn("h").slot == 1  # the one that has waited longest, if it must be one


def test_slots_that_are_taken_are_not_preferred() -> None:
    books = Books()
    memory = books.turn("a")
    books.placement.pin(0)
    assert books.placement.prefer(memory, SIZE, 0) == 1
    for slot in (1, 2):
        books.placement.pin(slot)
    assert books.placement.prefer(memory, SIZE, 0) is None


def test_what_the_server_may_have_overwritten_is_not_certain_any_more() -> None:
    books = Books()
    memory = books.turn("abc")
    assert memory.tokens == 3
    books.placement.send_unpinned()
    assert (memory.slot, memory.tokens) == (0, 0)


def test_a_server_that_was_started_again_knows_nothing_but_files_stay() -> None:
    books = Books()
    saved, other = books.turn("a"), books.turn("b")
    books.placement.save(saved, "file")
    books.placement.forget()
    assert books.recall("bx") is not other
    assert books.recall("ax") is saved
    assert (saved.slot, saved.file) == (None, "file")


def test_files_are_kept_as_long_as_somebody_comes_back() -> None:
    books = Books()
    memory = books.turn("a", ticket=10)
    books.placement.save(memory, "file")
    assert books.placement.unwanted_files(9) == []
    returned = books.recall("ab")
    assert books.placement.unwanted_files(11) == []
    books.placement.let_go(returned)
    assert books.placement.unwanted_files(11) == ["file"]
    assert books.placement.unwanted_files(11) == []


@pytest.mark.parametrize("slot", [0, SIZE])
def test_no_slot_may_be_named_before_it_was_seen_idle_nor_one_that_is_not_used(slot: int) -> None:
    placement = Placement()
    assert not placement.may_pin(slot, SIZE)
    placement.see_idle(range(SIZE + 1), placement.doubts)
    assert placement.may_pin(slot, SIZE) == (slot < SIZE)


def test_an_old_look_does_not_count() -> None:
    placement = Placement()
    before = placement.doubts
    placement.unpin(0, is_idle=False)
    placement.see_idle({0}, before)
    assert not placement.may_pin(0, SIZE)


class Server(RuleBasedStateMachine):
    """A gateway that keeps the books, and a server that puts what is not pinned anywhere.

    What was left before its end goes on in the server for a while. The lease of a slot may be given on then.
    """

    requests = Bundle("requests")
    looks = Bundle("looks")

    def __init__(self) -> None:
        super().__init__()
        self.books = Placement()
        self.leased: set[int] = set()
        self.busy: set[int] = set()
        self.left: set[int] = set()
        self.size = SIZE

    @precondition(lambda self: len(self.leased) < self.size and len(self.busy) < self.size)
    @rule(target=requests, data=st.data())
    def send(self, data: st.DataObject) -> tuple[int, int, Memory | None]:
        slot = data.draw(st.sampled_from([each for each in range(self.size) if each not in self.leased]))
        self.leased.add(slot)
        if self.books.may_pin(slot, self.size):
            assert slot not in self.busy, "a pin to a busy slot"
            memory = Memory()
            self.books.pin(slot)
            self.books.move(memory, None, slot)
            self.busy.add(slot)
            return slot, slot, memory
        place = data.draw(st.sampled_from([each for each in range(self.size) if each not in self.busy]))
        self.books.send_unpinned()
        self.busy.add(place)
        return slot, place, None

    @rule(request=consumes(requests), is_idle=st.booleans())
    def end(self, request: tuple[int, int, Memory | None], *, is_idle: bool) -> None:
        slot, place, memory = request
        self.leased.remove(slot)
        if is_idle:
            self.busy.remove(place)
        else:
            self.left.add(place)
        if memory is None:
            self.books.end_unpinned(is_idle=is_idle)
        else:
            self.books.unpin(slot, is_idle=is_idle)

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def notice(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.left)))
        self.left.remove(place)
        self.busy.remove(place)

    @rule(target=looks)
    def look(self) -> tuple[set[int], int]:
        return self.look_now()

    def look_now(self) -> tuple[set[int], int]:
        return {each for each in range(self.size) if each not in self.busy}, self.books.doubts

    @rule(look=looks)
    def see(self, look: tuple[set[int], int]) -> None:
        self.books.see_idle(*look)

    @rule()
    def look_and_see(self) -> None:
        self.books.see_idle(*self.look_now())

    @rule(die=st.integers(1, 6))
    def forget(self, die: int) -> None:
        if die == 1:
            self.books.forget()

    @invariant()
    def every_slot_has_one_memory(self) -> None:
        slots = [each.slot for each in self.books._memories if each.slot is not None]
        assert len(slots) == len(set(slots))
        assert all(each.slot is not None or each.file is not None for each in self.books._memories)


TestNoPinEverReachesABusySlot = Server.TestCase
