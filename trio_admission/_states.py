"""The states of a lease, and the table of its moves. A move that is not in the table changes nothing."""

from __future__ import annotations

import enum
from typing import Final


class LeaseState(enum.Enum):
    """Where a lease stands."""

    WAITING = "waiting"
    """In the line, as a newcomer; there is no lease yet."""
    HELD = "held"
    """Holds its slots; also from the grant on, before the waiting task has woken."""
    PARKED = "parked"
    """Inside ``parked()``, without a slot (or with it, if the park was refused)."""
    RETURNING = "returning"
    """Waits for a slot again, ahead of newcomers."""
    HELD_AGAIN = "held again"
    """Inside ``unparked()``: holds slots for a part of the parked block."""
    ENDED = "ended"
    """Over, in whatever way."""


WAITING, HELD, PARKED, RETURNING, HELD_AGAIN, ENDED = LeaseState


class Move(enum.Enum):
    """What can happen to a lease. `MOVES` has the states that each may start from, and where those lead.

    Where GRANT and RETURN lead depends on the lease: GRANT out of a return inside `unparked()` leads to
    HELD_AGAIN, and RETURN from a refused park to HELD at once, since the slot was never given back.
    """

    GRANT = "grant"
    PARK = "park"
    RETURN = "return"
    UNPARK = "unpark"
    REPARK = "repark"
    END = "end"


MOVES: Final[dict[Move, dict[LeaseState, tuple[LeaseState, ...]]]] = {
    Move.GRANT: {WAITING: (HELD,), RETURNING: (HELD, HELD_AGAIN)},
    Move.PARK: {HELD: (PARKED,)},
    Move.RETURN: {PARKED: (RETURNING, HELD)},
    Move.UNPARK: {PARKED: (RETURNING,)},
    Move.REPARK: {RETURNING: (PARKED,), HELD_AGAIN: (PARKED,)},
    Move.END: dict.fromkeys(LeaseState, (ENDED,)),
}


def require(move: Move, state: LeaseState) -> None:
    """Raise `RuntimeError` unless ``move`` may start from ``state``."""
    if state not in MOVES[move]:
        raise RuntimeError(f"cannot {move.value} a lease that is {state.value}")
