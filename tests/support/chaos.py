"""Clients of mixed manners."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import trio

from tests.support.generation import ASKS

if TYPE_CHECKING:
    import random

    from tests.support.generation import Ask
    from tests.support.raw_client import RawClient
    from tests.support.serving import Server

WAYS = ("read", "read", "leave", "reset", "half a body", "nonsense", "cancelled", "idle")
PATIENCE = 120.0  # seconds; who is still here then is stuck


class Chaos:
    """Many clients at once.

    Args:
        server: Whom they visit.
        rng: Decides who does what, and when.
    """

    def __init__(self, server: Server, rng: random.Random) -> None:
        self._server = server
        self._rng = rng
        self._ends: Counter[str] = Counter()

    async def run(self, clients: int) -> Counter[str]:
        """Let them come and go, and return how often each way ended in what."""
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number in range(clients):
                    nursery.start_soon(self._visit, f"chaos-{number}")
        return self._ends

    async def _visit(self, name: str) -> None:
        rng = self._rng
        way, ask, stream = rng.choice(WAYS), rng.choice(ASKS), rng.random() < 0.6
        await trio.sleep(rng.random())
        try:
            async with self._server.client() as client:
                end = await self._behave(client, way, ask, name, stream=stream)
        except (trio.BrokenResourceError, EOFError):
            end = "cut"
        self._ends[f"{way}: {end}"] += 1

    async def _behave(self, client: RawClient, way: str, ask: Ask, name: str, *, stream: bool) -> str:
        body = ask.body | {"stream": stream}
        named = [("X-Request-Id", name)]
        if way == "nonsense":
            await client.send(self._rng.randbytes(40) + b"\r\n\r\n")
            return str((await client.read_head()).status)
        if way == "half a body":
            raw = json.dumps(body).encode()
            head = f"POST {ask.path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
            await client.send(head.encode() + raw[: len(raw) // 2])
            await trio.sleep(self._rng.random() / 2)
            return "left"
        await client.request("POST", ask.path, body, named)
        if way in {"leave", "reset"}:
            await trio.sleep(self._rng.random() * 3)
            if way == "reset":
                client.reset()
            return "left"
        if way == "cancelled":
            await trio.sleep(self._rng.random())
            async with self._server.client() as other:
                await other.ask("DELETE", f"/admission/requests/{name}")
        if way == "idle":
            await trio.sleep(1)
        answer = await client.read_answer()
        assert answer.complete
        return str(answer.status)
