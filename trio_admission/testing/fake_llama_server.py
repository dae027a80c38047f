"""A scriptable llama-server for tests: its slots, queue, APIs and faults, in real or virtual time.

It behaves as the server was measured to behave. It defers what its slots cannot take; it notices that a
streaming client left at the next token, and another one only after a second in which nobody got a result; it
sends the same events with the same framing and refuses in the same words; it closes a connection after a
stream and after five idle seconds; with a unified cache it ends all that is in flight when that is too much.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import trio

from ._fake import pages
from ._fake.engine import Engine
from ._fake.exchange import Exchange
from ._fake.http import KEEP_ALIVE_REQUESTS, BadRequestError, Connection, Request, Wire, response_head
from ._fake.script import Cut, End, Raw, Reply, Script, ToolCall, pieces_of
from ._fake.site import Site, decodes
from ._fake.stream import MemoryStream, Stream, close, memory_connection, reset

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from types import TracebackType

__all__ = [
    "Connection",
    "Cut",
    "End",
    "FakeLlamaServer",
    "MemoryStream",
    "Raw",
    "Reply",
    "Request",
    "Script",
    "ToolCall",
    "pieces_of",
]


@dataclass(eq=False, kw_only=True, repr=False)
class FakeLlamaServer(pages.Options):
    """A llama-server in this process. Use it as an async context manager, which ends all that it started.

    Reach it over memory (`connect`) or over TCP on loopback (`listening`, `serve`). Every wait is on Trio's
    clock, so on a virtual one it takes no real time.

    It decodes for the chat completions, completions, responses and messages of the OpenAI and Anthropic APIs,
    for the server's own /completion, and, where its arguments say so, for embeddings, reranking and /infill.
    It answers without decoding: /health, /props, /slots, /metrics, /v1/models, /tokenize, /detokenize,
    /apply-template and the counting of tokens.

    Each request is answered by what `reply` returns for it; else, if it decodes, by the next of the replies
    given to `script`; else as the server would, with the `default` script.

    The arguments are attributes that a test may change while the server runs: `total_slots`, `n_ctx` and
    `kv_unified` take effect at a `restart`, the others at once.

    Attributes:
        reply: Hook that is awaited for every request, so it may sleep first. If it returns None, or is None,
            the request is left to the server; an error ends the test.
        default: The script of a request for which nothing else was said.
        requests: Every request, in the order of arrival.
        generations: Those of them that decode.
        connections: Every connection.
        max_in_flight: The most requests that were ever in flight together.
        saved: What was saved of slots, by file name.
    """

    reply: Callable[[Request], Awaitable[Reply | None]] | None = None
    default: Script = field(default_factory=Script)
    requests: list[Request] = field(default_factory=list["Request"], init=False)
    generations: list[Request] = field(default_factory=list["Request"], init=False)
    connections: list[Connection] = field(default_factory=list["Connection"], init=False)
    max_in_flight: int = field(default=0, init=False)
    saved: dict[str, list[str]] = field(default_factory=dict[str, list[str]], init=False)

    def __post_init__(self) -> None:
        self._queue: deque[Reply] = deque()
        self._in_flight: set[Request] = set()
        self._wires: set[Wire] = set()
        self._down = True

    async def __aenter__(self) -> Self:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._site = self._new_site()
        self._down = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crash()
        self._nursery.cancel_scope.cancel()
        # the body's own error leaves bare, not in the group that a nursery would make of it
        await self._manager.__aexit__(None, None, None)

    @property
    def in_flight(self) -> int:
        """How many requests that decode hold or wait for a slot, or play a scripted answer."""
        return len(self._in_flight)

    @property
    def total(self) -> int:
        """How many requests that decode have come."""
        return len(self.generations)

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._wires)

    @property
    def busy_slots(self) -> list[int]:
        """The slots that decode now."""
        return [slot.id for slot in self._site.engine.busy]

    @property
    def deferred(self) -> int:
        """How many jobs wait for a slot."""
        return len(self._site.engine.deferred)

    def script(self, *replies: Reply) -> None:
        """Say how the next requests that decode are answered, in the order of their arrival.

        Each reply is used once. Calling it again adds replies.
        """
        self._queue.extend(replies)

    def connect(self) -> MemoryStream:
        """Return the client's end of a new connection in memory, a Trio stream that carries HTTP/1.1.

        Raises:
            ConnectionRefusedError: while the server is down.
        """
        if self._down:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours, theirs = memory_connection()
        self._nursery.start_soon(self._serve_stream, ours)
        return theirs

    async def serve(
        self, *, port: int = 0, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept connections on loopback until cancelled: `url = await nursery.start(server.serve)`.

        Args:
            port: 0 = any that is free.
            task_status: Is told the URL, without a slash at its end.
        """
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        task_status.started(f"http://127.0.0.1:{port}")
        await trio.serve_listeners(self._serve_stream, listeners, handler_nursery=self._nursery)

    @asynccontextmanager
    async def listening(self, *, port: int = 0) -> AsyncGenerator[str]:
        """Accept connections on loopback for the length of a block: `async with server.listening() as url:`.

        Entering blocks no longer than it takes to bind the port; leaving does not wait for the connections,
        which end with the server.

        Args:
            port: 0 = any that is free.
        """
        async with trio.open_nursery() as nursery:
            yield await nursery.start(partial(self.serve, port=port))
            nursery.cancel_scope.cancel()

    def crash(self) -> None:
        """Behave as if killed: every connection is reset, every slot lost, and no new connection is taken.

        In memory a connection is refused, over TCP it is accepted and reset.
        """
        self._down = True
        self._site.engine.kill()
        for wire in self._wires:
            wire.kill()
        for request in list(self._in_flight):
            self._leave(request)

    def restart(self, **options: Any) -> None:
        """Crash if not down yet, then come back with empty slots.

        Args:
            options: Arguments of the server that are to be other ones from now on.

        Raises:
            TypeError: if there is no such argument.
        """
        self.crash()
        for name, value in options.items():
            if name not in {option.name for option in dataclasses.fields(pages.Options)}:
                raise TypeError(f"no such option: {name}")
            setattr(self, name, value)
        self._site = self._new_site()
        self._down = False

    def _new_site(self) -> Site:
        engine = Engine(self._nursery, slots=self.total_slots, n_ctx=self.n_ctx, unified=self.kv_unified)
        return Site(self, engine, self.saved)

    async def _serve_stream(self, stream: Stream) -> None:
        if self._down:
            reset(stream)
            return
        record = Connection(len(self.connections) + 1, trio.current_time())
        self.connections.append(record)
        wire = Wire(stream, record)
        self._wires.add(wire)
        try:
            with wire.scope:
                await self._serve_requests(wire)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client left or the server crashed; the connection's record tells
        finally:
            close(stream)
            self._wires.discard(wire)
            record.closed = trio.current_time()

    async def _serve_requests(self, wire: Wire) -> None:
        for number in range(1, KEEP_ALIVE_REQUESTS + 1):
            try:
                request = await wire.read_request()
            except BadRequestError as error:
                await wire.send(
                    response_head(error.status, [("Connection", "close"), ("Content-Length", "0")])
                )
                return
            if request is None:
                return
            self._arrive(request)
            exchange = Exchange(wire, request, last=number == KEEP_ALIVE_REQUESTS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.watch)
                await self._answer(exchange)
                nursery.cancel_scope.cancel()
            if not exchange.keep:
                return

    async def _answer(self, exchange: Exchange) -> None:
        request, wire = exchange.request, exchange.wire
        reply: Reply | None = None
        try:
            with trio.CancelScope() as scope:
                wire.on_gone = scope.cancel
                reply = await self._reply_to(request)
            wire.on_gone = None
            if scope.cancelled_caught:
                exchange.keep = False
                self._leave(request)
            elif isinstance(reply, Raw):
                try:
                    await exchange.play(reply)
                finally:
                    self._leave(request)
            else:
                await self._site.answer(exchange, reply or self.default, partial(self._leave, request))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            exchange.keep = False  # the client left before it had its answer

    async def _reply_to(self, request: Request) -> Reply | None:
        reply = None if self.reply is None else await self.reply(request)
        return self._queue.popleft() if reply is None and decodes(request) and self._queue else reply

    def _arrive(self, request: Request) -> None:
        self.requests.append(request)
        if decodes(request):
            self.generations.append(request)
            request.number = self.total
            self._in_flight.add(request)
            self.max_in_flight = max(self.max_in_flight, self.in_flight)

    def _leave(self, request: Request) -> None:
        if request in self._in_flight:
            self._in_flight.remove(request)
            request.released = trio.current_time()
