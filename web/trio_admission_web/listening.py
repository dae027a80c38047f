"""Where connections come in: an address, a unix socket, or sockets that the one who started us has opened."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Connections that wait to be accepted; Hypercorn's 100 are few for clients that come in bursts.
BACKLOG: Final = 1000
_FIRST_INHERITED: Final = 3  # systemd's rule


def take_inherited() -> list[int]:
    """Return the sockets that this process was started with, as systemd hands them over; mostly none.

    They are said by ``LISTEN_PID`` and ``LISTEN_FDS``, which are taken out of the environment.

    Raises:
        OSError: They are not what was said.
    """
    said = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if said["LISTEN_PID"] != str(os.getpid()):  # meant for a process that has started this one
        return []
    if not said["LISTEN_FDS"].isdecimal():
        raise OSError(errno.EINVAL, "LISTEN_FDS is not a number")
    handed = range(_FIRST_INHERITED, _FIRST_INHERITED + int(said["LISTEN_FDS"]))
    for descriptor in handed:
        listener = socket.socket(fileno=descriptor)
        kind = listener.type
        listener.detach()
        if kind != socket.SOCK_STREAM:
            raise OSError(errno.EPROTOTYPE, f"descriptor {descriptor} is no stream socket")
    return list(handed)


async def listen_at_address(host: str, port: int) -> list[int]:
    """Listen on a port of an address, or of all addresses of a name, and return the sockets."""
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    return [listener.socket.detach() for listener in listeners]


@contextmanager
def listening_at_path(path: Path) -> Iterator[int]:
    """Listen at a path, whose file goes with the block. A file that a dead server has left is replaced."""
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(BACKLOG)
        ours = path.stat()
        descriptor = listener.detach()
    try:
        yield descriptor
    finally:
        with suppress(FileNotFoundError):
            if os.path.samestat(ours, path.stat()):
                path.unlink()


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        with suppress(BlockingIOError):  # somebody listens, and is busy
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
