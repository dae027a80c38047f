"""The server says where it listens, obeys signals, and ends in bounded time."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import trio
from hypercorn.utils import LifespanFailureError
from trio.testing import wait_all_tasks_blocked

from tests.support.raw_client import RawClient
from tests.support.serving import add_views, get, post
from trio_admission_web import launcher
from trio_admission_web.launcher import LaunchError, launch, run_server
from trio_admission_web.serving.app import ServingApp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

PROGRAM = """
import os
import sys
from functools import partial

import trio

from trio_admission_web.launcher import launch, run_server
from trio_admission_web.serving.app import ServingApp

app = ServingApp("app")

@app.get("/")
async def index():
    return "here"

@app.before_serving
async def start():
    if seconds := os.environ.get("CRASH_AFTER"):
        app.nursery.start_soon(crash, float(seconds))

async def crash(seconds):
    await trio.sleep(seconds)
    raise LookupError("crashed")

if __name__ == "__main__":
    sys.exit(launch(partial(run_server, app, port=int(sys.argv[1]))))
"""


def make_app() -> ServingApp:
    app = ServingApp("app")
    add_views(app)
    return app


@dataclass
class Running:
    """A running server. `ended` is set when `run_server` has returned."""

    url: str
    ended: trio.Event


@asynccontextmanager
async def running(app: ServingApp, **options: Any) -> AsyncIterator[Running]:
    """Run a server on a free port, and check that the block has made it end."""
    ended = trio.Event()

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        await run_server(app, port=0, task_status=task_status, **options)
        ended.set()

    async with trio.open_nursery() as nursery:
        urls = await nursery.start(run)
        yield Running(urls[0], ended)
        with trio.fail_after(5):
            await ended.wait()


async def refused(url: str) -> None:
    """Wait until nobody listens any more."""
    with trio.fail_after(5), suppress(OSError):
        while True:
            async with RawClient.connected(url):
                await trio.sleep(0.005)


async def test_it_says_where_it_listens(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(make_app()) as server:
        assert capsys.readouterr().out == f"listening on {server.url}\n"
        async with RawClient.connected(server.url) as client:
            assert (await client.ask("GET", "/")).body == b"here"
        signal.raise_signal(signal.SIGTERM)


async def test_an_ipv6_address_is_bracketed(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(make_app(), host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert capsys.readouterr().out == f"listening on {server.url}\n"
        signal.raise_signal(signal.SIGINT)


async def test_a_name_is_listened_on_at_all_its_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    async with running(make_app(), host="localhost"):
        assert len(capsys.readouterr().out.splitlines()) == len(addresses)
        signal.raise_signal(signal.SIGINT)


async def test_the_first_signal_lets_requests_finish() -> None:
    async with running(make_app()) as server, RawClient.connected(server.url) as client:
        await client.send(post("/read", "content-length: 3") + b"ab")
        await wait_all_tasks_blocked(0.02)
        signal.raise_signal(signal.SIGTERM)
        await wait_all_tasks_blocked(0.02)
        await refused(server.url)
        await client.send(b"c")
        assert (await client.read_answer()).body == b"3"


async def test_drain_is_called_while_requests_are_still_accepted() -> None:
    draining, drained = trio.Event(), trio.Event()

    async def drain() -> None:
        draining.set()
        await drained.wait()

    async with running(make_app(), drain=drain) as server:
        signal.raise_signal(signal.SIGTERM)
        await draining.wait()
        async with RawClient.connected(server.url) as client:
            assert (await client.ask("GET", "/")).status == 200
        drained.set()


async def test_a_drain_that_is_cancelled_at_the_deadline_leaves_a_moment_for_last_words() -> None:
    app, cut = make_app(), trio.Event()

    @app.get("/last-words")
    async def last_words() -> str:
        await cut.wait()
        await trio.sleep(0.1)
        return "the server stops"

    async def drain() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cut.set()

    async with (
        running(app, drain=drain, shutdown_deadline=0.1) as server,
        RawClient.connected(server.url) as client,
    ):
        await client.send(get("/last-words"))
        await wait_all_tasks_blocked(0.02)
        signal.raise_signal(signal.SIGTERM)
        assert (await client.read_answer()).body == b"the server stops"


async def test_clients_that_stall_do_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LAST_WORDS", 0.1)
    async with running(make_app(), shutdown_deadline=0.2) as server, AsyncExitStack() as stack:
        for half in (
            b"GET / HT",
            get("/silent"),
            get("/events"),
            get("/flood"),
            post("/read", "content-length: 9"),
        ):
            client = await stack.enter_async_context(RawClient.connected(server.url))
            await client.send(half)
        await wait_all_tasks_blocked(0.05)
        signal.raise_signal(signal.SIGTERM)
        with trio.fail_after(2):
            await server.ended.wait()


async def test_the_second_signal_ends_everything_at_once() -> None:
    options = {"shutdown_deadline": 1000, "drain": trio.sleep_forever}
    async with running(make_app(), **options) as server, RawClient.connected(server.url) as client:
        await client.send(get("/events"))
        await client.read_until(b"data: x")
        signal.raise_signal(signal.SIGTERM)
        await wait_all_tasks_blocked(0.02)
        signal.raise_signal(signal.SIGTERM)
        await client.read_to_end()


async def test_a_signal_before_it_listens_ends_it() -> None:
    app, starting = make_app(), trio.Event()

    @app.before_serving
    async def start() -> None:
        starting.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_server, app, port=0))
        await starting.wait()
        signal.raise_signal(signal.SIGTERM)


async def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(LaunchError) as failed:
        port = taken.getsockname()[1]
        await run_server(make_app(), port=port)
    assert str(failed.value) == f"cannot listen on http://127.0.0.1:{port}: Address already in use"


async def test_an_address_that_is_not_ours_is_one_sentence() -> None:
    with pytest.raises(LaunchError, match=r"^cannot listen on http://\[2001:db8::1\]:1: [A-Z][a-z ]*$"):
        await run_server(make_app(), host="2001:db8::1", port=1)


async def test_a_background_crash_is_raised() -> None:
    app = make_app()

    async def crash() -> None:
        raise LookupError("crashed")

    @app.before_serving
    async def start() -> None:
        app.nursery.start_soon(crash)

    with pytest.raises(ExceptionGroup) as died:
        await run_server(app, port=0)
    assert died.value.subgroup(LifespanFailureError)


def test_launch_turns_a_launch_error_into_a_line_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery, trio.open_nursery():
            nursery.start_soon(trio.sleep_forever)
            raise LaunchError("no model")

    assert launch(main) == 1
    assert capsys.readouterr().err == "trio-admission: no model\n"


def test_launch_raises_other_errors() -> None:
    async def main() -> None:
        raise LookupError("crashed")

    with pytest.raises(LookupError):
        launch(main)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@contextmanager
def started(
    *command: str | Path, says: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a command and read until it has printed an URL behind `says`."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    )
    with process:
        assert process.stdout
        try:
            for line in process.stdout:
                if found := re.search(f"{says} (http://\\S+)", line):
                    yield process, found[1]
                    return
            raise AssertionError("it has ended")
        finally:
            process.kill()


def test_a_signal_ends_the_process_with_status_0(program: Path) -> None:
    with started(program, "0", says="listening on") as (process, url):
        assert urlopen(url).read() == b"here"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
        assert (process.returncode, output) == (0, "")


def test_a_port_in_use_ends_the_process_with_one_line(program: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, program, str(port)], capture_output=True, text=True, check=False, timeout=30
        )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert (
        ended.stderr == f"trio-admission: cannot listen on http://127.0.0.1:{port}: Address already in use\n"
    )


def test_the_crash_of_a_background_task_ends_the_process_loudly(program: Path) -> None:
    with started(program, "0", says="listening on", CRASH_AFTER="0.2") as (process, _):
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "LookupError: crashed" in output


def test_the_command_of_hypercorn_serves_it_hardened(program: Path) -> None:
    command = "-m", "hypercorn", "-k", "trio", "-b", "127.0.0.1:0", f"{program.with_suffix('')}:app"
    with started(*command, says="Running on") as (process, url):
        address = urlsplit(url).hostname, urlsplit(url).port
        for attack in (
            get("/", "connection: upgrade", "upgrade: websocket") + b"?",
            b"PRI * HTTP/2.0\r\n\r\n",
        ):
            with socket.create_connection(address) as client:
                client.sendall(attack)
                assert client.recv(100)
        assert urlopen(url).read() == b"here"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_the_command_of_hypercorn_ends_when_a_background_task_crashes(program: Path) -> None:
    command = "-m", "hypercorn", "-k", "trio", "-b", "127.0.0.1:0", f"{program.with_suffix('')}:app"
    with started(*command, says="Running on", CRASH_AFTER="0.2") as (process, _):
        output, _ = process.communicate(timeout=30)
        assert "LookupError: crashed" in output
