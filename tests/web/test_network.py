"""Connections to backends, by name and by number."""

from __future__ import annotations

import socket
import ssl

import pytest
import trio

from tests.support.serving import descriptors
from trio_admission_web.network import connect, leads_to, reason_of


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


@pytest.mark.parametrize(
    ("url", "host", "leads"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", True),
        ("http://localhost:8000/base", "127.0.0.1", True),
        ("http://127.0.0.1:8000", "localhost", True),
        ("http://127.1:8000", "127.0.0.1", True),
        ("http://0.0.0.0:8000", "127.0.0.1", True),
        ("http://[::ffff:127.0.0.1]:8000", "127.0.0.1", True),
        ("http://[::1]:8000", "::", True),
        ("http://[::]:8000", "::1", True),
        ("http://127.0.0.1:8000", "0.0.0.0", True),
        (f"http://{socket.gethostname()}:8000", "0.0.0.0", True),
        ("http://127.0.0.1:8001", "127.0.0.1", False),
        ("http://127.0.0.1", "127.0.0.1", False),
        ("http://127.0.0.2:8000", "127.0.0.1", False),
        ("http://192.0.2.1:8000", "0.0.0.0", False),
        ("http://127.0.0.1:8000", "::1", False),
        ("http://no-such-host.invalid:8000", "0.0.0.0", False),
        ("http://no..host:8000", "127.0.0.1", False),
    ],
)
def test_an_address_in_any_spelling_leads_to_who_listens_there(url: str, host: str, leads: bool) -> None:
    assert leads_to(url, host, 8000) is leads
