"""The settings of a pool, and how they are read from the environment."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, get_type_hints

from ._records import LEAST_TIME, MOST, require_kind, require_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

DEFAULT_KEEPALIVE: Final = 5.0

_PREFIXES: Final = ("TRIO_ADMISSION_", "UNSLOTH_LLAMA_ADMISSION_", "UNSLOTH_OPENAI_COMPAT_ADMISSION_")
_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")
_RANGES: Final = {
    "max_wait": (0, math.inf), "keepalive_interval": (LEAST_TIME, MOST), "waiting_per_slot": (1, MOST),
    "max_waiting_per_flow": (0, MOST), "aging": (LEAST_TIME, MOST),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """The settings of a pool.

    Args:
        enabled: False admits everybody at once, without slots (`Lease.slot` is None).
        max_wait: Seconds from arrival after which a wait raises `WaitTimeout`; 0 = now or never, None = no
            limit.
        keepalive_interval: Seconds between two signs of life to a waiting client. The pool does not
            use it; it stands here so that servers read it from the same place.
        max_waiting: Limit of the line; 0 or less = no limit; None = ``waiting_per_slot`` x slots.
        waiting_per_slot: The line's limit for each slot, where ``max_waiting`` is None.
        min_waiting: Floor of that product; None = no floor.
        max_waiting_per_flow: Limit of one flow's part of the line; None = none.
        aging: Seconds of waiting that weigh as much as one step of priority; None = priorities are strict.
            Looked at when something changes in the pool, never just because time passes.
        kv_budget: False ignores ``kv_tokens``.

    Raises:
        TypeError: names the setting that is of a wrong kind.
        ValueError: names the setting that is out of its range, and the range.
    """

    enabled: bool = True
    max_wait: float | None = None
    keepalive_interval: float = DEFAULT_KEEPALIVE
    max_waiting: int | None = None
    waiting_per_slot: int = 16
    min_waiting: int | None = 64
    max_waiting_per_flow: int | None = None
    aging: float | None = None
    kv_budget: bool = True

    def __post_init__(self) -> None:
        kinds = get_type_hints(AdmissionConfig)
        require_kind(**{name: (getattr(self, name), kind | int) for name, kind in kinds.items()})
        for name, limits in _RANGES.items():
            if (value := getattr(self, name)) is not None:
                require_number(name, value, *limits)

    def line_limit(self, slots: int) -> int | None:
        """Return how many newcomers may wait in front of ``slots`` slots; None = any number."""
        if self.max_waiting is not None:
            return self.max_waiting if self.max_waiting > 0 else None
        return max(self.waiting_per_slot * slots, self.min_waiting or 0)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> AdmissionConfig:
        """Read the settings from ``environ`` (default: `os.environ`), once.

        Variables, each with the prefix ``TRIO_ADMISSION_``: ``CONTROL`` (on or off; 1, true and yes, or 0,
        false and no, are the same), ``QUEUE_TIMEOUT`` (seconds, 0 or less = none), ``KEEPALIVE_INTERVAL``
        (seconds, 0 or less = the default), ``MAX_QUEUE`` (0 or less = no limit), ``QUEUE_PER_SLOT`` (then
        without the floor of 64), ``KV_BUDGET`` (as ``CONTROL``). They set ``enabled``, ``max_wait``,
        ``keepalive_interval``, ``max_waiting``, ``waiting_per_slot`` and ``kv_budget``; the others keep their
        defaults.

        Behind each, for people who move over, the prefixes ``UNSLOTH_LLAMA_ADMISSION_`` and
        ``UNSLOTH_OPENAI_COMPAT_ADMISSION_`` (the latter without the last two). The first name with a
        non-blank value wins. A value that does not parse gives a `UserWarning` that names the
        variable, and the default stands.
        """
        env = os.environ if environ is None else environ
        per_slot = _read(env, "QUEUE_PER_SLOT", _depth, _PREFIXES[:2])
        return cls(
            enabled=_read(env, "CONTROL", _switch) is not False,
            max_wait=_read(env, "QUEUE_TIMEOUT", _seconds),
            keepalive_interval=_read(env, "KEEPALIVE_INTERVAL", _seconds) or DEFAULT_KEEPALIVE,
            max_waiting=_read(env, "MAX_QUEUE", int),
            waiting_per_slot=per_slot or 16,
            min_waiting=64 if per_slot is None else None,
            kv_budget=_read(env, "KV_BUDGET", _switch, _PREFIXES[:2]) is not False,
        )


def _read(
    env: Mapping[str, str], setting: str, parse: Callable[[str], T | None], under: Sequence[str] = _PREFIXES
) -> T | None:
    """Look for a setting under each prefix in turn; some were never there under the last."""
    for prefix in under:
        if value := env.get(prefix + setting, "").strip():
            try:
                return parse(value)
            except ValueError:
                warnings.warn(f"{prefix}{setting}={value!r} means nothing; the default is used", stacklevel=3)
                return None
    return None


def _seconds(text: str) -> float | None:
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(text)
    return seconds if seconds > 0 else None


def _depth(text: str) -> int:
    depth = int(text)
    if depth < 1:
        raise ValueError(text)
    return depth


def _switch(text: str) -> bool:
    return [*_OFF, *_ON].index(text.lower()) >= len(_OFF)  # ValueError if it is neither
