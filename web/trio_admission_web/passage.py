"""One request's way through the gateway: the line, a lease, the server's answer.

One task owns all of it, so that however it ends - the answer is complete, the server fails, the client
goes away - the same unwinding closes the upstream first and gives the slot back then. The response body
only drains the relay. What the bytes mean is the exchange's business.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, final

import trio

from trio_admission import LineFull, PoolClosed, WaitTimeout

from . import problems
from .condition import AWAY_RETRY
from .limits import check_requests, check_waiting
from .problems import Problem, ProblemError
from .refusals import refusal
from .reply import Answer, Reply
from .resumes import HEADER, Resumes
from .telling import Telling
from .token_budget import TooLongError
from .upstream import LostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trio_admission import Cost, Lease, Reservation, ResumeTicket

    from .backend import Backend
    from .gateway import Gateway
    from .keys import ApiKey
    from .token_budget import Charge
    from .turns import Turns
    from .upstream import Header, OpenAnswer
    from .wire.exchange import Exchange

log: Final = logging.getLogger(__name__)

T = TypeVar("T")


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


@final
class Passage:
    """One request's way. `run` is its task, to be started at once; `answer` is for who answers the client.

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
        self._telling = Telling(gateway.metrics, id, route)
        self._granted: float | None = None
        self._gateway = gateway
        self._settings = gateway.settings
        self._exchange = exchange
        self._headers = headers
        self._query = query
        self._cut = cut
        self._turns = turns
        self._origin = origin
        self._resume = Resumes.promise() if exchange.has_tools else None
        self._reply = Reply(exchange, self._settings, self._keepalive, self._resume_header())
        self._scope = trio.CancelScope()
        self._ended_by: Problem | None = None
        self._reservation: Reservation | None = None
        self._lease: Lease | None = None
        self._charge: Charge | None = None
        self._is_stranded = False
        self._moving = trio.CancelScope()
        self._moves_after: trio.Event | None = None
        self.has_lined_up = trio.Event()
        """Set when it has a place in the line of its backend, or has ended."""
        self._asking = False
        self._concluded = False
        gateway.passages.add(self)  # so that others who choose their backend now can count it

    @property
    def arrived(self) -> float:
        """When it came."""
        return self._telling.arrived

    @property
    def flow(self) -> str:
        """On whose behalf it is; empty where no keys are configured."""
        return self.key.flow if self.key is not None else ""

    @property
    def waits(self) -> bool:
        """Whether it has a place in the line and no slot yet."""
        return self._reservation is not None and self._granted is None

    @property
    def waits_for_backend(self) -> bool:
        """Whether nothing can go on with it while the backend is away."""
        return self._is_stranded or self.position > 0

    @property
    def position(self) -> int:
        """Its place in the line, 1 = next; 0 when it is not in line."""
        if self._turns is not None and self._turns.parked is not None:
            return self._turns.parked.position
        return self._reservation.position if self._reservation is not None else 0

    @property
    def estimated_wait(self) -> float | None:
        """Seconds that it will probably still wait; None = not in line, or nothing to judge by."""
        if not self.backend.condition.serves:
            return None
        if self._turns is not None and self._turns.parked is not None:
            wait = self._turns.parked.estimated_wait
        else:
            wait = self._reservation.estimated_wait if self._reservation is not None else None
        return None if wait is None else round(wait, 1)

    @property
    def lease(self) -> Lease | None:
        """Its lease, None before the grant."""
        return self._lease

    @property
    def model(self) -> str | None:
        """The model that the client named."""
        return self._exchange.model

    @property
    def has_slot(self) -> bool:
        """Whether it holds one, or did when its backend went."""
        return self._granted is not None

    @property
    def can_move(self) -> bool:
        """Whether it might as well wait for another backend, since nothing of it has begun."""
        return self._is_stranded or self.waits

    def move(self, backend: Backend, after: trio.Event | None) -> None:
        """Leave the backend for another one; only while it `can_move`.

        Args:
            backend: The other one.
            after: What to wait for before it lines up there: that the one before it has, since the order in
                which tasks wake up is no order.
        """
        self.backend = backend
        self._moves_after = after
        self.has_lined_up = trio.Event()
        self._moving.cancel()

    def cancel(self, problem: Problem) -> None:
        """End it, whatever it is doing, and tell its client why."""
        self._ended_by = problem
        self._scope.cancel()

    async def answer(self) -> Answer:
        """Wait until it is known what the client gets; see `Reply.wait`."""
        return await self._reply.wait(lambda: self.position > 0)

    async def run(self) -> None:
        """Go all the way. Returns when the upstream is done with, whatever the client has read by then."""
        try:
            with self._scope:
                check_requests(self, self._gateway.passages)
                while not await self._goes_through():
                    pass
        except Exception as error:  # noqa: BLE001 - what is no refusal is logged and told as a fault
            self._conclude(error)
        finally:
            self._conclude(None)
            self.has_lined_up.set()
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
                if (cause := error.__cause__) is not None:  # its text may repeat what the backend sent
                    self._telling.detail = type(cause).__name__
            case LineFull() | WaitTimeout() | PoolClosed():
                self._fail(refusal(error, self._settings.admission))
            case TooLongError():
                self._telling.outcome = "invalid_request"
                if self._reply.is_open:
                    self._reply.give(Answer(400, b"application/json; charset=utf-8", error.body))
                else:
                    self._reply.fail(problems.upstream_error(400, error.body))
            case _ReaderStalled():
                self._telling.outcome = "reader_stalled"
                self._cut()
            case Exception():
                log.error("request %s: a fault of the gateway", self.id, exc_info=error)
                self._fail(problems.internal_error())
            case _ if self._ended_by is not None:
                self._fail(self._ended_by)
        self._telling.outcome = self._telling.outcome or self._gateway.outcome_of_cut
        self._reply.close()

    async def _goes_through(self) -> bool:
        """Go through the backend; return False if it was left for another one."""
        backend = self.backend
        try:
            with backend.seats.seat(self._exchange, self.flow, self._origin.ticket) as self._seat:
                await self._go(backend)
        except _Moved:
            self._reservation = self._lease = self._granted = None
            return False
        return True

    async def _go(self, backend: Backend) -> None:
        backend.condition.check()
        cost = await self._weigh()
        if self._moves_after is not None:
            await self._moves_after.wait()
        weight, priority = (self.key.weight, self.key.priority) if self.key is not None else (1.0, 0)
        async with backend.pool.reserve(
            cost=cost,
            flow=self.flow,
            weight=weight,
            priority=priority,
            max_wait=self._rest_of_wait,
            prefer_slot=self._seat.preferred,
            ticket=self._origin.ticket,
            parent=self._origin.parent,
        ) as self._reservation:
            self.has_lined_up.set()
            if self._reservation.lease is None:
                check_waiting(self, self._gateway.passages)
            else:
                self._granted = self.arrived
            self._lease = await self._unless_moved(self._reservation.wait)
            if self._granted is None:
                self._granted = trio.current_time()
            try:
                await self._ask()
                while self._turns is not None and self._turns.due:
                    await self._turns.take(self._lease, self._reply.put, self._weigh)
                    await self._ask()
            except (trio.Cancelled, _ReaderStalled, ProblemError) as error:
                if self._asking and not _is_over(error):
                    self._conclude(error)
                    await backend.settled(self._exchange.slots)
                raise

    @property
    def _rest_of_wait(self) -> float | None:
        longest = self._settings.admission.max_wait
        return longest and max(0.0, self.arrived + longest - trio.current_time())

    async def _weigh(self) -> Cost:
        """Return what the request costs, as it is now."""
        self._charge = await self.backend.weigh(self._exchange)
        return self._charge.cost

    async def _ask(self) -> None:
        """Give the client what the backend answers.

        It is asked once more if the connection was lost before a byte, or if it says that it loads its model.
        """
        try:
            await self._send()
        except LostError as error:
            if not error.can_retry:
                raise
            self._is_stranded = True
            try:
                await self._unless_moved(self.backend.condition.serving)
            finally:
                self._is_stranded = False
            await self._send()

    async def _unless_moved(self, wait: Callable[[], Awaitable[T]]) -> T:
        with trio.CancelScope() as self._moving:
            return await wait()
        raise _Moved

    async def _send(self) -> None:
        """Send one request to the backend and give the client what it answers."""
        path, upstream = self._exchange.path, self.backend.upstream
        try:
            async with self._seat.taken(None if self._lease is None else self._lease.slot) as body:
                self._asking = True
                async with upstream.open(
                    "POST", path, headers=self._headers, query=self._query, body=body
                ) as response:
                    self._seat.launched()
                    if response.is_event_stream:
                        await self._copy(response)
                    else:
                        await self._pass_on(response)
        except ProblemError as error:
            if isinstance(error, LostError) or not _is_over(error):
                self.backend.condition.doubt()  # before the slot can go to the next, who would fail too
            raise
        self._asking = False

    async def _copy(self, response: OpenAnswer) -> None:
        exchange, reply = self._exchange, self._reply
        if exchange.stream:
            reply.begin_stream()
        async for data in response:
            if response.has_begun:
                self._begin()
            events = exchange.relay(data)
            if events:
                reply.put(events)
                if reply.is_full:
                    await self._room()
            if exchange.finished or self._turn_is_due:
                break
        if self._turn_is_due:
            return
        headers = self._issue_ticket()
        if not exchange.stream:
            reply.give(Answer(200, b"application/json", exchange.answer(), headers))
        elif not exchange.finished:
            raise ProblemError(problems.bad_gateway())
        self._telling.answered(exchange.failure)

    async def _pass_on(self, response: OpenAnswer) -> None:
        """Give the client an answer that is no stream of events as it is, if it still can be."""
        whole = await response.whole()
        if whole.is_loading:  # it has been started again since it was asked, and has not begun with anything
            raise LostError(problems.backend_unavailable(retry_after=AWAY_RETRY))
        self._begin()
        kind = (whole.content_type or b"").split(b";")[0].strip().lower()
        if whole.status < 400 and not (whole.status == 200 and whole.body and kind == b"application/json"):
            raise ProblemError(problems.bad_gateway())
        if self._reply.is_open:
            self._reply.give(Answer(whole.status, whole.content_type, whole.body, whole.headers))
            self._telling.outcome = "answered" if whole.status < 400 else "backend_error"
            self._telling.detail = f"status {whole.status}"
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
        self._seat.await_follow_up(ticket)
        return self._resume_header()

    def _resume_header(self) -> Mapping[str, str]:
        return {} if self._resume is None else {HEADER: self._resume}

    async def _room(self) -> None:
        try:
            await self._reply.room()
        except trio.TooSlowError:
            raise _ReaderStalled from None

    def _begin(self) -> None:
        """Take note that something came from the backend."""
        self.backend.works()
        self._telling.heard()

    def _tell(self) -> None:
        self._telling.ended(
            flow=self.flow,
            model=self.model,
            backend=self.backend.name,
            kv_tokens=(self._charge and self._charge.cost.tokens) or None,
            kv_estimated=(self._charge and self._charge.is_estimate) or None,
            granted=self._granted,
            tokens=self._exchange.tokens,
        )

    def _keepalive(self) -> bytes:
        self._telling.kept_alive()
        return self._exchange.keepalive(self.position, self.estimated_wait, self.backend.condition.away)

    def _fail(self, problem: Problem) -> None:
        self._telling.failed(problem)
        self._reply.fail(problem)


def _is_over(error: BaseException) -> bool:
    """Whether a request to the backend that ended so has left nothing running there."""
    return isinstance(error, ProblemError) and error.problem.code != "upstream_timeout"


class _Moved(Exception):
    """The request is to wait for another backend."""


class _ReaderStalled(Exception):
    """The client took nothing of its stream for the time it may."""
