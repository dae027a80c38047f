"""Where connections come in: an address, a unix socket, or sockets that the one who started us has opened."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import socket
import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log: Final = logging.getLogger(__name__)

# Connections that wait to be accepted; Hypercorn's 100 are few for clients that come in bursts.
BACKLOG: Final = 1000
HANDSHAKE: Final = 0.2  # seconds for a connection that has begun to become one that can be accepted
_FIRST_INHERITED: Final = 3  # systemd's rule

# Drops what opens a TCP connection, and nothing else, in the language of Linux's socket filters.
_SO_ATTACH_FILTER: Final = 26
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte of the TCP header that has the flags
    (0x45, 0, 1, 0x02),  # is SYN not among them? then skip one
    (0x06, 0, 0, 0),  # keep nothing of the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # keep all of it
)


@dataclass(frozen=True)
class Door:
    """Listening sockets, by their descriptors, from which somebody accepts."""

    sockets: list[int]
    turn_away: Callable[[], None] | None = None
    """Lets nobody new come, and leaves those alone who have. None: a supervisor keeps the sockets open, and
    whoever is not accepted here is accepted by our successor."""

    async def shut(self) -> None:
        """Let nobody new come, and block until everybody who has come is accepted. Then close the sockets.

        The kernel makes connections before anybody accepts them, and to close the socket resets those that
        still wait: their clients would never know whether they were served.
        """
        if self.turn_away is None:
            return
        self.turn_away()
        await trio.sleep(HANDSHAKE)
        waiting = select.poll()
        for each in self.sockets:
            waiting.register(each, select.POLLIN)
        while waiting.poll(0):  # noqa: ASYNC110 - only one task may wait for a socket, and another accepts
            await trio.sleep(0.01)


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


async def listen_at_address(host: str, port: int) -> Door:
    """Listen on a port of an address, or of all addresses of a name."""
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    sockets = [listener.socket.detach() for listener in listeners]
    return Door(sockets, partial(_drop_newcomers, sockets))


@contextmanager
def listening_at_path(path: Path) -> Iterator[Door]:
    """Listen at a path, whose file goes with the block. A file that a dead server has left is replaced."""
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(BACKLOG)
        ours = path.stat()
        descriptor = listener.detach()

    def remove() -> None:
        with suppress(FileNotFoundError):
            if os.path.samestat(ours, path.stat()):
                path.unlink()

    try:
        yield Door([descriptor], remove)
    finally:
        remove()


def _drop_newcomers(sockets: list[int]) -> None:
    # The kernel offers no other way: `listen(0)` only shortens the backlog, and `shutdown` resets it. Who
    # comes now asks again after a second, and is refused if the socket is closed by then.
    program = struct.pack("=" + "HBBI" * len(_DROP_SYN), *(part for each in _DROP_SYN for part in each))
    code = ctypes.create_string_buffer(program, len(program))
    reference = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(code))
    for descriptor in sockets:
        listener = socket.socket(fileno=descriptor)
        try:
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, reference)
        except OSError as error:  # not Linux
            log.warning("connections of the last moment may be reset: %s", error.strerror)
        finally:
            listener.detach()


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
