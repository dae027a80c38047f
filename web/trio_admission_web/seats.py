"""Where on a backend a request is decoded: in the slot that knows its conversation, as often as possible.

Only a backend whose slots are isolated is told which slot to use; to any other, all of this is nothing.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio

from .placement import Placement
from .probing import idle_slots
from .slot_files import SlotFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from trio_admission import ResumeTicket, SlotPool

    from .placement import Key, Memory
    from .settings import BackendSettings
    from .upstream import Upstream
    from .wire.exchange import Account, Exchange

log: Final = logging.getLogger(__name__)

# The time for few tokens is mostly not theirs.
_TELLING: Final = 32


@final
class Seats:
    """The slots of one backend, by the conversations that they know.

    Args:
        upstream: The backend.
        pool: Its pool.
        settings: What is configured for it.
        files: The directory to which the server saves slots; None = it does not.
    """

    def __init__(
        self, upstream: Upstream, pool: SlotPool, settings: BackendSettings, files: Path | None
    ) -> None:
        self.are_placed = settings.has_isolated_slots is True
        self._upstream = upstream
        self._pool = pool
        self._books = Placement()
        self._files: SlotFiles | None = None
        if self.are_placed and files is not None:
            self._files = SlotFiles(upstream, settings.name, files, settings.slot_files_limit)
        self._filing = trio.Lock()
        self._in_the_air: set[Memory] = set()  # of requests that may not be in their slots yet
        self._landed = trio.Event()
        self._is_told = True

    @property
    def size(self) -> int:
        """How many slots the gateway uses."""
        return self._pool.statistics().slots

    @contextmanager
    def seat(self, exchange: Exchange, flow: str, ticket: ResumeTicket | None = None) -> Iterator[Seat]:
        """Follow one request's conversation for the block.

        Args:
            exchange: The request.
            flow: On whose behalf it is: nobody finds the conversations of another flow.
            ticket: That it has come with.
        """
        keys, token = self._keys(exchange, flow), None if ticket is None else ticket.token
        memory = self._books.recall(keys, trio.current_time(), token)
        try:
            yield Seat(self, exchange, memory, keys[-1] if keys else None)
        finally:
            self._books.let_go(memory)
            self.tidy()

    def knows(self, exchange: Exchange, flow: str) -> bool:
        """Whether a slot knows a beginning of that request's conversation."""
        return self._books.knows(self._keys(exchange, flow))

    def tidy(self) -> None:
        """Delete the files for which nobody comes back any more."""
        if self._files is not None:
            for each in self._books.unwanted_files(trio.current_time()):
                self._files.delete(each)

    def clear(self) -> None:
        """Delete all files, those of an earlier run too. Only while nobody has a seat."""
        if self._files is not None:
            self._files.clear()

    def forget(self) -> None:
        """Take note that the server may have been started again, and knows nothing any more."""
        self._books.forget()

    def prefer(self, memory: Memory) -> int | None:
        """Return the slot in which to decode that conversation, if there is one to prefer."""
        return self._books.prefer(memory, self.size, trio.current_time())

    def await_follow_up(self, memory: Memory, ticket: ResumeTicket) -> None:
        """Take note that the follow-up has that ticket."""
        self._books.await_follow_up(memory, ticket.token, ticket.expires_at)

    async def choose(self, memory: Memory, leased: int) -> int | None:
        """Return the slot that a request may name to the server; None = it must not name any.

        Blocks for 2 s at most, while the server is asked which slots are idle if that is in doubt.

        Args:
            memory: Of its conversation.
            leased: The slot of its lease.
        """
        if self._books.may_look and self._chosen(memory, leased) not in {leased, memory.slot} - {None}:
            doubts = self._books.doubts
            idle = await idle_slots(self._upstream)
            self._books.see_idle(idle or (), doubts)
            if idle is None and self._is_told:
                log.warning("backend %s does not say which slots are idle: none is chosen", self._pool.name)
            self._is_told = idle is not None
        else:
            await trio.lowlevel.checkpoint()
        return self._chosen(memory, leased)

    def _chosen(self, memory: Memory, leased: int) -> int | None:
        return self._books.choose(memory, leased, self.size, trio.current_time())

    @asynccontextmanager
    async def pinned(self, memory: Memory, key: Key | None, slot: int) -> AsyncIterator[int]:
        """Keep the books while a request that names its slot is under way; see `land`.

        Entering blocks while slots are saved and restored. The block gets the number of tokens restored.

        Args:
            memory: Of its conversation.
            key: Of the whole of it.
            slot: The slot.
        """
        self._books.pin(slot)
        self._in_the_air.add(memory)
        is_idle = False
        try:
            yield await self._prepare(memory, key, slot)
            is_idle = True
        finally:
            self.land(memory)
            self._books.unpin(slot, is_idle=is_idle)

    def land(self, memory: Memory) -> None:
        """Take note that the server has put a request that names its slot into that."""
        self._in_the_air.discard(memory)
        if not self._in_the_air:
            self._landed.set()
            self._landed = trio.Event()

    @asynccontextmanager
    async def seated(self) -> AsyncIterator[Callable[[], None]]:
        """Keep the books while a request is under way that the server seats.

        Entering blocks until all who have named their slots are in them, or the server might choose one. The
        block gets what to call when the server has seated it.
        """
        number = self._books.send_seated()
        try:
            while self._in_the_air:
                await self._landed.wait()
            yield partial(self._books.land_seated, number)
        finally:
            self._books.end_seated(number)

    def learn(self, memory: Memory, key: Key | None, account: Account | None, restored: int) -> None:
        """Take note of what a request that named its slot has left there.

        Args:
            memory: Of its conversation.
            key: Of the whole of it.
            account: What the server said of it.
            restored: Tokens that had been restored for it.
        """
        if account is None:
            self._books.remember(memory, key, 0)
            return
        self._books.remember(memory, key, account.cached + account.prompt + account.generated)
        if self._files is not None:
            self._files.judge(restored, account.cached)
            if account.prompt_ms is not None and account.prompt >= _TELLING:
                self._files.worth.learn("prefill", account.prompt_ms, account.prompt)

    def _keys(self, exchange: Exchange, flow: str) -> list[Key]:
        is_placed = self.are_placed and exchange.can_be_pinned
        return [(flow, link) for link in exchange.thread] if is_placed else []

    async def _prepare(self, memory: Memory, key: Key | None, slot: int) -> int:
        """Save what somebody comes back to, restore what was saved, and return the tokens restored."""
        async with self._filing:  # the server does one at a time anyway
            there = self._books.at(slot)
            if there is not None and there is not memory and there.is_wanted(trio.current_time()):
                await self._save(there, slot)
            restored = await self._restore(memory, slot)
            self._books.move(memory, key, slot)
            return restored

    async def _save(self, memory: Memory, slot: int) -> None:
        if self._files is not None and self._files.pays(memory.tokens):
            file = await self._files.save(slot, memory.tokens)
            if file is not None:
                self._books.save(memory, file)
                self._books.lose_files(self._files.too_many())

    async def _restore(self, memory: Memory, slot: int) -> int:
        if self._files is None or memory.file is None:
            return 0
        restored = await self._files.restore(slot, memory.file)
        self._books.lose_files([memory.file])
        return restored


@final
class Seat:
    """One request's place on its backend; made by `Seats.seat`."""

    def __init__(self, seats: Seats, exchange: Exchange, memory: Memory, key: Key | None) -> None:
        self._seats = seats
        self._exchange = exchange
        self._memory = memory
        self._key = key
        self._is_placed = seats.are_placed and exchange.can_be_pinned
        self._land: Callable[[], None] = _nothing

    @property
    def preferred(self) -> int | None:
        """The slot to ask the pool for."""
        return self._seats.prefer(self._memory) if self._is_placed else None

    @asynccontextmanager
    async def taken(self, slot: int | None) -> AsyncIterator[bytes]:
        """Send a request inside the block: what the block gets is its body.

        Entering blocks while the slot is prepared. If the block is left by an error, the server is taken to
        be still at work.

        Args:
            slot: The lease's.
        """
        seats, exchange = self._seats, self._exchange
        if not seats.are_placed:
            yield exchange.upstream_body
            return
        chosen = None
        if self._is_placed and slot is not None:
            chosen = await seats.choose(self._memory, slot)
        if chosen is None:
            async with seats.seated() as self._land:
                yield exchange.upstream_body
            return
        async with seats.pinned(self._memory, self._key, chosen) as restored:
            self._land = partial(seats.land, self._memory)
            before = exchange.account
            yield exchange.pinned(chosen)
            account = None if exchange.account is before else exchange.account
            seats.learn(self._memory, self._key, account, restored)

    def launched(self) -> None:
        """Take note that the server has begun to answer, so it has put the request into its slot."""
        self._land()

    def await_follow_up(self, ticket: ResumeTicket) -> None:
        """Take note that the conversation's next request has that ticket."""
        self._seats.await_follow_up(self._memory, ticket)


def _nothing() -> None: ...
