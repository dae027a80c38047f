"""Unix sockets, TLS, and sockets that a supervisor has opened."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
import trio

from tests.support.command import handing_over
from tests.support.raw_client import RawClient
from tests.support.serving import add_views, get
from tests.support.tls import Trust, make_trust
from trio_admission_web.launcher import LaunchError, run_server
from trio_admission_web.serving.app import ServingApp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FINDS = """
import os
from trio_admission_web.listening import take_inherited
print(take_inherited(), "LISTEN_FDS" in os.environ, take_inherited())
"""


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[str]:
    """Run a server for the block, and give the first address that it says."""
    app = ServingApp("app")
    add_views(app)
    ended = trio.Event()

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        await run_server(app, port=0, task_status=task_status, **options)
        ended.set()

    async with trio.open_nursery() as nursery:
        urls = await nursery.start(run)
        yield urls[0]
        signal.raise_signal(signal.SIGTERM)
        with trio.fail_after(5):
            await ended.wait()


async def ask_at(path: Path) -> bytes:
    async with await trio.open_unix_socket(path) as stream:
        return (await RawClient(stream).ask("GET", "/")).body


async def test_a_unix_socket_is_listened_on_and_its_file_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    async with running(unix=str(path)) as url:
        assert url == f"http://unix:{path}"
        assert await ask_at(path) == b"here"
    assert not path.exists()


async def test_the_file_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with running(unix=str(path)):
        assert await ask_at(path) == b"here"


async def test_the_file_of_a_living_server_stays(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    async with running(unix=str(path)):
        with pytest.raises(LaunchError, match=f"^cannot listen on http://unix:{path}: Address already"):
            await run_server(ServingApp("app"), unix=str(path))
        assert await ask_at(path) == b"here"


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(LaunchError, match="Address already in use"):
        await run_server(ServingApp("app"), unix=str(path))
    assert path.read_text() == "mine"


async def test_a_file_that_somebody_else_has_put_there_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    async with running(unix=str(path)):
        path.rename(tmp_path / "old.sock")
        path.write_text("mine")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("kind", [socket.AF_INET, socket.AF_UNIX])
async def test_who_has_come_before_the_end_and_was_not_accepted_is_still_served(
    kind: socket.AddressFamily, tmp_path: Path
) -> None:
    path = str(tmp_path / "gateway.sock")
    with ExitStack() as stack:
        async with running(unix=path if kind is socket.AF_UNIX else None) as url:
            address = path if kind is socket.AF_UNIX else ("127.0.0.1", int(url.rpartition(":")[2]))
            clients = [stack.enter_context(socket.socket(kind)) for _ in range(200)]
            for client in clients:  # with no checkpoint, so that the server can accept nobody
                client.settimeout(20)
                client.connect(address)
                client.sendall(get("/", "connection: close"))
        assert all(client.recv(4096).endswith(b"here") for client in clients)
        with pytest.raises(OSError, match=r"refused|No such file"):
            stack.enter_context(socket.socket(kind)).connect(address)


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return make_trust(tmp_path)


async def test_tls_is_spoken_with_the_certificate_that_was_given(trust: Trust) -> None:
    def ask(url: str) -> bytes:
        with urlopen(url, context=trust.client) as answer:
            return bytes(answer.read())

    async with running(tls=(trust.chain, trust.key)) as url:
        assert url.startswith("https://127.0.0.1:")
        assert await trio.to_thread.run_sync(ask, url) == b"here"
        async with RawClient.connected(url) as client:  # which speaks no TLS
            await client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"here" not in await client.read_to_end()


async def test_a_client_in_tls_that_does_not_read_does_not_hold_up_the_end(trust: Trust) -> None:
    async with running(tls=(trust.chain, trust.key), shutdown_deadline=0.2) as url:
        port = int(url.rsplit(":", 1)[1])
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=trust.client)
        await stream.send_all(b"GET /flood HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await stream.receive_some(100)
    await trio.aclose_forcefully(stream)


async def test_bad_files_for_tls_are_one_sentence(trust: Trust, tmp_path: Path) -> None:
    chain, key = trust.chain, trust.key
    missing, other = str(tmp_path / "none.pem"), tmp_path / "other.pem"
    other.write_text("nothing")
    for wrong, reason in (((missing, key), "No such file"), ((str(other), key), ""), ((chain, chain), "")):
        with pytest.raises(LaunchError, match=f"^cannot use {wrong[0]} and {wrong[1]} for TLS: {reason}"):
            await run_server(ServingApp("app"), tls=wrong)


def handed(listener: socket.socket, **said: str) -> subprocess.CompletedProcess[str]:
    """Start a process with a socket, and have it print what it finds."""
    return subprocess.run(
        [*handing_over(listener, **said), "-c", FINDS],
        pass_fds=[listener.fileno()],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_sockets_that_were_handed_over_are_taken_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert handed(listener).stdout == "[3] False []\n"
        assert handed(listener, pid=str(os.getpid())).stdout == "[] False []\n"  # meant for another process


def test_sockets_that_are_not_what_was_said_are_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert "Bad file descriptor" in handed(listener, count="9").stderr
        assert "LISTEN_FDS is not a number" in handed(listener, count="x").stderr
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        assert "descriptor 3 is no stream socket" in handed(listener).stderr
