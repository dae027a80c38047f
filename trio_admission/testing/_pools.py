"""The pool that shows that a test asks anything of a pool."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from trio_admission import AdmissionConfig, SlotPool

if TYPE_CHECKING:
    from trio_admission import ParkBudget

_DEFAULT = AdmissionConfig()


@final
class OpenPool(SlotPool):
    """A pool that admits everybody at once, whatever its size: the negative control.

    A test that shows that no more than so many run at once, or that somebody waits or is refused, must fail
    with this pool in place of a `SlotPool`. It takes the arguments of a `SlotPool` and is one with its
    control off: `Lease.slot` is None, and nothing is held, waiting or parked.
    """

    def __init__(
        self,
        slots: int,
        *,
        name: str = "",
        kv_tokens: int | None = None,
        config: AdmissionConfig = _DEFAULT,
        park_budget: ParkBudget | None = None,
    ) -> None:
        super().__init__(
            slots,
            name=name,
            kv_tokens=kv_tokens,
            config=dataclasses.replace(config, enabled=False),
            park_budget=park_budget,
        )
