"""The books of a backend's slots: which conversation is where, and which slot may be named."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

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
    books.placement.send_seated()
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


def test_no_slot_may_be_named_before_it_was_seen_idle_nor_one_that_is_not_used() -> None:
    placement = Placement()
    assert placement.choose(Memory(), 0, SIZE, 0) is None
    placement.see_idle({SIZE}, placement.doubts)
    assert placement.choose(Memory(), SIZE, SIZE, 0) is None


def test_its_own_slot_is_named_if_it_is_idle_else_that_of_the_lease_else_the_best_of_the_others() -> None:
    books = Books()
    own = books.turn("ab", 1)
    books.turn("x", 2)
    books.placement.see_idle({0, 1, 2}, books.placement.doubts)
    assert books.placement.choose(Memory(), 2, SIZE, 0) == 2
    assert books.placement.choose(own, 2, SIZE, 0) == 1
    books.placement.pin(1)
    assert books.placement.choose(own, 2, SIZE, 0) == 2
    books.placement.pin(2)
    assert books.placement.choose(own, 2, SIZE, 0) == 0


def test_an_old_look_does_not_count() -> None:
    placement = Placement()
    before = placement.doubts
    placement.unpin(0, is_idle=False)
    placement.see_idle({0}, before)
    assert placement.choose(Memory(), 0, SIZE, 0) is None


@dataclass(eq=False)
class Sent:
    """A request under way: the slot of its lease, the one in which it is decoded, its number in the books."""

    lease: int
    place: int | None = None  # None: it stands in the server's own line
    number: int | None = None  # None: it has named its slot
    has_landed: bool = True
    memory: Memory = field(default_factory=Memory)


class Server:
    """A gateway that keeps the books, and a server that puts what is not pinned anywhere.

    What finds no idle slot there stands in the server's line, and takes the next one that is free. What was
    left before its end goes on for a while, or is begun even later. The lease may be another's by then.
    """

    def __init__(self, books: Placement, seed: int) -> None:
        self.books = books
        self.chance = random.Random(seed)
        self.sent: list[Sent] = []
        self.left: list[Sent] = []
        self.line: list[Sent] = []
        self.looks: list[tuple[list[int], int]] = []
        self.pins = 0

    @property
    def idle(self) -> list[int]:
        busy = {each.place for each in self.sent + self.left}
        return [slot for slot in range(SIZE) if slot not in busy]

    def step(self) -> None:
        """Let one thing happen."""
        often = (self.send, self.land, self.end, self.notice)
        self.chance.choice((*often, *often, self.look, self.see, self.forget))()

    def send(self) -> None:
        leases = {*range(SIZE)} - {each.lease for each in self.sent}
        if not leases:
            return
        lease = self.chance.choice(sorted(leases))
        if self.books.may_look and self.chance.random() < 0.7:
            self.books.see_idle(self.idle, self.books.doubts)
        known = [each for each in self.books._memories if not each.is_expected]
        memory = self.chance.choice([Memory(), *known])
        place = self.books.choose(memory, lease, SIZE, 0.0)
        if place is not None and self.chance.random() < 0.8:
            assert place in self.idle, "a pin to a busy slot"
            self.pins += 1
            self.books.pin(place)
            self.books.move(memory, None, place)
            memory.is_expected = True
            self.sent.append(Sent(lease, place, memory=memory))
            return
        request = Sent(lease, None, self.books.send_seated(), has_landed=False)
        if self.idle:
            request.place = self.chance.choice(self.idle)
        else:
            self.line.append(request)
        self.sent.append(request)

    def land(self) -> None:
        for request in self.sent:
            if request.place is not None and not request.has_landed:
                request.has_landed = True
                assert request.number is not None
                self.books.land_seated(request.number)
                return

    def end(self) -> None:
        if not self.sent:
            return
        request = self.chance.choice(self.sent)
        is_complete = request.has_landed and self.chance.random() < 0.8
        self.sent.remove(request)
        if not is_complete:
            self.left.append(request)
        if request.number is not None:
            self.books.end_seated(request.number)
        else:
            assert request.place is not None
            self.books.unpin(request.place, is_idle=is_complete)
            self.books.let_go(request.memory)
        if is_complete:
            self.freed(request)

    def notice(self) -> None:
        if self.left:
            request = self.chance.choice(self.left)
            self.left.remove(request)
            if request in self.line:
                self.line.remove(request)
            self.freed(request)

    def freed(self, request: Sent) -> None:
        if self.line and request.place is not None:
            self.line.pop(0).place = request.place

    def look(self) -> None:
        self.looks.append((self.idle, self.books.doubts))

    def see(self) -> None:
        """See the answer to one of the last looks."""
        if self.looks:
            self.books.see_idle(*self.chance.choice(self.looks[-3:]))

    def forget(self) -> None:
        if self.chance.random() < 0.1:
            self.books.forget()

    def check(self) -> None:
        slots = [each.slot for each in self.books._memories if each.slot is not None]
        assert len(slots) == len(set(slots)), "two are in one slot"
        assert all(each.slot is not None or each.file is not None for each in self.books._memories)


@pytest.mark.parametrize("seed", range(20))
def test_no_pin_ever_reaches_a_busy_slot(seed: int) -> None:
    server = Server(Placement(), seed)
    for _ in range(10_000):
        server.step()
        server.check()
    assert server.pins > 300
