"""A supervised command, on the real engine: it starts, crashes, comes back elsewhere, and goes for good."""

from __future__ import annotations

import os
import signal
from functools import partial

import httpx2
import trio

from tests.support.engine import CHAT
from tests.support.llama_server import COMMAND
from tests.support.processes import children, is_gone
from tests.support.serving import until
from trio_admission_web.engine import find_model
from trio_admission_web.settings import BackendSettings
from trio_admission_web.supervision import Patience, starter, supervise


async def answer_of(url: str, api_key: str) -> str:
    body = {"messages": [{"role": "user", "content": "Name a colour."}], "temperature": 0, "max_tokens": 8}
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        reply = (await client.post(CHAT, json=body)).raise_for_status().json()
    return str(reply["choices"][0]["message"]["content"])


async def slots_of(url: str, api_key: str) -> int:
    async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        reply = await client.get("/props", headers={"authorization": f"Bearer {api_key}"})
    return int(reply.raise_for_status().json()["total_slots"])


async def test_a_killed_server_comes_back_on_another_port_and_is_gone_at_the_end() -> None:
    words = (*COMMAND, "-m", str(find_model().path), "-np", "2", "-c", "1024")
    start = starter(BackendSettings(name="own", command=words))
    assert start is not None
    ups: list[tuple[str, str]] = []
    downs: list[str] = []
    before = set(children(os.getpid()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                supervise,
                "own",
                start,
                up=lambda *address: ups.append(address),
                down=downs.append,
                given_up=downs.append,
                has_worked=lambda: True,
                patience=Patience(first_pause=0.1),
            )
        )
        await until(lambda: len(ups) == 1, seconds=60)
        first = await answer_of(*ups[0])
        assert first
        assert await slots_of(*ups[0]) == 2
        [guard] = set(children(os.getpid())) - before
        [server] = children(guard)
        os.kill(server, signal.SIGKILL)
        await until(lambda: len(ups) == 2, seconds=60)
        assert "stopped by itself (exit status 137)" in downs[0]
        assert ups[0] != ups[1]
        assert await answer_of(*ups[1]) == first
        [guard] = set(children(os.getpid())) - before
        [server] = children(guard)
        nursery.cancel_scope.cancel()
    assert len(downs) == 1
    assert is_gone(guard)
    assert is_gone(server)
