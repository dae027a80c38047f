"""One request's way through the gateway: the line, a lease, the server's answer.

One task owns all of it, so that however it ends - the answer is complete, the server fails, the client
goes away - the same unwinding closes the upstream first and gives the slot back then. The response body
only drains the relay. What the bytes mean is the exchange's business.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from trio_admission import Cost, LineFull, PoolClosed, WaitTimeout

from . import problems
from .problems import Problem, ProblemError
from .relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trio_admission import Reservation

    from .backend import Backend
    from .settings import Settings
    from .upstream import Header, OpenAnswer
    from .wire.exchange import Exchange

log: Final = logging.getLogger(__name__)

# Seconds until a client that was refused because of a shutdown may find the next gateway.
DRAIN_RETRY: Final = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client gets: bytes, or a relay that gives them as they come."""

    status: int
    content_type: bytes | None
    body: bytes | Relay


class Gateway:
    """What all requests share: the settings, the backend, and each other."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self.settings = settings
        self.backend = backend
        self.passages: set[Passage] = set()
        self.draining = False

    def line(self) -> list[Passage]:
        """Return the passages that wait for a slot, next first."""
        return sorted((each for each in self.passages if each.position), key=lambda each: each.position)

    async def drain(self) -> None:
        """Refuse newcomers from now on; block until everybody who is here has been served.

        When this is cancelled, for lack of time, everybody who is still here is told so and sent away.
        """
        self.draining = True
        try:
            await self.backend.pool.drained()
        except trio.Cancelled:
            for each in self.passages:
                each.cancel(problems.draining(retry_after=DRAIN_RETRY))
            raise


class Passage:
    """One request's way. `run` is its task; `answer` is for the one who answers the client.

    Args:
        gateway: What it goes through.
        exchange: The request, read.
        id: Its name in logs, errors and the admin view.
        headers: Sent upstream.
        query: Sent upstream.
        cut: Ends the client's connection without a proper ending.
    """

    def __init__(
        self,
        gateway: Gateway,
        exchange: Exchange,
        *,
        id: str,  # noqa: A002 - it is called so everywhere
        headers: Sequence[Header],
        query: bytes,
        cut: Callable[[], None],
    ) -> None:
        self.id = id
        self.arrived = trio.current_time()
        self._gateway = gateway
        self._settings = gateway.settings
        self._exchange = exchange
        self._headers = headers
        self._query = query
        self._cut = cut
        self._scope = trio.CancelScope()
        self._ended_by: Problem | None = None
        self._reservation: Reservation | None = None
        self._decided = trio.Event()
        self._decision: Answer | Problem | None = None
        self._outcome = "client gone"  # unless something else ends it
        self._relay = Relay(interval=self._settings.admission.keepalive_interval, keepalive=self._keepalive)

    @property
    def position(self) -> int:
        """Its place in the line, 1 = next; 0 when it is not in line."""
        return self._reservation.position if self._reservation is not None else 0

    @property
    def estimated_wait(self) -> float | None:
        """Seconds that it will probably still wait; None = not in line, or nothing to judge by."""
        return self._reservation.estimated_wait if self._reservation is not None else None

    def cancel(self, problem: Problem) -> None:
        """End it, whatever it is doing, and tell its client why."""
        self._ended_by = problem
        self._scope.cancel()

    async def answer(self) -> Answer:
        """Wait until it is known what the client gets.

        A stream is answered when its ``grace`` has passed in the line, or when the server has not said
        anything for a keepalive interval; what goes wrong later is told inside the stream.

        Raises:
            ProblemError: The request was refused, or failed before anything was decided.
        """
        if self._exchange.stream:
            await self._decided_within(self._settings.grace)
            if self._decision is None and not self.position:
                interval = self._settings.admission.keepalive_interval
                await self._decided_within(max(0.0, interval - self._settings.grace))
            if self._decision is None:
                self._relay.put(self._keepalive())
                self._begin_stream()
        await self._decided.wait()
        if isinstance(self._decision, Problem):
            raise ProblemError(self._decision)
        assert self._decision is not None
        return self._decision

    async def run(self) -> None:
        """Go all the way. Returns when the upstream is done with, whatever the client has read by then."""
        self._gateway.passages.add(self)
        try:
            with self._scope:
                await self._go()
            if self._scope.cancelled_caught and self._ended_by is not None:
                self._fail(self._ended_by)
        except ProblemError as error:
            self._fail(error.problem)
            if error.__cause__ is not None:
                self._outcome += f" ({error.__cause__!r})"
        except (LineFull, WaitTimeout, PoolClosed) as error:
            self._fail(self._refusal(error))
        except _ReaderStalled:
            self._outcome = "reader stalled"
            self._cut()
        except Exception:
            log.exception("request %s: a fault of the gateway", self.id)
            self._fail(problems.internal_error())
        finally:
            self._relay.close()
            self._gateway.passages.discard(self)
            log.info(
                "request %s: %s after %.3f s", self.id, self._outcome, trio.current_time() - self.arrived
            )

    async def _go(self) -> None:
        exchange, backend = self._exchange, self._gateway.backend
        async with backend.pool.reserve(cost=Cost(slots=exchange.slots)) as self._reservation:
            await self._reservation.wait()
            async with backend.upstream.open(
                "POST", exchange.path, headers=self._headers, query=self._query, body=exchange.upstream_body
            ) as response:
                if response.is_event_stream:
                    await self._copy(response)
                else:
                    await self._pass_on(response)

    async def _copy(self, response: OpenAnswer) -> None:
        exchange, relay = self._exchange, self._relay
        if exchange.stream:
            self._begin_stream()
        async for data in response:
            events = exchange.relay(data)
            if events:
                relay.put(events)
                if relay.full:
                    await self._room()
            if exchange.finished:
                break
        if not exchange.stream:
            self._decide(Answer(200, b"application/json", exchange.answer()))
        elif not exchange.finished:
            raise ProblemError(problems.bad_gateway())
        self._outcome = exchange.failure.code if exchange.failure else "answered"

    async def _pass_on(self, response: OpenAnswer) -> None:
        """Give the client an answer that is no stream of events as it is, if it still can be."""
        whole = await response.whole()
        kind = (whole.content_type or b"").split(b";")[0].strip().lower()
        if whole.status < 400 and not (whole.status == 200 and whole.body and kind == b"application/json"):
            raise ProblemError(problems.bad_gateway())
        if self._decision is None:
            self._decide(Answer(whole.status, whole.content_type, whole.body))
            self._outcome = f"answered with the backend's {whole.status}"
        else:
            raise ProblemError(problems.upstream_error(whole.status, whole.body))

    async def _room(self) -> None:
        try:
            await self._relay.room(self._settings.stall_deadline)
        except trio.TooSlowError:
            raise _ReaderStalled from None

    def _keepalive(self) -> bytes:
        return self._exchange.keepalive(self.position, self.estimated_wait)

    def _begin_stream(self) -> None:
        if self._decision is None:
            self._decide(Answer(200, b"text/event-stream", self._relay))

    def _fail(self, problem: Problem) -> None:
        self._outcome = problem.code
        if self._decision is None:
            self._decide(problem)
        elif self._exchange.stream and not self._exchange.finished:
            self._relay.put(self._exchange.error_event(problem))

    def _decide(self, decision: Answer | Problem) -> None:
        self._decision = decision
        self._decided.set()

    async def _decided_within(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._decided.wait()

    def _refusal(self, error: LineFull | WaitTimeout | PoolClosed) -> Problem:
        if isinstance(error, PoolClosed):
            return problems.draining(retry_after=DRAIN_RETRY)
        retry_after = math.ceil(error.retry_after)
        waiting, slots = error.statistics.waiting, error.statistics.slots
        if isinstance(error, WaitTimeout):
            return problems.queue_timeout(waiting=waiting, slots=slots, retry_after=retry_after)
        if error.reason == "flow":
            limit = self._settings.admission.max_waiting_per_flow or 0
            return problems.flow_limit(waiting=waiting, limit=limit, retry_after=retry_after)
        return problems.queue_full(waiting=waiting, slots=slots, retry_after=retry_after)


class _ReaderStalled(Exception):
    """The client took nothing of its stream for the time it may."""
