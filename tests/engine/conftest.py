"""Real engines. They cost real time: share the session's one where its options serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.engine import RunningEngine, engine_in_a_thread, small
from trio_admission_web.engine import run_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trio

StartEngine = Callable[..., Awaitable[RunningEngine]]


@pytest.fixture(scope="session")
def engine() -> Iterator[RunningEngine]:
    """The engine that all tests share: 4 isolated slots of 1024 tokens, idle when a test begins and ends."""
    with engine_in_a_thread(small()) as running:
        yield running


@pytest.fixture
def start_engine(nursery: trio.Nursery) -> StartEngine:
    """Start an engine of the test's own, with options of `EngineConfig`; it ends with the test."""

    async def start(**options: object) -> RunningEngine:
        config = small(**options)
        return RunningEngine(await nursery.start(run_engine, config), config.slots)

    return start
