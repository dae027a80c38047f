"""One key floods the line, and another hardly notices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, api_key, call, chat, gateway, shown
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer

if TYPE_CHECKING:
    from trio.testing import MockClock

SLOTS = 4
SERVICE = 2.0


@pytest.mark.parametrize(("fair", "flood"), [(True, 1000), (False, 100)])
async def test_a_flood_of_one_flow_delays_another_by_one_service_at_most(
    autojump_clock: MockClock, *, fair: bool, flood: int
) -> None:
    server = FakeLlamaServer(total_slots=SLOTS, words=1, interval=SERVICE)
    line = AdmissionConfig(max_waiting=0)
    keys = (
        api_key("loud", flow="loud" if fair else "all"),
        api_key("quiet", flow="quiet" if fair else "all"),
    )
    async with gateway(server, keys=keys, admission=line) as app, trio.open_nursery() as nursery:
        for _ in range(flood):
            nursery.start_soon(partial(call, app, CHAT, chat(), headers=shown("loud")))
        await wait_all_tasks_blocked()
        assert app.gateway.backend.pool.statistics().waiting == flood - SLOTS
        waits = []
        for _ in range(3):
            reply = await call(app, CHAT, chat(), headers=shown("quiet"))
            waits.append(reply.seconds - SERVICE)
        if fair:
            assert max(waits) <= SERVICE + 0.01
        else:  # what it would be
            assert waits[0] >= (flood - SLOTS) / SLOTS * SERVICE
        nursery.cancel_scope.cancel()
