"""Pools by the name of their backend."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

from trio.lowlevel import enable_ki_protection

from ._pool import DEFAULT_CONFIG, SlotPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._budget import ParkBudget
    from ._config import AdmissionConfig


@final
class PoolRegistry:
    """The pools of several backends; each is made when it is first asked for.

    Args:
        config: The settings of the pools that it makes.
        park_budget: The budget that they share; None = that of their Trio run.
    """

    def __init__(
        self, *, config: AdmissionConfig = DEFAULT_CONFIG, park_budget: ParkBudget | None = None
    ) -> None:
        self._make = partial(SlotPool, config=config, park_budget=park_budget)
        self._pools: dict[str, SlotPool] = {}
        self._discarded: set[str] = set()

    def get(self, name: str, slots: int) -> SlotPool:
        """Return the pool of that name; if there is none, make it with ``slots``. It is never resized."""
        self._sweep()
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = self._make(slots, name=name)
        return pool

    @enable_ki_protection
    def discard(self, name: str) -> None:
        """Refuse newcomers to a pool, and forget it as soon as nobody has anything of it.

        Those who wait are served, as are holders; for a backend that is gone for good, `SlotPool.close` ends
        their wait. Until nobody is left and no resume ticket is out, `get` returns that pool. An unknown name
        is ignored.
        """
        pool = self._pools.get(name)
        if pool is not None:
            pool._core.close(dismiss=False)
            self._discarded.add(name)
            self._sweep()

    def __iter__(self) -> Iterator[SlotPool]:
        self._sweep()
        return iter(tuple(self._pools.values()))

    def __len__(self) -> int:
        self._sweep()
        return len(self._pools)

    def __contains__(self, name: object) -> bool:
        self._sweep()
        return name in self._pools

    @enable_ki_protection
    def _sweep(self) -> None:
        for name in tuple(self._discarded):
            core = self._pools[name]._core
            if core.tickets:
                core.forget_tickets(core.now())
            if core.idle and not core.tickets:
                self._discarded.remove(name)
                del self._pools[name]
