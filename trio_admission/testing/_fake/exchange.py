"""One request and its answer on the wire."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import trio

from .dialect import Dialect, compact, event
from .http import LAST_CHUNK, Request, Wire, chunk, response_head
from .results import Broken, Ended, Failed, Launched, Result, Token
from .script import End, Raw, Script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .engine import Engine

JSON = "application/json; charset=utf-8"
# Seconds without a result for anybody after which the server looks whether a client is still there.
_NOTICE = 1.0


class Exchange:
    """One request and the bytes of its answer; `keep` tells whether the connection takes another one."""

    def __init__(self, wire: Wire, request: Request, *, last: bool) -> None:
        self.wire = wire
        self.request = request
        self.keep = not last and (request.header("Connection") or "").lower() != "close"

    async def answer(
        self, status: int, body: Any, content_type: str = JSON, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Send a whole answer; a body that is not a str is sent as JSON. An error closes the connection."""
        self.keep = self.keep and status < 400
        data = (body if isinstance(body, str) else compact(body)).encode(errors="replace")
        length = [("Content-Type", content_type), ("Content-Length", str(len(data)))]
        head = self._head(status, [*headers, *length])
        await self.send(head if self.request.method == "HEAD" else head + data)

    async def start_stream(self, headers: Iterable[tuple[str, str]]) -> None:
        """Send the head of an event stream."""
        stream = [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")]
        head = self._head(200, [*headers, ("X-Accel-Buffering", "no"), *stream])
        await self.send(head)

    async def send(self, data: bytes) -> None:
        """Send bytes and note when."""
        request = self.request
        if request.first_byte is None:
            request.first_byte, request.status = trio.current_time(), _status(data)
        request.last_byte = trio.current_time()
        await self.wire.send(data)

    async def stop(self, how: End) -> None:
        """End the answer. The server closes after every stream, although its head offers to keep alive."""
        self.keep = False
        match how:
            case End.RESET:
                self.wire.reset()
            case End.FINISH:
                await self.send(LAST_CHUNK)
            case End.SILENCE:
                await self.wire.gone.wait()
            case End.CLOSE | End.ERROR:
                pass

    async def play(self, raw: Raw) -> None:
        """Send what a test wrote, step by step, until the client leaves."""
        for step in raw.steps:
            if isinstance(step, bytes):
                await self.send(step)
            elif isinstance(step, End):
                await self.stop(step)
                return
            else:
                with trio.move_on_after(step):
                    await self.wire.gone.wait()
                    return

    def _head(self, status: int, headers: list[tuple[str, str]]) -> bytes:
        common = [
            ("Server", "llama.cpp"),
            ("Access-Control-Allow-Origin", self.request.header("Origin") or ""),
        ]
        alive = ("Keep-Alive", "timeout=5, max=100") if self.keep else ("Connection", "close")
        return response_head(status, [*common, *headers, alive])


class Generation:
    """The answer to a request that decodes, from the engine's results."""

    def __init__(
        self,
        exchange: Exchange,
        engine: Engine,
        dialect: Dialect,
        script: Script,
        results: trio.MemoryReceiveChannel[Result | None],
        ping_interval: float | None,
    ) -> None:
        self._exchange = exchange
        self._engine = engine
        self._dialect = dialect
        self._script = script
        self._results = results
        self._ping = math.inf if ping_interval is None else ping_interval
        self._streaming = dialect.stream
        self._started = False
        self._since = trio.current_time()
        self._resumable = exchange.request.header("X-Conversation-Id") is not None

    async def run(self, sequences: int) -> None:
        """Answer; raise the engine's error if nothing was sent yet."""
        while sequences:
            match result := await self._next():
                case None:
                    self._exchange.keep = False
                    return
                case Launched():
                    await self._launched()
                case Token() | Ended():
                    sequences -= isinstance(result, Ended)
                    events = self._dialect.feed(result)
                    if self._streaming:
                        await self._send(events, self._injected(result))
                case Broken(how):
                    await self._exchange.stop(how)
                    return
                case Failed(error) if not self._started:
                    raise error
                case Failed(error):
                    await self._send(self._dialect.failure(error))
                    await self._exchange.stop(End.FINISH)
                    return
        if self._streaming:
            await self._send(self._dialect.terminal)
            await self._exchange.stop(End.FINISH)
        else:
            await self._exchange.answer(200, self._dialect.answer(), headers=self._script.headers)

    async def _launched(self) -> None:
        if self._streaming and self._started:
            await self._send(event("null"))  # what the server really sends for each further prompt
        elif self._streaming:
            self._started = True
            await self._exchange.start_stream(self._script.headers)

    async def _next(self) -> Result | None:
        """Wait for a result; None when the server has noticed that the client is gone.

        It looks when a stream's own result comes, and else at each full second in which nobody got a result.
        """
        ping_at = trio.current_time() + self._ping if self._started else math.inf
        while True:
            gone = self._gone()
            quiet_since = self._quiet_since()
            seconds = math.floor((trio.current_time() - quiet_since) / _NOTICE) + 1
            look_at = quiet_since + seconds * _NOTICE if gone else math.inf
            with trio.move_on_at(min(look_at, ping_at)):
                result = await self._results.receive()
                if result is None:
                    continue  # the client left just now
                if self._streaming:
                    self._since = trio.current_time()
                return None if gone and self._started else result
            if ping_at < look_at:
                ping_at = trio.current_time() + self._ping
                await self._send(b":\n\n")
            elif quiet_since == self._quiet_since():
                return None

    def _gone(self) -> bool:
        return self._exchange.wire.gone.is_set() and not self._resumable

    def _quiet_since(self) -> float:
        return max(self._engine.delivered_at, self._since)

    def _injected(self, result: Token | Ended) -> bytes:
        at = result.timings.predicted_n - isinstance(result, Token)
        return self._script.injected.get(at, b"") if result.index == 0 else b""

    async def _send(self, events: bytes, before: bytes = b"") -> None:
        if self._resumable and self._exchange.wire.gone.is_set():
            return  # what a later connection could ask for
        data = before + events.replace(b"\n", self._script.newline)
        if self._script.split is None:
            if data:
                await self._exchange.send(chunk(data))
            return
        for piece in filter(None, self._script.split(data)):  # an empty chunk would end the body
            await self._exchange.send(chunk(piece))
            await trio.sleep(self._script.split_gap)


def _status(data: bytes) -> int | None:
    first = data[9:12]
    return int(first) if data.startswith(b"HTTP/1.") and first.isdigit() else None
