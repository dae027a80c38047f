"""The client's side of one request: what it is answered, and when that is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import trio

from .problems import Problem, ProblemError
from .relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .settings import Settings
    from .wire.exchange import Exchange

_EVENTS: Final = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client gets: bytes, or a relay that gives them as they come."""

    status: int
    content_type: bytes | None
    body: bytes | Relay
    headers: Mapping[str, str] = field(default_factory=dict)


@final
class Reply:
    """Decides once what the client gets; for a stream that has begun, more goes through its relay.

    Args:
        exchange: The request, read.
        settings: The grace, the keepalive interval and the stall deadline.
        keepalive: Gives one event that says where the request stands.
        stream_headers: Sent with a stream.
    """

    def __init__(
        self,
        exchange: Exchange,
        settings: Settings,
        keepalive: Callable[[], bytes],
        stream_headers: Mapping[str, str],
    ) -> None:
        self._exchange = exchange
        self._settings = settings
        self._keepalive = keepalive
        self._stream_headers = stream_headers
        self._decided = trio.Event()
        self._decision: Answer | Problem | None = None
        self._relay = Relay(interval=settings.admission.keepalive_interval, keepalive=keepalive)

    async def wait(self, is_in_line: Callable[[], bool]) -> Answer:
        """Wait until it is known what the client gets.

        A stream begins when its ``grace`` has passed in the line, or when the server has not said anything
        for a keepalive interval; what goes wrong later is told inside the stream.

        Raises:
            ProblemError: The request was refused, or failed before anything was decided.
        """
        if self._exchange.stream:
            await self._decided_within(self._settings.grace)
            if self._decision is None and not is_in_line():
                interval = self._settings.admission.keepalive_interval
                await self._decided_within(max(0.0, interval - self._settings.grace))
            if self._decision is None:
                self._relay.put(self._keepalive())
                self.begin_stream()
        await self._decided.wait()
        if isinstance(self._decision, Problem):
            raise ProblemError(self._decision)
        assert self._decision is not None
        return self._decision

    @property
    def is_open(self) -> bool:
        """Whether nothing is decided yet."""
        return self._decision is None

    def give(self, answer: Answer | Problem) -> None:
        """Decide; only while it `is_open`."""
        self._decision = answer
        self._decided.set()

    def begin_stream(self) -> None:
        """Answer with a stream, unless it has begun."""
        if self.is_open:
            self.give(Answer(200, _EVENTS, self._relay, self._stream_headers))

    def put(self, events: bytes) -> None:
        """Add whole events to the stream."""
        self._relay.put(events)

    @property
    def is_full(self) -> bool:
        """Whether more waits for the client than is meant to be kept."""
        return self._relay.full

    async def room(self) -> None:
        """Wait until the stream is no longer full.

        Raises:
            TooSlowError: The client took nothing for the stall deadline.
        """
        await self._relay.room(self._settings.stall_deadline)

    def fail(self, problem: Problem) -> None:
        """Tell the client what went wrong, in the answer or inside the stream."""
        if self.is_open:
            self.give(problem)
        elif self._exchange.stream and not self._exchange.finished:
            self._relay.put(self._exchange.error_event(problem))

    def close(self) -> None:
        """End the stream after what is in it."""
        self._relay.close()

    async def _decided_within(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._decided.wait()
