"""A real engine for tests: llama.cpp with SmolLM2-135M-Instruct, in a child process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import httpx2
import trio

from trio_admission_web.engine import Engine, EngineConfig, find_model, run_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHAT = "/v1/chat/completions"

# A server that is asked for /slots or /metrics more than once a second does not notice that the client of a
# request without a stream has gone: it looks at the socket only after a second in which it delivered nothing
# to anybody. So a test may look once whenever it likes, but it polls only for the end of streams; what passes
# through the gateway is one, whatever its client has asked for.
POLL_INTERVAL = 0.1

# Where the words do not matter: the template's own sentence costs more tokens than the question.
NO_SYSTEM = {"role": "system", "content": ""}


def small(**options: Any) -> EngineConfig:
    """One thread, so that a busy machine does not make the engine's own threads wait for each other."""
    defaults: dict[str, Any] = {"model": find_model(), "slots": 4, "context_per_slot": 1024, "threads": 1}
    return EngineConfig(**defaults | options)


@dataclass(frozen=True)
class RunningEngine:
    """An engine and what a test asks of it."""

    engine: Engine
    slots: int

    @property
    def url(self) -> str:
        return self.engine.url

    @property
    def api_key(self) -> str:
        return self.engine.api_key

    def client(self) -> httpx2.AsyncClient:
        """A client that talks to the engine directly, past any gateway."""
        return httpx2.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {self.api_key}"},
            timeout=60,
            trust_env=False,
            verify=False,  # to read the certificates, for plain HTTP, would take longer than an answer
        )

    async def get(self, path: str) -> httpx2.Response:
        async with self.client() as client:
            return (await client.get(path)).raise_for_status()

    async def slot_states(self) -> list[dict[str, Any]]:
        """Look at /slots once."""
        states: list[dict[str, Any]] = (await self.get("/slots")).json()
        return states

    async def busy_slots(self) -> set[int]:
        """Look once at which slots decode now."""
        return {state["id"] for state in await self.slot_states() if state["is_processing"]}

    async def metrics(self) -> dict[str, float]:
        """Look at /metrics once; names as the server gives them, such as ``llamacpp:requests_deferred``."""
        lines = (await self.get("/metrics")).text.splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if line[:1] != "#")}

    async def idle(self) -> None:
        """Wait until no slot decodes, half a minute at most. Whose client has gone must be a stream."""
        with trio.fail_after(30):
            while await self.busy_slots():  # noqa: ASYNC110 - the server announces nothing
                await trio.sleep(POLL_INTERVAL)

    async def until_deferred(self, count: int) -> None:
        """Wait until so many requests stand in the server's own line, half a minute at most.

        All requests must be streams.
        """
        with trio.fail_after(30):
            while (await self.metrics())["llamacpp:requests_deferred"] < count:  # noqa: ASYNC110 - as above
                await trio.sleep(POLL_INTERVAL)


@contextmanager
def engine_in_a_thread(config: EngineConfig) -> Iterator[RunningEngine]:
    """Run an engine in a Trio run of its own, so that it outlives the runs of the tests that share it."""
    started: SimpleQueue[tuple[Engine, Callable[[], None]] | None] = SimpleQueue()

    async def run() -> None:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            engine = await nursery.start(run_engine, config)
            started.put((engine, lambda: token.run_sync_soon(nursery.cancel_scope.cancel)))

    with ThreadPoolExecutor(1) as thread:
        finished = thread.submit(trio.run, run)
        finished.add_done_callback(lambda _finished: started.put(None))
        running = started.get()
        if running is None:
            finished.result()
            raise AssertionError("an engine runs until it is stopped")
        engine, stop = running
        try:
            yield RunningEngine(engine, config.slots)
        finally:
            if not finished.done():
                stop()
            finished.result(timeout=10)
