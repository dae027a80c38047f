"""Connections to backends, by name and by number."""

from __future__ import annotations

import socket
import ssl

import pytest
import trio

from tests.support.serving import descriptors
from trio_admission_web.network import connect, reason_of


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


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("127.0.0.1", "connection refused"),
        ("localhost", "connection refused"),
        ("no-such-host.invalid", "no such host"),
        ("no..host", "no such host"),
    ],
)
async def test_the_reason_is_told_without_the_address(host: str, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the text is what the test is about
        await connect(host, port)
    assert reason_of(caught.value) == reason


def test_the_reason_is_that_of_the_first_cause_that_says_one() -> None:
    closed = RuntimeError()
    closed.__cause__ = ExceptionGroup("of two addresses", [OSError(), ConnectionResetError(104, "secret")])
    assert reason_of(closed) == ""
    closed.__cause__ = ExceptionGroup("of two addresses", [ConnectionResetError(104, "secret")])
    assert reason_of(closed) == "connection reset by peer"
    assert (
        reason_of(ssl.SSLCertVerificationError(1, "certificate verify failed")) == "certificate verify failed"
    )
