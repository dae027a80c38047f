"""A place in the line that a task can look at while it waits."""

from __future__ import annotations

import math
from copy import copy
from typing import cast, final

import trio
from trio.lowlevel import enable_ki_protection

from ._lease import Arrival, Lease
from ._records import require_number


@final
class Reservation(Arrival):
    """A lease, or a place in the line, for the length of the scope that gave it."""

    _enters_at_once = True
    _lease: Lease | None = None

    def __repr__(self) -> str:
        return f"<Reservation {self._claim.id} {self._claim.state.value} position={self.position}>"

    @property
    @enable_ki_protection
    def lease(self) -> Lease | None:
        """The lease, or None while waiting. Raises the `PoolClosed` or `WaitTimeout` that ended the wait."""
        claim = self._claim
        if claim.refusal is not None:
            raise copy(claim.refusal)
        if claim.granted and self._lease is None:
            self._lease = Lease(self._waits, claim)
            self._lease._scope = self._scope
        return self._lease

    @property
    def position(self) -> int:
        """Place in the line, 1 = next; 0 = it does not wait: it was granted, or has ended."""
        return self._waits.core.position(self._claim) if not self._claim.granted else 0

    @property
    def estimated_wait(self) -> float | None:
        """Expected wait from now on, in seconds; 0 = it does not wait, None before any measurement."""
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
        return cast("Lease", await self.wait_at_most(math.inf))

    @enable_ki_protection
    async def wait_at_most(self, seconds: float) -> Lease | None:
        """Wait for the lease, but no longer than ``seconds``; None when they have passed, the place is kept.

        Raises what `wait` raises.
        """
        require_number("seconds", seconds)
        core, claim = self._waits.core, self._claim
        until = trio.current_time() + seconds
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(deadline=until):
            await self._waits.for_grant(claim)
        if core.waits(claim):
            await trio.lowlevel.cancel_shielded_checkpoint()  # a grant of this very tick still wins
            if claim.deadline <= until:
                core.expire()  # the caretaker's time has come as well, and it may run after us
        self._must_go_on()
        return self.lease
