"""The pool that tasks see."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

import trio
from trio.lowlevel import enable_ki_protection

from ._budget import ParkBudget, ResumeTicket
from ._claim import Claim
from ._config import AdmissionConfig
from ._core import Core
from ._lease import Lease, Waits
from ._records import ONE_SLOT, Cost
from ._reservation import Reservation

if TYPE_CHECKING:
    from types import TracebackType

    from ._records import Instrument, PoolStatistics, Waiting


class _Default(enum.Enum):
    CONFIG = "as the pool's config says"


FROM_CONFIG: Final = _Default.CONFIG
MaxWait: TypeAlias = float | Literal[_Default.CONFIG] | None

DEFAULT_CONFIG: Final = AdmissionConfig()
_run_budget: trio.lowlevel.RunVar[ParkBudget] = trio.lowlevel.RunVar("trio_admission.park_budget")


class SlotPool:
    """The slots of one backend and the line in front of them.

    A slot belongs to a scope: it is held from the entry of ``async with pool.admit()`` to its exit, whatever
    way that is left. A pool belongs to one `trio.run` at a time, and to its thread.

    Args:
        slots: How many decoding sequences there are, at least 1.
        name: What statistics and events call the pool.
        kv_tokens: Tokens of KV cache that all leases together may commit; None = not counted.
        config: Limits and times; see `AdmissionConfig`.
        park_budget: How many leases may be parked at once; None = the budget that all pools of a Trio run
            share, whose limit follows from their slots (`ParkBudget`).
    """

    def __init__(
        self,
        slots: int,
        *,
        name: str = "",
        kv_tokens: int | None = None,
        config: AdmissionConfig = DEFAULT_CONFIG,
        park_budget: ParkBudget | None = None,
    ) -> None:
        _require_count("slots", slots)
        if kv_tokens is not None:
            _require_count("kv_tokens", kv_tokens)
        self._own_budget = park_budget
        self._max_wait = config.max_wait
        self._core = Core(
            name,
            slots,
            kv_tokens if config.kv_budget else None,
            config,
            park_budget or ParkBudget(0),  # without one of its own, it gets that of its run on arrival
            trio.current_time,
        )
        self._waits = Waits(self._core, self._use_budget_of_run)
        self._drained: trio.Event | None = None

    def __repr__(self) -> str:
        core = self._core
        return (
            f"<SlotPool {core.name!r}: {core.held.slots} of {core.slots} slots held,"
            f" {core.line.newcomers} waiting, {len(core.parked)} parked>"
        )

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
        self,
        *,
        cost: Cost = ONE_SLOT,
        flow: str = "",
        weight: float = 1.0,
        priority: int = 0,
        prefer_slot: int | None = None,
        ticket: ResumeTicket | str | None = None,
        parent: Lease | None = None,
        max_wait: MaxWait = FROM_CONFIG,
    ) -> Lease:
        """Wait for a lease, hold it for the block, and give it back: ``async with pool.admit() as lease:``.

        Entering is a checkpoint and blocks until a slot is granted; leaving never blocks.

        Args:
            cost: What the request takes.
            flow: On whose behalf. Flows share the slots fairly, whatever number of requests each has waiting.
            weight: The flow's share in relation to others, above 0.
            priority: Higher is served first; `AdmissionConfig.aging` keeps the others from starving.
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
            LeaseLost: on exit, if a park ended in another way than by finishing its block.
        """
        if max_wait is FROM_CONFIG:
            max_wait = self._max_wait
        claim = Claim(cost, flow, weight, priority, max_wait)
        if prefer_slot is not None or ticket is not None or parent is not None:
            self._extend(claim, prefer_slot, ticket, parent)
        return Lease(self._waits, claim)

    def reserve(
        self,
        *,
        cost: Cost = ONE_SLOT,
        flow: str = "",
        weight: float = 1.0,
        priority: int = 0,
        prefer_slot: int | None = None,
        ticket: ResumeTicket | str | None = None,
        parent: Lease | None = None,
        max_wait: MaxWait = FROM_CONFIG,
    ) -> Reservation:
        """Arrive, and get a lease at once or a place: ``async with pool.reserve() as reservation:``.

        Entering is a checkpoint but never waits for a slot; leaving never blocks, and gives back the lease or
        the place. The order of entering is the order of arrival. The arguments are those of `admit`.

        Raises:
            LineFull: on entry, if there is no slot and no place in the line. Nothing was queued.
            PoolClosed: on entry, if the pool is closed.
            LeaseLost: on exit, if a park ended in another way than by finishing its block.
        """
        if max_wait is FROM_CONFIG:
            max_wait = self._max_wait
        claim = Claim(cost, flow, weight, priority, max_wait)
        if prefer_slot is not None or ticket is not None or parent is not None:
            self._extend(claim, prefer_slot, ticket, parent)
        return Reservation(self._waits, claim)

    def statistics(self) -> PoolStatistics:
        """Return the counts of this moment."""
        return self._core.statistics()

    def waiting(self) -> list[Waiting]:
        """Return everybody who waits, in the order in which they would be served from now on."""
        return self._core.waiting()

    def estimated_wait(self) -> float | None:
        """Return how long a newcomer would wait, in seconds; 0 = not at all, None before any measurement.

        It follows from a moving average of the times for which slots were held, and the length of the line.
        """
        return self._core.estimated_wait()

    @enable_ki_protection
    def resize(self, slots: int | None = None, *, kv_tokens: int | None = None) -> None:
        """Change the pool's size; None leaves a size as it is.

        Growing admits those who wait the longest at once. Shrinking throws nobody out: nobody enters until
        what is held is below the new size, and ids at or above it retire when they come back.
        """
        if slots is not None:
            _require_count("slots", slots)
        if kv_tokens is not None:
            _require_count("kv_tokens", kv_tokens)
        self._core.resize(slots, kv_tokens if self.config.kv_budget else None)

    def suspended(self, reason: str) -> Suspension:
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
            if self._drained is None:
                self._drained = trio.Event()
                self._core.on_idle = self._tell_drained
                self._core.calm = False
            await self._drained.wait()

    @enable_ki_protection
    def add_instrument(self, instrument: Instrument) -> None:
        """Call ``instrument`` with a `PoolEvent` after each change from now on."""
        self._core.announcer.instruments.append(instrument)
        self._core.calm = False

    @enable_ki_protection
    def remove_instrument(self, instrument: Instrument) -> None:
        """Call it no more.

        Raises:
            ValueError: if it is not there, for example since it has raised.
        """
        self._core.announcer.instruments.remove(instrument)

    def _extend(
        self, claim: Claim, prefer_slot: int | None, ticket: ResumeTicket | str | None, parent: Lease | None
    ) -> None:
        if prefer_slot is not None:
            claim.preferred = (prefer_slot,)
        claim.token = ticket.token if isinstance(ticket, ResumeTicket) else ticket
        if parent is not None and parent._waits is self._waits:
            claim.parent = parent._claim  # a lease of another pool has no slot that would be of use here

    def _tell_drained(self) -> None:
        if self._drained is not None:
            self._drained.set()
        self._drained = self._core.on_idle = None

    def _use_budget_of_run(self) -> None:
        if self._own_budget is None:
            try:
                budget = _run_budget.get()
            except LookupError:
                budget = ParkBudget._by_threads()
                _run_budget.set(budget)
            self._core.use_budget(budget)


@final
class Suspension:
    """What `SlotPool.suspended` returns."""

    def __init__(self, core: Core, reason: str) -> None:
        self._core = core
        self._reason = reason

    @enable_ki_protection
    def __enter__(self) -> None:
        self._core.suspend(self._reason)

    @enable_ki_protection
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._core.resume(self._reason)


def _require_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
