"""What every pool offers, in memory or shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from ._budget import ResumeTicket
    from ._lease import Lease
    from ._pool import MaxWait
    from ._records import Cost, Instrument, PoolStatistics, Waiting
    from ._reservation import Reservation


class Pool(Protocol):
    """The interface of a pool. `SlotPool` says what each method does."""

    @property
    def name(self) -> str:
        """The pool's name."""
        ...

    def admit(
        self,
        *,
        cost: Cost = ...,
        flow: str = ...,
        weight: float = ...,
        priority: int = ...,
        prefer_slot: int | None = ...,
        ticket: ResumeTicket | str | None = ...,
        parent: Lease | None = ...,
        max_wait: MaxWait = ...,
    ) -> AbstractAsyncContextManager[Lease]:
        """Wait for a lease, hold it for the block, and give it back."""
        ...

    def reserve(
        self,
        *,
        cost: Cost = ...,
        flow: str = ...,
        weight: float = ...,
        priority: int = ...,
        prefer_slot: int | None = ...,
        ticket: ResumeTicket | str | None = ...,
        parent: Lease | None = ...,
        max_wait: MaxWait = ...,
    ) -> AbstractAsyncContextManager[Reservation]:
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
        ...

    def suspended(self, reason: str) -> AbstractContextManager[None]:
        """Hold all grants for the block."""
        ...

    def close(self) -> None:
        """Refuse newcomers for ever."""
        ...

    async def drained(self) -> None:
        """Wait until nobody is held, waiting, parked or returning."""
        ...

    def add_instrument(self, instrument: Instrument) -> None:
        """Tell the instrument each change from now on."""
        ...

    def remove_instrument(self, instrument: Instrument) -> None:
        """Tell it no more."""
        ...
