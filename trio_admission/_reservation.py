"""What a task gets on arrival, and the two scopes in which it can arrive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import trio
from trio.lowlevel import enable_ki_protection

from ._lease import Lease, Waits, lost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ._claim import Claim


class Arrival:
    """The scope round one claim: arrival on entry, everything given back on exit.

    Its cancel scope is what stops the rest of the block when a park loses the lease.
    """

    def __init__(
        self,
        waits: Waits,
        claim: Claim,
        parent: Claim | None,
        token: str | None,
        enter_run: Callable[[], None],
    ) -> None:
        self._waits = waits
        self._claim = claim
        self._parent = parent
        self._token = token
        self._enter_run = enter_run
        self._scope = trio.CancelScope()
        self._lease: Lease | None = None

    def _arrive(self) -> None:
        claim = self._claim
        if claim.id:
            raise RuntimeError("a reservation may be entered only once")
        self._enter_run()
        self._waits.core.arrive(claim, self._parent, self._token)

    def _held(self) -> Lease:
        if self._lease is None:
            self._lease = Lease(self._waits, self._claim, self._scope)
        return self._lease

    async def _granted(self, until: float = math.inf) -> bool:
        """Wait for the first grant and say whether it came before ``until``. Always a checkpoint."""
        claim = self._claim
        if self._waits.core.waits(claim):
            await self._waits.for_grant(claim, min(until, claim.deadline))
            if self._waits.core.waits(claim) and trio.current_time() >= claim.deadline:
                self._waits.core.time_out(claim)
        else:
            await trio.lowlevel.checkpoint()
        if claim.refusal is not None:
            raise claim.refusal
        return claim.granted

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._waits.core.leave(self._claim)
        swallowed = self._scope.__exit__(kind, error, traceback)
        if self._lease is not None and (error is None or swallowed):
            loss = lost(self._lease)
            if loss is not None:
                raise loss
        return swallowed


@final
class Admission(Arrival):
    """What `SlotPool.admit` returns."""

    @enable_ki_protection
    async def __aenter__(self) -> Lease:
        self._arrive()
        try:
            await self._granted()
        except BaseException:
            self._waits.core.leave(self._claim)
            raise
        self._scope.__enter__()
        return self._held()


@final
class Reserving(Arrival):
    """What `SlotPool.reserve` returns."""

    @enable_ki_protection
    async def __aenter__(self) -> Reservation:
        self._arrive()
        try:
            await trio.lowlevel.checkpoint()
        except BaseException:
            self._waits.core.leave(self._claim)
            raise
        self._waits.core.watch(self._claim)
        self._scope.__enter__()
        return Reservation(self)


@final
class Reservation:
    """A lease, or a place in the line, for the length of the scope that gave it."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival
        self._claim = arrival._claim  # one thing in two objects

    def __repr__(self) -> str:
        return f"<Reservation {self._claim.id} {self._claim.state.value} position={self.position}>"

    @property
    def id(self) -> int:
        """The number under which `SlotPool.waiting` and events know it."""
        return self._claim.id

    @property
    def lease(self) -> Lease | None:
        """The lease, or None while waiting. After the pool was closed, raises `PoolClosed`."""
        claim = self._claim
        if claim.granted:
            return self._arrival._held()
        if claim.refusal is not None:
            raise claim.refusal
        return None

    @property
    def position(self) -> int:
        """Place in the line, 1 = next; 0 = granted."""
        return self._arrival._waits.core.position(self._claim) if not self._claim.granted else 0

    @property
    def estimated_wait(self) -> float | None:
        """Expected wait from now on, in seconds; 0 = granted, None before any measurement."""
        return self._arrival._waits.core.estimated_wait(self._claim)

    @enable_ki_protection
    async def wait(self) -> Lease:
        """Wait for the lease. A checkpoint, also if it is there already.

        The place belongs to the scope: when this call is cancelled it is kept.

        Raises:
            WaitTimeout: ``max_wait`` has passed since arrival; the place is gone.
            PoolClosed: the pool was closed before the grant; the place is gone.
            RuntimeError: another task waits for this reservation, or it has ended.
        """
        if not await self._arrival._granted():
            raise RuntimeError("the reservation has ended")
        return self._arrival._held()

    @enable_ki_protection
    async def wait_at_most(self, seconds: float) -> Lease | None:
        """Wait for the lease, but no longer than ``seconds``; None when they have passed, the place is kept.

        Raises what `wait` raises.
        """
        if not seconds >= 0:
            raise ValueError(f"seconds must be at least 0, not {seconds!r}")
        until = trio.current_time() + seconds
        if await self._arrival._granted(until):
            return self._arrival._held()
        if not self._arrival._waits.core.waits(self._claim):
            raise RuntimeError("the reservation has ended")
        return None
