"""Lets in all who have come, where Trio lets in one in each round of its scheduler.

A round is as long as all that is to be done in it. With many streams at work on a busy machine that is a
tenth of a second, and a burst of clients, or who wants to cancel something, would wait at the door for long.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Final

import trio

AT_ONCE: Final = 64  # connections; there are others to serve, too


class EagerListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts connections of a listening socket, many in a round.

    Args:
        listening: The socket, whose owner this becomes.
    """

    def __init__(self, listening: trio.socket.SocketType) -> None:
        self.socket = listening
        self._listener = trio.SocketListener(listening)
        self._accepted: deque[trio.SocketStream] = deque()

    async def accept(self) -> trio.SocketStream:
        """Wait for a connection. A checkpoint only if none is there that was accepted together with another.

        So whoever is cancelled has left none behind. Errors are those of `trio.SocketListener.accept`.
        """
        if not self._accepted:
            self._accepted.append(await self._listener.accept())
            self._accept_more()
        return self._accepted.popleft()

    async def aclose(self) -> None:
        """Close the socket."""
        await self._listener.aclose()

    def _accept_more(self) -> None:
        listening = socket.socket(fileno=self.socket.fileno())
        try:
            while len(self._accepted) < AT_ONCE:
                accepted, _ = listening.accept()
                self._accepted.append(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))
        except OSError:
            pass  # nobody is there; or what is wrong is told by the next one that is waited for
        finally:
            listening.detach()


class TrioForHypercorn:
    """The module `trio` as Hypercorn sees it: with this listener."""

    SocketListener = EagerListener

    def __getattr__(self, name: str) -> Any:
        """Return what the module has."""
        return getattr(trio, name)
