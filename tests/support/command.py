"""A command in a process of its own, as a person or a supervisor starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tests.support.serving import until

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

# What systemd does between fork and exec.
_HAND_OVER = """
import os, sys
listener, count, pid, *command = sys.argv[1:]
os.dup2(int(listener), 3)
os.environ |= {"LISTEN_FDS": count, "LISTEN_PID": pid or str(os.getpid())}
os.execv(sys.executable, [sys.executable, *command])
"""


@dataclass
class Command:
    """A running command, the first address that it printed, and all that it has said."""

    process: trio.Process
    url: str
    said: bytearray


@asynccontextmanager
async def running(
    *command: str, sign: bytes = b"listening on", listener: socket.socket | None = None, **environ: str
) -> AsyncIterator[Command]:
    """Start a Python module with arguments and wait until it listens; it must end with the block."""
    starter = [sys.executable] if listener is None else handing_over(listener)
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                [*starter, "-m", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
                pass_fds=() if listener is None else (listener.fileno(),),
                check=False,
            )
        )
        said = bytearray()
        nursery.start_soon(_read_all, process.stdout, said)
        url = re.compile(rb"^" + sign + rb" (https?://\S+)", re.MULTILINE)
        await until(lambda: url.search(said) or process.returncode is not None, seconds=30)
        found = url.search(said)
        assert found, said.decode()
        yield Command(process, found[1].decode(), said)
        with trio.fail_after(10):
            await process.wait()


def handing_over(listener: socket.socket, count: str = "1", pid: str = "") -> list[str]:
    """What starts Python with a socket as its descriptor 3, and says so as systemd does.

    Args:
        listener: To be passed on to the new process under its own number.
        count: How many sockets that is, as it is said.
        pid: For which process they are, as it is said; empty = that one.
    """
    return [sys.executable, "-c", _HAND_OVER, str(listener.fileno()), count, pid]


async def _read_all(stream: Any, into: bytearray) -> None:
    async for data in stream:
        into += data
