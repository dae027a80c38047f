"""The books of one backend whose slots are isolated: what each slot remembers, and which may be named.

A slot's KV cache keeps a conversation until another one is decoded in it. So a conversation is best sent to
the slot that has it, and the slot that is least likely to be wanted is the one to give away. And a slot may
be named to the server (*pinned*) only while it is idle: what runs in a busy one would be spoilt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Key = tuple[str, bytes]
"""A flow, and the hash of a beginning of one of its conversations; see `wire.thread`."""


@final
@dataclass(eq=False, slots=True, kw_only=True)
class Memory:
    """What a backend has computed of one conversation."""

    key: Key | None = None
    """What it has ended with; None = nothing that could be found again."""
    slot: int | None = None
    """Whose KV cache has it."""
    file: str | None = None
    """Where it is saved."""
    tokens: int = 0
    """How many tokens of the conversation the slot has; 0 = that is not certain."""
    is_expected: bool = False
    """A request of the conversation is here: it waits, is decoded or is parked."""
    ticket: str | None = None
    """The token of the resume ticket that its follow-up has."""
    expires: float = -math.inf
    """Until then that is awaited."""
    used: int = 0
    """Larger for what was used later; 0 = never."""

    def is_wanted(self, now: float) -> bool:
        """Whether somebody is sure to come back to it."""
        return self.is_expected or now < self.expires


@final
class Placement:
    """The books of one backend; of a server that nobody else asks to decode.

    ``size`` is always the number of slots that the gateway uses, from 0 on.
    """

    def __init__(self) -> None:
        self._memories: list[Memory] = []  # those that are somewhere
        self._clock = count(1)
        self._seen_idle: set[int] = set()  # and nobody has been in them since but who has named them
        self._taken: set[int] = set()  # by requests that have named them
        self._in_the_air: set[int] = set()  # requests that the server has not seated yet
        self._has_strays = False  # some of them have been given up, and may still be seated
        self._doubts = 0

    # ---- conversations

    def recall(self, keys: Sequence[Key], now: float, ticket: str | None = None) -> Memory:
        """Return what is remembered of a conversation; for one that is new, an empty memory.

        It is expected from now on, until it is let go.

        Args:
            keys: Of each beginning of the conversation, the longest last.
            now: The time.
            ticket: The token that the request has come with. It is used by that.
        """
        length = {key: number for number, key in enumerate(keys)}
        for each in self._memories:
            if ticket is not None and each.ticket == ticket:
                each.expires = -math.inf
        found = [
            (each.ticket == ticket is not None, length[each.key], each.used, each)
            for each in self._memories
            if each.key in length
            and not each.is_expected
            # The same messages once more are no follow-up: they may be a twin's, while somebody awaits this.
            and (each.key in keys[:-1] or not each.is_wanted(now))
        ]
        *_, memory = max(found, key=lambda each: each[:3], default=(False, 0, 0, Memory()))
        memory.is_expected = True
        memory.ticket, memory.expires = None, -math.inf
        return memory

    def knows(self, keys: Sequence[Key]) -> bool:
        """Whether a slot knows a beginning of that conversation."""
        return any(each.key in keys for each in self._memories)

    def await_follow_up(self, memory: Memory, ticket: str, expires: float) -> None:
        """Take note that the follow-up has a resume ticket, and until when."""
        memory.ticket, memory.expires = ticket, expires

    def let_go(self, memory: Memory) -> None:
        """Take note that its request has ended."""
        memory.is_expected = False

    def save(self, memory: Memory, file: str) -> None:
        """Take note that a file has what its slot has."""
        memory.file = file

    def unwanted_files(self, now: float) -> list[str]:
        """Forget the files for which nobody comes back, and return them."""
        found = [each for each in self._memories if each.file is not None and not each.is_wanted(now)]
        files = [each.file for each in found if each.file is not None]
        self.lose_files(files)
        return files

    def lose_files(self, files: Iterable[str]) -> None:
        """Forget files."""
        lost = set(files)
        for each in self._memories:
            if each.file in lost:
                each.file = None
        self._sweep()

    # ---- slots

    def prefer(self, memory: Memory, size: int, now: float) -> int | None:
        """Return the slot in which a request of the conversation should be decoded.

        That is its own if that is idle, else the idle one that is least likely to be wanted: one that nobody
        has used, else the one whose last use is longest ago, and one that somebody comes back to only when
        there is no other. None = none is idle.
        """
        return self._best({*range(size)} - self._taken, memory, now)

    def choose(self, memory: Memory, leased: int, size: int, now: float) -> int | None:
        """Return the slot that a request may name to the server; None = it must not name any.

        That is the conversation's own, else the one of its lease. If somebody is there, whom the server has
        seated or who has found his own, it is another one: the server has a slot for each lease.
        """
        if self._in_the_air or self._has_strays:
            return None
        idle = {slot for slot in self._seen_idle - self._taken if slot < size}
        if leased in idle and memory.slot not in idle:
            return leased
        return self._best(idle, memory, now)

    def _best(self, idle: set[int], memory: Memory, now: float) -> int | None:
        def worth(slot: int) -> tuple[bool, bool, int, int]:
            there = self.at(slot)
            if there is None:
                return (True, False, 0, slot)
            return (there is not memory, there.is_wanted(now), there.used, slot)

        return min(idle, key=worth, default=None)

    def at(self, slot: int) -> Memory | None:
        """Return what a slot remembers, as far as is known."""
        return next((each for each in self._memories if each.slot == slot), None)

    @property
    def may_look(self) -> bool:
        """Whether it helps to ask the server which slots are idle: not while it is about to seat somebody."""
        return not self._in_the_air

    def pin(self, slot: int) -> None:
        """Take note that a request is sent to this slot; see `unpin`."""
        self._taken.add(slot)

    def move(self, memory: Memory, key: Key | None, slot: int) -> None:
        """Take note that a conversation is decoded there from now on, in the place of what was there.

        Args:
            memory: Of the conversation.
            key: Of the whole of it; it counts when it is remembered, unless there is no other so far.
            slot: The slot.
        """
        if (there := self.at(slot)) is not None:
            there.slot = None
        memory.slot, memory.tokens, memory.used = slot, 0, next(self._clock)
        if memory.key is None:
            memory.key = key
        if memory not in self._memories:
            self._memories.append(memory)
        self._sweep()

    def unpin(self, slot: int, *, is_idle: bool) -> None:
        """Take note that a request to this slot is over, and whether the server has certainly ended it."""
        self._taken.discard(slot)
        if not is_idle:
            self._seen_idle.discard(slot)
            self._doubts += 1

    def remember(self, memory: Memory, key: Key | None, tokens: int) -> None:
        """Take note of what a conversation's slot has now."""
        memory.key = key
        memory.tokens = tokens

    def send_seated(self) -> int:
        """Take note that a request is sent whose slot the server chooses; return a number for it."""
        number = next(self._clock)
        self._in_the_air.add(number)
        for each in self._memories:
            if each.slot not in self._taken:
                each.tokens = 0
        return number

    def land_seated(self, number: int) -> None:
        """Take note that the server has put such a request into a slot."""
        if number in self._in_the_air:
            self._in_the_air.remove(number)
            self._doubt()

    def end_seated(self, number: int) -> None:
        """Take note that such a request is over, one way or another.

        If it has not landed, the server may still have it in its line, for the next slot that is free.
        """
        if number in self._in_the_air:
            self._has_strays = True
            self.land_seated(number)

    @property
    def doubts(self) -> int:
        """Another number each time that it becomes less certain which slots are idle."""
        return self._doubts

    def see_idle(self, slots: Iterable[int], doubts: int) -> None:
        """Take note of which slots were idle when the server was asked.

        Args:
            slots: They.
            doubts: What `doubts` was before the server was asked. If it is another by now, the answer is old.
        """
        if doubts == self._doubts:
            idle = set(slots)
            self._seen_idle = self._seen_idle & self._taken | idle
            self._has_strays = self._has_strays and not idle  # or it would have taken one of these

    def forget(self) -> None:
        """Take note that the server may have been started again: its slots remember nothing, files stay."""
        for each in self._memories:
            each.slot, each.tokens = None, 0
        self._seen_idle.clear()
        self._doubts += 1
        self._sweep()

    def _doubt(self) -> None:
        self._seen_idle &= self._taken
        self._doubts += 1

    def _sweep(self) -> None:
        self._memories = [each for each in self._memories if each.slot is not None or each.file is not None]
