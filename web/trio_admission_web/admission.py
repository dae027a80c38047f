"""One request's way through the gateway: the line, a lease, the server's answer.

One task owns all of it, so that however it ends - the answer is complete, the server fails, the client
goes away - the same unwinding closes the upstream first and gives the slot back then. The response body
only drains the relay. What the bytes mean is the exchange's business.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import trio

from trio_admission import Cost, LineFull, PoolClosed, WaitTimeout

from . import problems
from .keys import KeyRing
from .logs import tell
from .metrics import Metrics
from .problems import Problem, ProblemError
from .relay import Relay
from .resumes import HEADER, Resumes
from .routing import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trio_admission import Lease, Reservation, ResumeTicket

    from .backend import Backend
    from .keys import ApiKey
    from .settings import Settings
    from .turns import Turns
    from .upstream import Header, OpenAnswer
    from .wire.exchange import Exchange

log: Final = logging.getLogger(__name__)

_FIXED: Final = (
    *("backends", "admission", "host", "port", "unix", "tls_cert", "tls_key", "shutdown_deadline"),
    *("tools", "approval_ttl", "max_parked"),
)
# Seconds until a client that was refused because of a shutdown may find the next gateway.
DRAIN_RETRY: Final = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client gets: bytes, or a relay that gives them as they come."""

    status: int
    content_type: bytes | None
    body: bytes | Relay
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a request follows from.

    Args:
        ticket: Of an answer that ended in calls of the client's tools, which this request brings results of.
        parent: The lease of the request on whose behalf this one works.
    """

    ticket: ResumeTicket | None = None
    parent: Lease | None = None


NO_ORIGIN: Final = Origin()


class Gateway:
    """What all requests share: the settings, the backends, the keys, the counters, and each other."""

    def __init__(self, settings: Settings, backends: Iterable[Backend]) -> None:
        self.settings = settings
        self.backends = {each.name: each for each in backends}
        self.directory = Directory(tuple(self.backends.values()))
        self.keys = KeyRing(settings.keys)
        self.metrics = Metrics(lambda: [each.pool.statistics() for each in self.backends.values()])
        for each in self.backends.values():
            each.pool.add_instrument(self.metrics.pool_event)
        self.passages: set[Passage] = set()
        self.resumes = Resumes()
        self.draining = False

    @property
    def backend(self) -> Backend:
        """The default one."""
        return self.directory.backends[0]

    def line(self, backend: Backend) -> list[Passage]:
        """Return the passages that wait for a slot of a backend, next first."""
        waiting = (each for each in self.passages if each.backend is backend and each.position)
        return sorted(waiting, key=lambda each: each.position)

    def apply(self, settings: Settings) -> list[str]:
        """Use other settings for all requests from now on; nobody who is here notices.

        Returns:
            What has changed too and stays as it was, since it takes a restart.
        """
        old = self.settings
        self.keys = KeyRing(settings.keys)
        self.settings = replace(settings, **{name: getattr(old, name) for name in _FIXED})
        return [name for name in _FIXED if getattr(settings, name) != getattr(old, name)]

    async def drain(self) -> None:
        """Refuse newcomers from now on; block until everybody who is here has been served.

        When this is cancelled, for lack of time, everybody who is still here is told so and sent away.
        """
        self.draining = True
        try:
            for backend in self.backends.values():
                await backend.pool.drained()
        except trio.Cancelled:
            for each in self.passages:
                each.cancel(problems.draining(retry_after=DRAIN_RETRY))
            for backend in self.backends.values():
                backend.hurry()
            raise


class Passage:
    """One request's way. `run` is its task; `answer` is for the one who answers the client.

    Args:
        gateway: What it goes through.
        backend: Where it goes.
        exchange: The request, read.
        id: Its name in logs, errors and the admin view.
        route: The address that it came to, as it is in the table of routes.
        key: On whose behalf; None where no keys are configured.
        headers: Sent upstream.
        query: Sent upstream.
        cut: Ends the client's connection without a proper ending.
        turns: Takes the turns of the gateway's tools, if it asked for any.
        origin: What it follows from.
    """

    def __init__(
        self,
        gateway: Gateway,
        backend: Backend,
        exchange: Exchange,
        *,
        id: str,  # noqa: A002 - it is called so everywhere
        route: str,
        key: ApiKey | None,
        headers: Sequence[Header],
        query: bytes,
        cut: Callable[[], None],
        turns: Turns | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        self.id = id
        self.backend = backend
        self.key = key
        self.arrived = trio.current_time()
        self._route = route
        self._granted: float | None = None
        self._first_byte: float | None = None
        self._gateway = gateway
        self._settings = gateway.settings
        self._exchange = exchange
        self._headers = headers
        self._query = query
        self._cut = cut
        self._turns = turns
        self._origin = origin
        self._resume = Resumes.promise() if exchange.has_tools else None
        self._scope = trio.CancelScope()
        self._ended_by: Problem | None = None
        self._reservation: Reservation | None = None
        self._lease: Lease | None = None
        self._decided = trio.Event()
        self._decision: Answer | Problem | None = None
        self._asking = False
        self._concluded = False
        self._outcome = "client_gone"  # unless something else ends it
        self._detail: str | None = None
        self._relay = Relay(interval=self._settings.admission.keepalive_interval, keepalive=self._keepalive)

    @property
    def flow(self) -> str:
        """On whose behalf it is; empty where no keys are configured."""
        return self.key.flow if self.key is not None else ""

    @property
    def waits(self) -> bool:
        """Whether it has a place in the line and no slot yet."""
        return self._reservation is not None and self._granted is None

    @property
    def position(self) -> int:
        """Its place in the line, 1 = next; 0 when it is not in line."""
        if self._turns is not None and self._turns.parked is not None:
            return self._turns.parked.position
        return self._reservation.position if self._reservation is not None else 0

    @property
    def estimated_wait(self) -> float | None:
        """Seconds that it will probably still wait; None = not in line, or nothing to judge by."""
        if self._turns is not None and self._turns.parked is not None:
            return self._turns.parked.estimated_wait
        return self._reservation.estimated_wait if self._reservation is not None else None

    @property
    def lease(self) -> Lease | None:
        """Its lease, None before the grant."""
        return self._lease

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
        except Exception as error:  # noqa: BLE001 - what is no refusal is logged and told as a fault
            self._conclude(error)
        finally:
            self._conclude(None)
            self._gateway.passages.discard(self)
            self._tell()

    def _conclude(self, error: BaseException | None) -> None:
        """Let the client know how it ended. Only the first time counts: what follows is unwinding."""
        if self._concluded:
            return
        self._concluded = True
        match error:
            case ProblemError():
                self._fail(error.problem)
                if error.__cause__ is not None:
                    self._detail = type(error.__cause__).__name__  # its text may repeat what the backend sent
            case LineFull() | WaitTimeout() | PoolClosed():
                self._fail(self._refusal(error))
            case _ReaderStalled():
                self._outcome = "reader_stalled"
                self._cut()
            case Exception():
                log.error("request %s: a fault of the gateway", self.id, exc_info=error)
                self._fail(problems.internal_error())
            case _ if self._ended_by is not None:
                self._fail(self._ended_by)
        self._relay.close()

    async def _go(self) -> None:
        exchange, backend = self._exchange, self.backend
        self._check_requests()
        weight, priority = (self.key.weight, self.key.priority) if self.key is not None else (1.0, 0)
        async with backend.pool.reserve(
            cost=Cost(slots=exchange.slots),
            flow=self.flow,
            weight=weight,
            priority=priority,
            ticket=self._origin.ticket,
            parent=self._origin.parent,
        ) as self._reservation:
            if self._reservation.lease is None:
                self._check_waiting()
            else:
                self._granted = self.arrived
            self._lease = await self._reservation.wait()
            if self._granted is None:
                self._granted = trio.current_time()
            try:
                await self._ask()
                while self._turns is not None and self._turns.due:
                    await self._turns.take(self._lease, self._relay.put)
                    await self._ask()
            except (trio.Cancelled, _ReaderStalled, ProblemError) as error:
                if self._asking and not _is_over(error):
                    self._conclude(error)
                    await backend.settled(exchange.slots)
                raise

    async def _ask(self) -> None:
        """Send one request to the backend and give the client what it answers."""
        exchange = self._exchange
        self._asking = True
        async with self.backend.upstream.open(
            "POST", exchange.path, headers=self._headers, query=self._query, body=exchange.upstream_body
        ) as response:
            if response.is_event_stream:
                await self._copy(response)
            else:
                await self._pass_on(response)
        self._asking = False

    async def _copy(self, response: OpenAnswer) -> None:
        exchange, relay = self._exchange, self._relay
        if exchange.stream:
            self._begin_stream()
        async for data in response:
            if self._first_byte is None:
                self._note_first_byte()
            events = exchange.relay(data)
            if events:
                relay.put(events)
                if relay.full:
                    await self._room()
            if exchange.finished or self._turn_is_due:
                break
        if self._turn_is_due:
            return
        headers = self._issue_ticket()
        if not exchange.stream:
            self._decide(Answer(200, b"application/json", exchange.answer(), headers))
        elif not exchange.finished:
            raise ProblemError(problems.bad_gateway())
        self._outcome = _word(exchange.failure) if exchange.failure else "answered"

    async def _pass_on(self, response: OpenAnswer) -> None:
        """Give the client an answer that is no stream of events as it is, if it still can be."""
        whole = await response.whole()
        if self._first_byte is None:
            self._note_first_byte()
        kind = (whole.content_type or b"").split(b";")[0].strip().lower()
        if whole.status < 400 and not (whole.status == 200 and whole.body and kind == b"application/json"):
            raise ProblemError(problems.bad_gateway())
        if self._decision is None:
            self._decide(Answer(whole.status, whole.content_type, whole.body))
            self._outcome = "answered" if whole.status < 400 else "backend_error"
            self._detail = f"status {whole.status}"
        else:
            raise ProblemError(problems.upstream_error(whole.status, whole.body))

    @property
    def _turn_is_due(self) -> bool:
        return self._turns is not None and self._turns.due

    def _issue_ticket(self) -> Mapping[str, str]:
        """Keep a ticket for the follow-up of an answer that ends in calls of the client's tools."""
        exchange = self._exchange
        if self._resume is None or self._lease is None or not exchange.calls_client:
            return {}
        if exchange.failure or not exchange.finished:  # nobody can follow up on half an answer
            return {}
        ticket = self._lease.issue_ticket(self._settings.resume_ttl)
        if ticket is None:
            return {}
        self._gateway.resumes.keep(self._resume, self.backend.name, ticket)
        return self._resume_header()

    def _resume_header(self) -> Mapping[str, str]:
        return {} if self._resume is None else {HEADER: self._resume}

    async def _room(self) -> None:
        try:
            await self._relay.room(self._settings.stall_deadline)
        except trio.TooSlowError:
            raise _ReaderStalled from None

    def _check_requests(self) -> None:
        key = self.key
        if key is None or key.max_requests is None:
            return
        here = sum(1 for each in self._gateway.passages if each._is_of(key))  # this one among them
        if here > key.max_requests:
            raise ProblemError(problems.request_limit(limit=key.max_requests, retry_after=self._flow_retry()))

    def _check_waiting(self) -> None:
        key = self.key
        if key is None or key.max_waiting is None:
            return
        waiting = sum(1 for each in self._gateway.passages if each.waits and each._is_of(key))
        if waiting > key.max_waiting:
            raise ProblemError(
                problems.flow_limit(
                    waiting=key.max_waiting, limit=key.max_waiting, retry_after=self._flow_retry()
                )
            )

    def _is_of(self, key: ApiKey) -> bool:
        return self.key is not None and self.key.name == key.name

    def _flow_retry(self) -> int:
        return min(60, max(1, math.ceil(self.backend.pool.estimated_wait() or 1)))

    def _note_first_byte(self) -> None:
        self._first_byte = trio.current_time() - self.arrived
        self._gateway.metrics.first_byte(self._route, self._first_byte)

    def _tell(self) -> None:
        seconds = trio.current_time() - self.arrived
        prompt, generated = self._exchange.tokens
        self._gateway.metrics.tokens(self.backend.name, prompt=prompt, generated=generated)
        self._gateway.metrics.ended(self._route, self._outcome, seconds)
        tell(
            self.id,
            flow=self.flow,
            route=self._route,
            model=self._exchange.model,
            backend=self.backend.name,
            wait=None if self._granted is None else self._granted - self.arrived,
            first_byte=self._first_byte,
            duration=seconds,
            outcome=self._outcome,
            detail=self._detail,
        )

    def _keepalive(self) -> bytes:
        self._gateway.metrics.keepalive(self._route)
        return self._exchange.keepalive(self.position, self.estimated_wait)

    def _begin_stream(self) -> None:
        if self._decision is None:
            self._decide(Answer(200, b"text/event-stream", self._relay, self._resume_header()))

    def _fail(self, problem: Problem) -> None:
        self._outcome = _word(problem)
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


def _word(problem: Problem) -> str:
    """Name the problem in the closed vocabulary of outcomes."""
    return problem.code if problem.code in problems.CODES else "backend_error"


def _is_over(error: BaseException) -> bool:
    """Whether a request to the backend that ended so has left nothing running there."""
    return isinstance(error, ProblemError) and error.problem.code != "upstream_timeout"


class _ReaderStalled(Exception):
    """The client took nothing of its stream for the time it may."""
