"""The pool under test. A new kind of pool joins the suite by being added to the parameters here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from trio_admission import AdmissionConfig, ParkBudget, SlotPool

if TYPE_CHECKING:
    from trio_admission import Pool


class MakePool(Protocol):
    """Makes the pool that a test asks for."""

    async def __call__(
        self,
        slots: int,
        *,
        kv_tokens: int | None = None,
        config: AdmissionConfig = ...,
        park_budget: ParkBudget | None = None,
    ) -> Pool: ...


async def in_memory(
    slots: int,
    *,
    kv_tokens: int | None = None,
    config: AdmissionConfig = AdmissionConfig(),  # noqa: B008  # frozen
    park_budget: ParkBudget | None = None,
) -> Pool:
    return SlotPool(
        slots, kv_tokens=kv_tokens, config=config, park_budget=park_budget or ParkBudget.unlimited()
    )


@pytest.fixture(params=[in_memory])
def make_pool(request: pytest.FixtureRequest) -> MakePool:
    """An async function that makes a pool; parks are not bounded unless a test says so."""
    make: MakePool = request.param
    return make
