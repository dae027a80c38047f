"""The settings of a pool, and how they are read from the environment."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

DEFAULT_KEEPALIVE: Final = 5.0

# Each setting is looked for under these prefixes, in this order; the last one never had the two that are
# left out of it.
_PREFIXES: Final = ("TRIO_ADMISSION_", "UNSLOTH_LLAMA_ADMISSION_", "UNSLOTH_OPENAI_COMPAT_ADMISSION_")
_NOT_UNDER_LAST_PREFIX: Final = frozenset({"QUEUE_PER_SLOT", "KV_BUDGET"})
_SWITCH: Final[dict[str, bool]] = {
    "1": True, "true": True, "yes": True, "on": True,
    "0": False, "false": False, "no": False, "off": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """The settings of a pool.

    Args:
        enabled: False admits everybody at once, without slots (`Lease.slot` is None).
        max_wait: Seconds from arrival after which a wait raises `WaitTimeout`; None = no limit.
        keepalive_interval: Seconds between two signs of life to a waiting client. The pool does not
            use it; it stands here so that servers read it from the same place.
        max_waiting: Limit of the line; 0 or less = no limit; None = ``waiting_per_slot`` x slots.
        waiting_per_slot: The line's limit for each slot, where ``max_waiting`` is None.
        min_waiting: Floor of that product; None = no floor.
        max_waiting_per_flow: Limit of one flow's part of the line; None = none.
        aging: Seconds of waiting that weigh as much as one step of priority; None = priorities are strict.
            Looked at when something changes in the pool, never just because time passes.
        kv_budget: False ignores ``kv_tokens``.
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
        if self.max_wait is not None and not self.max_wait >= 0:
            raise ValueError(f"max_wait must be None or at least 0 seconds, not {self.max_wait!r}")
        if not 0 < self.keepalive_interval < math.inf:
            raise ValueError(f"keepalive_interval must be above 0 seconds, not {self.keepalive_interval!r}")
        if self.waiting_per_slot < 1:
            raise ValueError(f"waiting_per_slot must be at least 1, not {self.waiting_per_slot!r}")
        if self.max_waiting_per_flow is not None and self.max_waiting_per_flow < 0:
            raise ValueError(
                f"max_waiting_per_flow must be None or at least 0, not {self.max_waiting_per_flow!r}"
            )
        if self.aging is not None and not 0 < self.aging < math.inf:
            raise ValueError(f"aging must be None or above 0 seconds, not {self.aging!r}")

    def line_limit(self, slots: int) -> int | None:
        """Return how many newcomers may wait in front of ``slots`` slots; None = any number."""
        if self.max_waiting is not None:
            return self.max_waiting if self.max_waiting > 0 else None
        return max(self.waiting_per_slot * slots, self.min_waiting or 0)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> AdmissionConfig:
        """Read the settings from ``environ`` (default: `os.environ`), once.

        Variables, each with the prefix ``TRIO_ADMISSION_``: ``CONTROL`` (on or off), ``QUEUE_TIMEOUT``
        (seconds, 0 or less = none), ``KEEPALIVE_INTERVAL`` (seconds), ``MAX_QUEUE`` (0 or less = no
        limit), ``QUEUE_PER_SLOT`` (then without the floor of 64), ``KV_BUDGET`` (on or off). Behind
        each, for people who move over, the prefixes ``UNSLOTH_LLAMA_ADMISSION_`` and
        ``UNSLOTH_OPENAI_COMPAT_ADMISSION_`` (the latter without the last two). The first name with a
        non-blank value wins. A value that does not parse gives a `UserWarning` that names the
        variable, and the default stands.
        """
        env = os.environ if environ is None else environ
        timeout = _read(env, "QUEUE_TIMEOUT", _seconds)
        keepalive = _read(env, "KEEPALIVE_INTERVAL", _seconds)
        per_slot = _read(env, "QUEUE_PER_SLOT", _depth)
        enabled = _read(env, "CONTROL", _switch)
        kv_budget = _read(env, "KV_BUDGET", _switch)
        return cls(
            enabled=enabled is not False,
            max_wait=timeout if timeout is not None and timeout > 0 else None,
            keepalive_interval=keepalive if keepalive is not None and keepalive > 0 else DEFAULT_KEEPALIVE,
            max_waiting=_read(env, "MAX_QUEUE", int),
            waiting_per_slot=16 if per_slot is None else per_slot,
            min_waiting=64 if per_slot is None else None,
            kv_budget=kv_budget is not False,
        )


def _read(env: Mapping[str, str], setting: str, parse: Callable[[str], T]) -> T | None:
    for prefix in _PREFIXES:
        if prefix is _PREFIXES[-1] and setting in _NOT_UNDER_LAST_PREFIX:
            continue
        value = env.get(prefix + setting, "").strip()
        if value:
            try:
                return parse(value)
            except (ValueError, KeyError):
                warnings.warn(
                    f"{prefix}{setting}={value!r} is not understood; the default is used", stacklevel=3
                )
                return None
    return None


def _seconds(text: str) -> float:
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(text)
    return seconds


def _depth(text: str) -> int:
    depth = int(text)
    if depth < 1:
        raise ValueError(text)
    return depth


def _switch(text: str) -> bool:
    return _SWITCH[text.lower()]
