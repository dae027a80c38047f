"""Frozen records: what a request costs, what a pool tells, what an instrument is told."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol


def require_count(name: str, value: int, *, least: int) -> None:
    """Raise `TypeError` or `ValueError` unless ``value`` is an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request takes from the pool.

    Args:
        slots: Decoding sequences, at least 1.
        tokens: Tokens of KV cache, 0 = not counted. A pool without ``kv_tokens`` does not look at it.
    """

    slots: int = 1
    tokens: int = 0

    def __post_init__(self) -> None:
        require_count("slots", self.slots, least=1)
        require_count("tokens", self.tokens, least=0)


ONE_SLOT: Final = Cost()


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one moment. Counts of slots: ``slots``, ``held``, ``free``; of leases: the rest."""

    name: str
    """The pool's name, ``""`` unless it was given one."""
    slots: int
    """The pool's size."""
    held: int
    """Slots that are held. Above ``slots`` for a while after a shrink."""
    free: int
    """Slots that somebody could take now: 0 while suspended, or while a request runs alone."""
    waiting: int
    """Newcomers in the line; returning holders are not among them."""
    parked: int
    """Leases that gave their slot back and are not on their way to a slot."""
    returning: int
    """Holders that wait to come back from a park, or that came with a resume ticket."""
    kv_tokens: int | None
    """Tokens of KV cache that the pool may commit; None when they are not counted."""
    kv_held: int
    """Tokens of KV cache that leases hold."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One reservation in the line, as `SlotPool.waiting` lists it."""

    id: int
    """Number of the reservation, counted from 1 in the order of arrival at its pool."""
    position: int
    """1 = next."""
    flow: str
    priority: int
    waited: float
    """Seconds since it joined this line."""
    returning: bool
    """Whether it holds a place among the returning holders, ahead of all newcomers."""


class EventKind(enum.Enum):
    """What an instrument can be told. The values are the words used in logs and metrics."""

    ARRIVED = "arrived"
    GRANTED = "granted"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    PARKED = "parked"
    PARK_REFUSED = "park refused"
    UNPARKED = "unparked"
    RETURNED = "returned"
    LOST = "lost"
    ENDED = "ended"
    RESIZED = "resized"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    CLOSED = "closed"
    TICKET_ISSUED = "ticket issued"
    TICKET_USED = "ticket used"


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One change of a pool, as an instrument is told it, after the change."""

    kind: EventKind
    pool: str
    """Name of the pool."""
    at: float
    """Trio's clock, in seconds."""
    id: int | None = None
    """Number of the reservation; None for events of the pool itself (resized, suspended, ...)."""
    flow: str = ""
    priority: int = 0
    slots: tuple[int, ...] = ()
    """Slot ids that were granted, or that the lease held when it parked or ended."""
    seconds: float | None = None
    """Waited, for granted, returned, unparked, timed out and cancelled; held, for parked, lost and ended."""
    reason: str | None = None
    """Why: ``"line"``, ``"flow"`` or ``"closed"`` for refused, what ``suspended`` was given for suspended."""


class Instrument(Protocol):
    """An observer of a pool: called with each event, synchronously, after the change.

    It must not change the pool (`RuntimeError`). One that raises is removed, and its error goes to
    `sys.unraisablehook`.
    """

    def __call__(self, event: PoolEvent, /) -> object:
        """Take note of one event."""
