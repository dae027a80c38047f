"""What every pool offers, in memory or shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from ._claim import Request
    from ._lease import Lease
    from ._records import Instrument, PoolStatistics, Waiting
    from ._reservation import Reservation


class Pool(Protocol):
    """The interface of a pool. `SlotPool` says what each method does."""

    @property
    def name(self) -> str:
        """The pool's name."""
        ...

    def admit(
        self, *, parent: Lease | None = ..., **request: Unpack[Request]
    ) -> AbstractAsyncContextManager[Lease]:
        """Wait for a lease, hold it for the block, and give it back."""
        ...

    def reserve(
        self, *, parent: Lease | None = ..., **request: Unpack[Request]
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
