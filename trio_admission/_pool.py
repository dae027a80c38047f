"""What every pool offers, the pool in memory, and pools by the name of their backend."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

import trio
from trio.lowlevel import enable_ki_protection

from ._budget import ParkBudget, ResumeTicket
from ._claim import Claim
from ._config import AdmissionConfig
from ._core import Core
from ._holdings import Holdings
from ._lease import Lease, Waits
from ._records import ONE_SLOT, Cost, Instrument, PoolStatistics, Waiting, require_count, require_kind
from ._reservation import Reservation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import EllipsisType

DEFAULT_CONFIG: Final = AdmissionConfig()
MOST_SLOTS: Final = 1_000_000  # each has an entry


class Pool(Protocol):
    """The interface of a pool. `SlotPool` says what each method does."""

    @property
    def name(self) -> str:
        """The pool's name."""
        ...

    def admit(
        self, *, cost: Cost = ..., flow: str = ..., weight: float = ..., priority: int = ...,
        prefer_slot: int | None = ..., ticket: ResumeTicket | str | None = ...,
        parent: Lease | None = ..., max_wait: float | EllipsisType | None = ...,
    ) -> AbstractAsyncContextManager[Lease]:  # fmt: skip
        """Wait for a lease, hold it for the block, and give it back."""
        ...

    def reserve(
        self, *, cost: Cost = ..., flow: str = ..., weight: float = ..., priority: int = ...,
        prefer_slot: int | None = ..., ticket: ResumeTicket | str | None = ...,
        parent: Lease | None = ..., max_wait: float | EllipsisType | None = ...,
    ) -> AbstractAsyncContextManager[Reservation]:  # fmt: skip
        """Arrive: get a lease at once, or a place in the line."""
        ...

    def statistics(self) -> PoolStatistics:
        """Return the counts of this moment."""
        ...

    def waiting(self) -> list[Waiting]:
        """Return everybody who waits, in order."""
        ...

    def estimated_wait(self) -> float | None:
        """Return how long a newcomer would wait, in seconds."""
        ...

    def resize(self, slots: int | None = None, *, kv_tokens: int | None = None) -> None:
        """Change the pool's size."""

    def suspended(self, reason: str) -> AbstractContextManager[None]:
        """Hold all grants for the block."""
        ...

    def close(self) -> None:
        """Refuse newcomers for ever."""

    async def drained(self) -> None:
        """Wait until nobody is held, waiting, parked or returning."""

    def add_instrument(self, instrument: Instrument) -> None:
        """Tell the instrument each change from now on."""

    def remove_instrument(self, instrument: Instrument) -> None:
        """Tell it no more."""


class SlotPool:
    """The slots of one backend and the line in front of them.

    A slot belongs to a scope: it is held from the entry of ``async with pool.admit()`` to its exit, whatever
    way that is left. A pool may be made outside of a Trio run; it belongs to one `trio.run` at a time, and to
    its thread.

    Args:
        slots: How many decoding sequences there are, at least 1.
        name: What statistics and events call the pool.
        kv_tokens: Tokens of KV cache that all leases together may commit; None = not counted.
        config: Limits and times; see `AdmissionConfig`.
        park_budget: How many leases may be parked at once; None = the budget that all pools of a Trio run
            share, whose limit follows from their slots (`ParkBudget`).
    """

    def __init__(
        self, slots: int, *, name: str = "", kv_tokens: int | None = None,
        config: AdmissionConfig = DEFAULT_CONFIG, park_budget: ParkBudget | None = None,
    ) -> None:  # fmt: skip
        require_count("slots", slots, least=1, most=MOST_SLOTS)
        require_count("kv_tokens", 1 if kv_tokens is None else kv_tokens, least=1)
        require_kind(config=(config, AdmissionConfig), park_budget=(park_budget, ParkBudget | None))
        budget = park_budget or ParkBudget(0)  # without one of its own, it gets that of its run on arrival
        held = Holdings(slots, kv_tokens if config.kv_budget else None)
        self._core = Core(name, held, config, budget, lambda: 0.0)  # a run has a clock
        self._waits = Waits(self._core, park_budget)
        self._drained = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        now = self.statistics()
        held = f"{now.held} of {now.slots} slots held"
        return f"<SlotPool {now.name!r}: {held}, {now.waiting} waiting, {now.parked} parked>"

    @property
    def name(self) -> str:
        """The pool's name."""
        return self._core.name

    @property
    def config(self) -> AdmissionConfig:
        """The pool's settings."""
        return self._core.config

    @property
    def suspension(self) -> str | None:
        """Why grants are held back, the latest reason of those given to `suspended`; None = they are not."""
        return self._core.suspensions[-1] if self._core.suspensions else None

    def admit(
        self, *, cost: Cost = ONE_SLOT, flow: str = "", weight: float = 1.0, priority: int = 0,
        prefer_slot: int | None = None, ticket: ResumeTicket | str | None = None,
        parent: Lease | None = None, max_wait: float | EllipsisType | None = ...,
    ) -> Lease:  # fmt: skip
        """Wait for a lease, hold it for the block, and give it back: ``async with pool.admit() as lease:``.

        Entering is a checkpoint and blocks until a slot is granted; leaving never blocks.

        Args:
            cost: What the request takes, by default one slot.
            flow: On whose behalf, by default ``""``. Flows share the slots fairly, whatever number of
                requests each has waiting.
            weight: The flow's share in relation to others, above 0, by default 1. It divides what this
                request is charged to its flow, whatever weights the flow's other requests have.
            priority: Higher is served first, by default 0; `AdmissionConfig.aging` keeps the others from
                starving.
            prefer_slot: An id to be given if it is free. Never a reason to wait.
            ticket: A resume ticket of this pool and flow. One that is used, expired or another flow's is
                ignored.
            parent: A lease of this pool on whose behalf this one works. While the parent is inside a park
                that was refused, and so keeps its slot, the child may borrow that slot, whatever its cost.
            max_wait: Seconds from arrival after which the wait is given up, 0 = now or never, None = no
                limit. Without it, the pool's config says.

        Raises:
            LineFull: on entry, if there is no slot and no place in the line. Nothing was queued.
            WaitTimeout: on entry, when ``max_wait`` has passed. Nothing is left behind.
            PoolClosed: on entry, if the pool is closed, or is closed during the wait.
            TypeError, ValueError: at once, if an argument is wrong.
            LeaseLost: on exit, if a park ended in another way than by finishing its block.
        """
        return Lease(self._waits, Claim(cost, flow, weight, priority, max_wait, prefer_slot, ticket), parent)

    def reserve(
        self, *, cost: Cost = ONE_SLOT, flow: str = "", weight: float = 1.0, priority: int = 0,
        prefer_slot: int | None = None, ticket: ResumeTicket | str | None = None,
        parent: Lease | None = None, max_wait: float | EllipsisType | None = ...,
    ) -> Reservation:  # fmt: skip
        """Arrive, and get a lease at once or a place: ``async with pool.reserve() as reservation:``.

        Entering is a checkpoint but never waits for a slot; leaving never blocks, and gives back the lease or
        the place. The order of entering is the order of arrival. The arguments are those of `admit`.

        Raises:
            LineFull: on entry, if there is no slot and no place in the line. Nothing was queued.
            PoolClosed: on entry, if the pool is closed.
            LeaseLost: on exit, if a park ended in another way than by finishing its block.
        """
        claim = Claim(cost, flow, weight, priority, max_wait, prefer_slot, ticket)
        return Reservation(self._waits, claim, parent)

    def statistics(self) -> PoolStatistics:
        """Return the counts of this moment."""
        return self._core.statistics()

    def waiting(self) -> list[Waiting]:
        """Return everybody who waits, in the order in which they would be served from now on."""
        return self._core.waiting()

    def estimated_wait(self) -> float | None:
        """Return how long a newcomer would wait, in seconds; 0 = not at all, None before any measurement.

        It follows from the length of the line and from a moving average of the times for which slots were
        held, which rises while holders outlast it.
        """
        return self._core.estimated_wait()

    @enable_ki_protection
    def resize(self, slots: int | None = None, *, kv_tokens: int | None = None) -> None:
        """Change the pool's size; None leaves a size as it is.

        Growing admits those who wait the longest at once. Shrinking throws nobody out: nobody enters until
        what is held is below the new size, and ids at or above it retire when they come back.
        """
        require_count("slots", 1 if slots is None else slots, least=1, most=MOST_SLOTS)
        require_count("kv_tokens", 1 if kv_tokens is None else kv_tokens, least=1)
        self._core.resize(slots, kv_tokens if self.config.kv_budget else None)

    def suspended(self, reason: str) -> AbstractContextManager[None]:
        """Hold all grants for the length of a block: ``with pool.suspended("restarting"):``.

        The line stays, and grows; holders stay. Blocks may overlap: grants go on when the last has ended.
        """
        return Suspension(self._core, reason)

    @enable_ki_protection
    def close(self) -> None:
        """Refuse newcomers for ever; those in the line get `PoolClosed`. Holders, parked or not, go on."""
        self._core.close(dismiss=True)

    @enable_ki_protection
    async def drained(self) -> None:
        """Wait until nothing is held, waiting, parked or returning, whether the pool is closed or not."""
        await trio.lowlevel.checkpoint()
        while not self._core.idle:
            self._core.on_idle = self._drained.unpark_all
            self._core.calm = None
            await self._drained.park()

    @enable_ki_protection
    def add_instrument(self, instrument: Instrument) -> None:
        """Call ``instrument`` with a `PoolEvent` after each change from now on."""
        self._core.announcer.instruments.append(instrument)
        self._core.calm = None

    @enable_ki_protection
    def remove_instrument(self, instrument: Instrument) -> None:
        """Call it no more.

        Raises:
            ValueError: if it is not there, for example since it has raised.
        """
        self._core.announcer.instruments.remove(instrument)


class Suspension:
    """What `SlotPool.suspended` returns."""

    def __init__(self, core: Core, reason: str) -> None:
        self._core = core
        self._reason = reason

    @enable_ki_protection
    def __enter__(self) -> None:
        self._core.suspend(self._reason)

    @enable_ki_protection
    def __exit__(self, *_: object) -> None:
        self._core.resume(self._reason)


@final
class PoolRegistry:
    """The pools of several backends; each is made when it is first asked for.

    Iterating over it gives the pools, ``len()`` their number; ``in`` tells whether there is one of a name.

    Args:
        config: The settings of the pools that it makes.
        park_budget: The budget that they share; None = that of their Trio run.
    """

    def __init__(
        self, *, config: AdmissionConfig = DEFAULT_CONFIG, park_budget: ParkBudget | None = None
    ) -> None:
        self._make = partial(SlotPool, config=config, park_budget=park_budget)
        self._pools: dict[str, SlotPool] = {}
        self._discarded: set[str] = set()

    def get(self, name: str, slots: int) -> SlotPool:
        """Return the pool of that name; if there is none, make it with ``slots``. It is never resized."""
        self._sweep()
        if name not in self._pools:
            self._pools[name] = self._make(slots, name=name)
        return self._pools[name]

    @enable_ki_protection
    def discard(self, name: str) -> None:
        """Refuse newcomers to a pool, and forget it as soon as nobody has anything of it.

        Those who wait are served, as are holders; for a backend that is gone for good, `SlotPool.close` ends
        their wait. Until nobody is left and no resume ticket is out, `get` returns that pool. An unknown name
        is ignored.
        """
        if name in self._pools:
            self._pools[name]._core.close(dismiss=False)
            self._discarded.add(name)
            self._sweep()

    def __iter__(self) -> Iterator[SlotPool]:
        self._sweep()
        return iter(tuple(self._pools.values()))

    def __len__(self) -> int:
        self._sweep()
        return len(self._pools)

    def __contains__(self, name: object) -> bool:
        self._sweep()
        return name in self._pools

    @enable_ki_protection
    def _sweep(self) -> None:
        for name in tuple(self._discarded):
            core = self._pools[name]._core
            core.forget_tickets(core.now())
            if core.idle and not core.tickets:
                self._discarded.remove(name)
                del self._pools[name]
