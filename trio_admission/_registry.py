"""Pools by the name of their backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

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
        self._config = config
        self._park_budget = park_budget
        self._pools: dict[str, SlotPool] = {}
        self._discarded: set[str] = set()

    def get(self, name: str, slots: int) -> SlotPool:
        """Return the pool of that name; if there is none, make it with ``slots``. It is never resized."""
        self._sweep()
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = SlotPool(
                slots, name=name, config=self._config, park_budget=self._park_budget
            )
        return pool

    def discard(self, name: str) -> None:
        """Close a pool, and forget it as soon as nobody has anything of it.

        Until then, which includes resume tickets that are out, `get` returns the closed pool. An unknown name
        is ignored.
        """
        pool = self._pools.get(name)
        if pool is not None:
            pool.close()
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

    def _sweep(self) -> None:
        for name in tuple(self._discarded):
            if self._pools[name]._core.forgettable:  # the library's own
                self._discarded.remove(name)
                del self._pools[name]
