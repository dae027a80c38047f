"""The pytest fixture of the fake llama-server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .fake_llama_server import FakeLlamaServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def fake_llama_server() -> AsyncIterator[FakeLlamaServer]:
    """Give a running fake llama-server with four slots; `restart(total_slots=...)` changes that."""
    async with FakeLlamaServer() as server:
        yield server
