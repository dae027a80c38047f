"""One TCP connection of Hypercorn's Trio worker, without its ways to take the server down.

What Hypercorn 0.18 does wrong, and what is done about it here:

* An exception in one connection's tasks leaves `serve()`, so one malformed request ends the process. `run`
  keeps it inside.
* A write is shielded from cancellation and has no deadline, so a client that stops reading keeps its handler
  for as long as it likes, shutdown included. `_write` has one, and the end of the reader ends the writers.
* The reader, once the queue of an application is full that has failed without reading it, waits for ever.
  `RequestTasks` ends that wait.
* An answer that is given before its request has come in is followed by a reset, which may destroy the answer.
  `HangUp` closes in the order that HTTP asks for.
* After a client has closed an idle connection, its socket stays open until the idle timer runs out.
* A server that stops closes idle connections at once, also one whose request is on its way. `_idle_timeout`
  waits for it. It is one task for a connection, where Hypercorn starts one for each pause between requests.
"""

from __future__ import annotations

import os
import select
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup, _handle
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.typing import AppWrapper, ASGIReceiveCallable, ASGIReceiveEvent, ASGISendEvent, Scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config

WRITE_TIMEOUT = 30.0  # seconds for a client to take one piece
WRITE_PIECE = 64 * 1024  # bytes; small enough that a slow but steady reader takes one in time
LINGER = 1.0  # seconds in which a client may finish what it is sending before the connection is closed

# Seconds for which a server that stops still takes a request on an idle connection: it may be on its way, and
# its client would never know whether it was served.
LAST_CALL = 0.5


@dataclass(frozen=True)
class HangUp(Closed):
    """Say that nothing more is sent, then close once the client has stopped sending or `LINGER` has passed.

    Closing at once with bytes unread would send a reset, and a reset can destroy the answer on its way.
    """


@dataclass(frozen=True)
class Leave(Event):
    """Tells the protocol that its connection has been idle for long enough. It hangs up if it can say so."""


class Transport(TCPServer):
    """A connection whose failures stay its own and whose client cannot hold a task by not reading."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._idling = trio.CancelScope()  # has a deadline while no request is there
        self._looking = False  # at what has been read
        self._hung_up = False  # we have said that nothing more is sent

    async def run(self) -> None:
        """Serve the connection until it ends; whatever goes wrong in it is logged and ends it alone."""
        try:
            await super().run()
        except* OSError:
            pass  # the network's failure: the client is gone, and its request has been cancelled
        except* Exception:  # noqa: BLE001 - logged, with its traceback
            await self.config.log.exception("A connection failed and was dropped")

    @property
    def _socket(self) -> trio.socket.SocketType:
        stream = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        return stream.socket

    async def protocol_send(self, event: Event) -> None:
        """Act on what the protocol asks for. Writing blocks for as long as `_write` says."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, HangUp):
            await self._hang_up()
        elif isinstance(event, Updated):
            self._idling.deadline = self._end_of_idling() if event.idle else inf
        else:
            await super().protocol_send(event)

    async def _write(self, data: bytes) -> None:
        """Send `data` whole or drop the connection.

        Blocks while the client does not read, for at most `WRITE_TIMEOUT` a piece. Cancellation waits until
        then: half a frame would spoil all that follows.
        """
        sent = self._send_now(data)
        if sent < len(data) and not await self._send_in_time(memoryview(data)[sent:]):
            self._drop()
            await self.protocol.handle(Closed())

    def _send_now(self, data: bytes) -> int:
        """Give the kernel what it takes at once, and return how many bytes that were.

        Nearly always it takes all, for half of what `send_all` with a deadline costs.
        """
        if self.send_lock.locked() or isinstance(self.stream, trio.SSLStream):
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:  # it takes none now, or never again: `send_all` tells which
            return 0

    async def _send_in_time(self, data: memoryview) -> bool:
        with trio.CancelScope(shield=True) as patience:
            async with self.send_lock:
                for start in range(0, len(data), WRITE_PIECE):
                    patience.deadline = trio.current_time() + WRITE_TIMEOUT
                    try:
                        await self.stream.send_all(data[start : start + WRITE_PIECE])
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        return False
        return not patience.cancelled_caught

    async def _read_data(self) -> None:
        try:
            while data := await self._receive():
                if not self._hung_up:
                    self._looking = True
                    await self.protocol.handle(RawData(data))
                    self._looking = False
            if not self._hung_up:
                await self.protocol.handle(RawData(b""))
            await self.protocol.handle(Closed())
            await self.idle_task.stop()
        finally:
            # The client is gone or the server stops: nobody may go on waiting in a shielded write.
            self._drop()

    async def _receive(self) -> bytes:
        """Wait for bytes from the client; none mean that no more come, for whatever reason."""
        limit = self.config.read_timeout
        with trio.move_on_after(limit) if limit else nullcontext():
            try:
                return bytes(await self.stream.receive_some(MAX_RECV))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        return b""

    def _end_of_idling(self) -> float:
        return trio.current_time() + self.config.keep_alive_timeout

    async def _idle_timeout(self) -> None:
        deadline = self._end_of_idling()
        while True:
            with trio.CancelScope(deadline=deadline) as self._idling:
                await self.context.terminated.wait()
                if self._idling.deadline < inf:
                    self._idling.deadline = min(self._idling.deadline, trio.current_time() + LAST_CALL)
                await trio.sleep_forever()
            # A process that was short of CPU finds a request and the end of the time for it together.
            has_come = await self._has_come_by_now()
            deadline = self._idling.deadline
            if deadline > trio.current_time():
                continue
            if self._hung_up:
                break
            if has_come:
                deadline = self._end_of_idling()
                continue
            await self.protocol.handle(Leave())
            if not self._hung_up:
                break
            deadline = self._idling.deadline
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    async def _has_come_by_now(self) -> bool:
        # Whoever has just read something looks at it two rounds later at most: reading has a checkpoint of
        # its own, during which it is neither here nor there.
        has_come = self._has_come()
        for _ in range(2):
            await trio.lowlevel.cancel_shielded_checkpoint()
            has_come = has_come or self._has_come()
        return has_come

    def _has_come(self) -> bool:
        """Whether something can be read, or has been and is being looked at."""
        poll = select.poll()
        if self._socket.fileno() >= 0:
            poll.register(self._socket, select.POLLIN)
        return self._looking or bool(poll.poll(0))

    async def _hang_up(self) -> None:
        self._hung_up = True
        self._idling.deadline = trio.current_time() + LINGER
        if not isinstance(self.stream, trio.SSLStream):  # which cannot say so without closing
            async with self.send_lock:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self.stream.send_eof()
        await self.protocol.handle(Closed())

    async def _close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        self._socket.close()


class RequestTasks(TaskGroup):
    """A connection's nursery, whose applications are fed only while they run."""

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start `app` and return what feeds it; feeding blocks while its queue is full and it runs."""
        feed, messages = trio.open_memory_channel[ASGIReceiveEvent](config.max_app_queue_size)

        async def run_while_fed(*args: Any) -> None:
            with messages:
                await app(*args)

        async def put(message: ASGIReceiveEvent) -> None:
            with suppress(trio.BrokenResourceError):
                try:
                    feed.send_nowait(message)  # who reads the connection has its checkpoint there
                except trio.WouldBlock:
                    await feed.send(message)

        self.start_app(run_while_fed, config, scope, messages.receive, send)
        return put

    def start_app(
        self,
        app: Callable[..., Awaitable[None]],
        config: Config,
        scope: Scope,
        receive: ASGIReceiveCallable,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> None:
        """Start `app`, whose failures are logged and end its answer."""
        self.spawn(_handle, app, config, scope, receive, send, trio.to_thread.run_sync, trio.from_thread.run)
