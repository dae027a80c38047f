"""A place in the line that a task can look at while it waits."""

from __future__ import annotations

import math
from typing import final

import trio
from trio.lowlevel import enable_ki_protection

from ._lease import Arrival, Lease


@final
class Reservation(Arrival):
    """A lease, or a place in the line, for the length of the scope that gave it."""

    _enters_at_once = True
    _lease: Lease | None = None

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
        if claim.refusal is not None:
            raise claim.refusal
        if claim.granted and self._lease is None:
            self._lease = Lease(self._waits, claim)
            self._lease._scope = self._scope
        return self._lease

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
        lease = await self.wait_at_most(math.inf)
        assert lease is not None
        return lease

    @enable_ki_protection
    async def wait_at_most(self, seconds: float) -> Lease | None:
        """Wait for the lease, but no longer than ``seconds``; None when they have passed, the place is kept.

        Raises what `wait` raises.
        """
        if not seconds >= 0:
            raise ValueError(f"seconds must be at least 0, not {seconds!r}")
        core, claim = self._waits.core, self._claim
        until = trio.current_time() + seconds
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(deadline=until):
            await self._waits.for_grant(claim)
        if core.waits(claim):
            # Whoever leaves in this very tick may run after us; its grant still wins.
            await trio.lowlevel.cancel_shielded_checkpoint()
            if claim.deadline <= until:
                core.expire()  # the caretaker's time has come as well, and it may run after us
        self._must_go_on()
        return self.lease
