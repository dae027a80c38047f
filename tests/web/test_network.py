"""Connections to backends, by name and by number."""

from __future__ import annotations

import socket

import pytest
import trio

from tests.support.serving import descriptors
from trio_admission_web.network import connect


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), ("localhost", socket.AF_INET), ("::1", socket.AF_INET6)],
)
async def test_a_server_is_reached_by_number_and_by_name(host: str, family: socket.AddressFamily) -> None:
    address = "::1" if family is socket.AF_INET6 else "127.0.0.1"
    with socket.create_server((address, 0), family=family) as server:
        async with await connect(host, server.getsockname()[1]) as stream:
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"here")
            assert await stream.receive_some() == b"here"


async def test_who_is_not_there_leaves_no_descriptor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    before = descriptors()
    with pytest.raises(ConnectionRefusedError):
        await connect("127.0.0.1", port)
    with trio.move_on_after(0):
        await connect("127.0.0.1", port)
    assert descriptors() == before
