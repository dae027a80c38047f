"""Hypercorn as it comes, for tests that show what it does."""

from __future__ import annotations

import hypercorn.protocol
import hypercorn.trio.run
import hypercorn.trio.tcp_server
import pytest
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put Hypercorn's own classes back for one test. Its application must not be a ServingApp."""
    monkeypatch.setattr(hypercorn.trio.run, "TCPServer", TCPServer)
    monkeypatch.setattr(hypercorn.trio.tcp_server, "TaskGroup", TaskGroup)
    monkeypatch.setattr(hypercorn.protocol, "H11Protocol", H11Protocol)
    monkeypatch.setattr(hypercorn.protocol, "H2Protocol", H2Protocol)
