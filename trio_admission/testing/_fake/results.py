"""What the engine tells whoever waits for a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .errors import ApiError
    from .script import End, Piece


@dataclass(frozen=True, slots=True)
class Timings:
    """Counts and milliseconds of one sequence, as far as it has come."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float


@dataclass(frozen=True, slots=True)
class Launched:
    """The job has its slots and its prompt fits: a stream's status goes out now."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of one sequence."""

    index: int
    piece: Piece
    timings: Timings


@dataclass(frozen=True, slots=True)
class Ended:
    """One sequence is complete. Its slot is free."""

    index: int
    truncated: bool  # stopped by a limit, not by the model
    timings: Timings
    slot: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A scripted cut took effect. The slot is free, except in silence."""

    how: End


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine refused or dropped the job. Its slots are free."""

    error: ApiError


Result: TypeAlias = Launched | Token | Ended | Broken | Failed
