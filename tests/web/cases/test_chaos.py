"""B11 and the end of every case: whatever clients do, nothing is left of them."""

from __future__ import annotations

import gc
import random
import sys
from typing import TYPE_CHECKING, Any

from tests.support.chaos import Chaos
from tests.support.serving import descriptors
from tests.support.stage import stage
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer

if TYPE_CHECKING:
    import pytest


async def test_clients_of_mixed_manners_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    before = descriptors()
    llama = FakeLlamaServer(total_slots=4, words=20, interval=0.005, infill=True)
    async with stage(llama, admission=AdmissionConfig(keepalive_interval=0.2)) as both:
        ends = await Chaos(both.server, random.Random(7)).run(120)
        gc.collect()
    assert sum(ends.values()) == 120
    assert llama.max_in_flight <= 4
    assert descriptors() <= before
    assert not unraisable
