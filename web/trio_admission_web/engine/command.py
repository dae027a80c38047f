"""Start a llama-server by its command line, wait until it can answer, and stop it."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Final

import trio

from ._errors import EngineError
from ._process import Engine, run_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GUARD: Final = Path(__file__).with_name("_guard.py")
_HOST: Final = "127.0.0.1"
# llama-server reads it. Every user of the machine can read a command line, but not an environment.
_KEY_VARIABLE: Final = "LLAMA_API_KEY"
_BETWEEN_LOOKS: Final = 0.2  # seconds
_LOOK_LIMIT: Final = 5.0  # seconds for a server to answer that it loads
_BETWEEN_WORDS: Final = 10.0  # seconds between two lines of progress
_REQUEST: Final = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_READY: Final = b"HTTP/1.1 200 "


def _ignore(_line: str) -> None: ...


def require_program(command: Sequence[str]) -> None:
    """See that the program of a command line is there.

    Raises:
        EngineError: It is not.
    """
    if which(command[0]) is None:
        raise EngineError(f"there is no program {command[0]} to run")


async def run_command(
    command: Sequence[str],
    *,
    progress: Callable[[str], None] = _ignore,
    task_status: trio.TaskStatus[Engine] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a llama-server until cancelled.

    `await nursery.start(run_command, command)` returns the `Engine` when it says that it is ready, however
    long it loads. It listens on a free port of 127.0.0.1 and asks for a key that is made for this one run.
    However this ends, the process is gone afterwards, and so it is when this process is killed; requests that
    are open then are cut.

    Args:
        command: The program and its arguments, without address and key.
        progress: Gets a line for each step, and one now and then while it loads.
        task_status: For `nursery.start`.

    Raises:
        EngineError: It did not start, or it has ended; with the last lines of its output.
    """
    api_key = secrets.token_urlsafe(32)
    port = _free_port()
    name = Path(command[0]).name
    progress(f"starting {name}")
    begun = said = trio.current_time()

    async def ready(process: trio.Process) -> Engine:
        nonlocal said
        while not await _is_ready(port):
            now = trio.current_time()
            if now - said >= _BETWEEN_WORDS:
                said = now
                progress(f"{name} has been loading for {now - begun:.0f} s")
            await trio.sleep(_BETWEEN_LOOKS)
        progress(f"{name} is ready after {trio.current_time() - begun:.1f} s")
        return Engine(f"http://{_HOST}:{port}", api_key, process.pid)

    await run_process(
        name,
        [sys.executable, "-IS", str(_GUARD), *command, "--host", _HOST, "--port", str(port)],
        environ={_KEY_VARIABLE: api_key},
        ready=ready,
        task_status=task_status,
        stdin=subprocess.PIPE,  # its end tells the guard that we are gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _free_port() -> int:
    """Return a port that nobody listens on. If somebody takes it first, the server says so and ends."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


async def _is_ready(port: int) -> bool:
    """Ask it, with so little HTTP that no client is needed for it."""
    answer = bytearray()
    with trio.move_on_after(_LOOK_LIMIT):
        try:
            async with await trio.open_tcp_stream(_HOST, port) as stream:
                await stream.send_all(_REQUEST)
                async for data in stream:
                    answer += data
        except (OSError, trio.BrokenResourceError):
            return False  # it does not listen yet, or has just ended
    return answer.startswith(_READY)
