"""The test of docs/how-to/test-your-own-code.md, run as its readers run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from trio_admission.testing import run_in_virtual_time

if TYPE_CHECKING:
    from trio_admission import SlotPool


@pytest.mark.trio(run=run_in_virtual_time)
async def test_the_second_waits_for_the_first(slot_pool: SlotPool) -> None:
    served = []

    async def visit() -> None:
        async with slot_pool.admit():
            served.append(trio.current_time())
            await trio.sleep(3600)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(visit)
        nursery.start_soon(visit)
    assert served == [0, 3600]
