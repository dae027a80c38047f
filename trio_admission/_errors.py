"""The refusals and the facts they carry. Nothing here knows pools, Trio or HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ._records import PoolStatistics


class AdmissionError(Exception):
    """Base of everything that this library raises when it refuses.

    Misuse is not a refusal: wrong arguments raise `ValueError` or `TypeError`, calls in the wrong
    order `RuntimeError`.
    """


class LineFull(AdmissionError):
    """Raised on arrival when there is no slot and the line already holds its limit. Nothing was queued.

    Attributes:
        statistics: The pool at that moment, without the one that was refused.
        retry_after: Seconds after which to come again, from 1 to 60. It follows from how long slots were held
            lately and from the length of the line, with jitter; about 1 before any measurement.
        reason: ``"line"`` if the pool's limit was reached, ``"flow"`` if the arriving flow's own was.
    """

    def __init__(
        self, statistics: PoolStatistics, retry_after: float, reason: Literal["line", "flow"] = "line"
    ) -> None:
        super().__init__(statistics, retry_after, reason)  # plain args, so that pickle and copy round-trip
        self.statistics, self.retry_after = statistics, retry_after
        self.reason: Literal["line", "flow"] = reason

    def __str__(self) -> str:
        whose = "this flow's part of the line" if self.reason == "flow" else "the line"
        return f"{whose} is full ({self.statistics.waiting} waiting for {self.statistics.slots} slots)"


class WaitTimeout(AdmissionError):
    """Raised when ``max_wait`` seconds have passed since arrival without a grant. Nothing is left behind.

    Attributes:
        statistics: The pool at that moment, without the one whose time is over.
        retry_after: Seconds after which to come again, as in `LineFull`.
    """

    def __init__(self, statistics: PoolStatistics, retry_after: float) -> None:
        super().__init__(statistics, retry_after)
        self.statistics, self.retry_after = statistics, retry_after

    def __str__(self) -> str:
        return f"waited too long ({self.statistics.waiting} waiting for {self.statistics.slots} slots)"


class PoolClosed(AdmissionError):
    """Raised on arrival at a closed pool, and out of a wait that `SlotPool.close` ends."""


class LeaseLost(AdmissionError):
    """Leaves the scope of a lease whose park ended in any other way than by finishing its block.

    The slot has been given back already. ``__cause__`` is what cut the park.
    """


class PoolUnavailable(AdmissionError):
    """Raised by a shared pool whose state cannot be reached. A pool in memory never raises it."""
