"""A place in the line that a task can look at while it waits."""

from __future__ import annotations

import math
from typing import final

import trio
from trio.lowlevel import current_trio_token, enable_ki_protection

from ._lease import Arrival, Lease
from ._states import ENDED


@final
class Reservation(Arrival):
    """A lease, or a place in the line, for the length of the scope that gave it."""

    _lease: Lease | None = None

    @enable_ki_protection
    async def __aenter__(self) -> Reservation:
        waits, claim = self._waits, self._claim
        if waits.run is not current_trio_token():
            waits.enter_run()
        waits.core.arrive(claim)
        try:
            await trio.lowlevel.checkpoint()
        except BaseException:
            waits.core.leave(claim)
            raise
        waits.watch(claim)
        self._scope = trio.CancelScope()
        self._scope.__enter__()
        return self

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
            return self._held()
        if claim.refusal is not None:
            raise claim.refusal
        return None

    @property
    def position(self) -> int:
        """Place in the line, 1 = next; 0 = granted."""
        return self._waits.core.position(self._claim) if not self._claim.granted else 0

    @property
    def estimated_wait(self) -> float | None:
        """Expected wait from now on, in seconds; 0 = granted, None before any measurement."""
        return self._waits.core.estimated_wait(self._claim)

    @enable_ki_protection
    async def wait(self) -> Lease:
        """Wait for the lease. A checkpoint, also if it is there already.

        The place belongs to the scope: when this call is cancelled it is kept.

        Raises:
            WaitTimeout: ``max_wait`` has passed since arrival; the place is gone.
            PoolClosed: the pool was closed before the grant; the place is gone.
            RuntimeError: another task waits for this reservation, or it has ended.
        """
        await self._attend()
        return self._held()

    @enable_ki_protection
    async def wait_at_most(self, seconds: float) -> Lease | None:
        """Wait for the lease, but no longer than ``seconds``; None when they have passed, the place is kept.

        Raises what `wait` raises.
        """
        if not seconds >= 0:
            raise ValueError(f"seconds must be at least 0, not {seconds!r}")
        until = trio.current_time() + seconds
        return self._held() if await self._attend(until) else None

    async def _attend(self, until: float = math.inf) -> bool:
        waits, claim = self._waits, self._claim
        try:
            if waits.core.waits(claim):
                await waits.for_grant(claim, min(until, claim.deadline))
            else:
                await trio.lowlevel.checkpoint()
            if not claim.granted or claim.state is ENDED:
                self._not_granted()
            return claim.granted
        finally:
            waits.watch(claim)  # in case it still waits

    def _held(self) -> Lease:
        if self._lease is None:
            self._lease = Lease(self._waits, self._claim)
            self._lease._scope = self._scope
        return self._lease
