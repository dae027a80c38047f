"""Frozen records: what a request costs, what a pool tells, what an instrument is told."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, get_args

LEAST_TIME: Final = 1e-6  # seconds, where none would make no sense
MOST: Final = 2**53  # of a count; up to it, what is worked out with floats is exact


def require_count(name: str, value: int, *, least: int, most: int = MOST) -> None:
    """Raise `TypeError` or `ValueError` unless ``value`` is an int from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be an int, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be at least {least} and at most {most}, not {value}")


def require_kind(**values: tuple[object, Any]) -> None:
    """Raise `TypeError` unless each value, given by its name, is of the kind beside it."""
    for name, (value, kind) in values.items():
        if not isinstance(value, kind):
            kinds = " or ".join(each.__name__ for each in get_args(kind) or (kind,))
            raise TypeError(f"{name} must be {kinds}, not {value!r}")


def require_number(name: str, value: float, least: float = 0.0, most: float = math.inf) -> None:
    """Raise `TypeError` or `ValueError` unless ``value`` is a number from ``least`` to ``most``."""
    require_kind(**{name: (value, int | float)})
    if not (least <= value <= min(most, MOST) or value == most):
        raise ValueError(f"{name} must be from {least:g} to {most:g}, not {value!r}")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request takes from the pool.

    A request that costs more than the whole pool is no error: it runs alone.

    Args:
        slots: Decoding sequences, at least 1.
        tokens: Tokens of KV cache, 0 = not counted. A pool without ``kv_tokens`` does not look at it.

    Raises:
        TypeError: if one of them is no int.
        ValueError: if one of them is too small.
    """

    slots: int = 1
    tokens: int = 0

    def __post_init__(self) -> None:
        require_count("slots", self.slots, least=1)
        require_count("tokens", self.tokens, least=0)


ONE_SLOT: Final = Cost()


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one moment, as `SlotPool.statistics` returns it.

    ``slots``, ``held`` and ``free`` count slots; ``waiting``, ``parked`` and ``returning`` count requests.
    """

    name: str
    """The pool's name, ``""`` unless it was given one."""
    slots: int
    """The pool's size."""
    held: int
    """Slots that are held; more than ``slots`` for a while after a shrink."""
    free: int
    """Slots that a request of one slot could take now, if nobody stood before it in the line. 0 while grants
    are held back, while a request runs alone, and while somebody waits to come back."""
    waiting: int
    """Newcomers in the line; returning holders are not among them."""
    parked: int
    """Leases that gave their slot back and do not wait for one yet. Refused parks are not among them."""
    returning: int
    """Holders that wait to come back from a park, or that came with a resume ticket."""
    kv_tokens: int | None
    """Tokens of KV cache that all leases together may hold; None when they are not counted."""
    kv_held: int
    """Tokens of KV cache that leases hold, going by their costs."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One reservation in the line, as `SlotPool.waiting` lists it."""

    id: int
    """Number of the reservation, counted from 1 in the order of arrival at its pool; `Reservation.id`."""
    position: int
    """Place in the line, 1 = next."""
    flow: str
    """On whose behalf, as `SlotPool.admit` was told; ``""`` if it was not."""
    priority: int
    """As `SlotPool.admit` was told; 0 if it was not."""
    waited: float
    """Seconds since it joined this line: since its arrival, or since it wanted to come back."""
    returning: bool
    """Whether it holds a place among the returning holders, ahead of all newcomers."""


class EventKind(enum.Enum):
    """What an instrument can be told. The values are the words used in logs and metrics.

    Each arrival ends up as exactly one of granted, refused, timed out and cancelled, each grant as one of
    ended and lost. A lease may be parked and returned in between, any number of times.
    """

    ARRIVED = "arrived"
    """Somebody asked for a slot. What became of it is an event of its own, which may follow at once."""
    GRANTED = "granted"
    """The reservation got its slots for the first time."""
    REFUSED = "refused"
    """It got none: on arrival, or because the pool was closed while it waited."""
    TIMED_OUT = "timed out"
    """Its ``max_wait`` passed."""
    CANCELLED = "cancelled"
    """Its scope was left before the grant."""
    PARKED = "parked"
    """A lease gave its slots back: on entry of `Lease.parked`, or at the end of `Parked.unparked`."""
    PARK_REFUSED = "park refused"
    """The park budget refused, and the lease keeps its slots in `Lease.parked`."""
    UNPARKED = "unparked"
    """A parked lease got slots for the length of `Parked.unparked`."""
    RETURNED = "returned"
    """A lease got slots again at the end of its park."""
    LOST = "lost"
    """A lease ended in a park that was not finished; in the place of ended."""
    ENDED = "ended"
    """A lease ended with its scope."""
    RESIZED = "resized"
    """`SlotPool.resize` was called."""
    SUSPENDED = "suspended"
    """`SlotPool.suspended` was entered."""
    RESUMED = "resumed"
    """`SlotPool.suspended` was left; others may still hold grants back."""
    CLOSED = "closed"
    """The pool was closed; once at most."""
    TICKET_ISSUED = "ticket issued"
    """A lease got its resume ticket; once at most for each lease."""
    TICKET_USED = "ticket used"
    """A reservation came with a resume ticket that is valid; between its arrival and its grant."""


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One change of a pool, as an instrument is told it, after the change."""

    kind: EventKind
    """What has changed."""
    pool: str
    """The pool's name."""
    at: float
    """When it changed, in seconds on Trio's clock."""
    id: int | None = None
    """Number of the reservation, as `Reservation.id`: the same for all that befalls it and its lease. None
    for what befalls the pool itself: resized, suspended, resumed, closed."""
    flow: str = ""
    """On whose behalf the reservation is; ``""`` also where ``id`` is None."""
    priority: int = 0
    """The reservation's priority; 0 also where ``id`` is None."""
    slots: tuple[int, ...] = ()
    """Ids of the slots that were granted (granted, returned, unparked), that were held until now (parked,
    ended, lost) or that are kept (park refused). Else empty, and always with control off."""
    seconds: float | None = None
    """For granted, returned, unparked, timed out and cancelled: how long it waited. For parked, park refused
    and ended: how long it held its slots since it last got some. For lost: how long it was in the state in
    which it was lost. Else None."""
    reason: str | None = None
    """For refused: ``"line"``, ``"flow"`` or ``"closed"``. For suspended and resumed: what
    `SlotPool.suspended` was given. Else None."""


class Instrument(Protocol):
    """An observer of a pool: called with each event, synchronously, after the change.

    Any callable that takes one `PoolEvent` will do. The task that made the change calls it, so it should be
    quick. It may look at the pool, but not change it (`RuntimeError`). One that raises is removed, and its
    error goes to `sys.unraisablehook`.
    """

    def __call__(self, event: PoolEvent, /) -> object:
        """Take note of one event."""
