"""What the dialects share that answer in a stream of events."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from trio_admission_web.problems import Problem, ProblemError, bad_gateway, upstream_error

from .account import TIMINGS, read_accounts
from .splice import splice
from .sse import EventScanner, read_fields, split_events
from .thread import read_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .exchange import Account


class Streamed(ABC):
    """The answering half of an `Exchange` whose backend sends events.

    A dialect says what bytes a last event has (`_mark`), which one is the last (`_is_last`) and how events
    become one answer (`_fold`, `_assemble`). On the way to a streaming client, an event is read only if it
    has the mark or may be an error.
    """

    stream: bool
    upstream_body: bytes
    has_tools = False
    calls_client = False
    can_be_pinned = False
    conversation: str | None = None
    """What the client calls the conversation."""

    output_limit: int | None

    _mark: bytes
    """What every last event contains; others may."""
    _limits: tuple[str, ...]
    """The members that may state the output limit, the dialect's own first."""
    _count_path: str
    """Where the backend counts the tokens of a prompt."""

    def __init__(self) -> None:
        self.finished = False
        self.failure: Problem | None = None
        self.tokens = (0, 0)
        self.account: Account | None = None
        self._scanner = EventScanner()

    @property
    def thread(self) -> Sequence[bytes]:
        """See `Exchange.thread`."""
        return read_thread(load(self.upstream_body), self.conversation)

    def pinned(self, slot: int) -> bytes:
        """See `Exchange.pinned`."""
        return splice(self.upstream_body, {"id_slot": b"%d" % slot})

    @property
    def count(self) -> tuple[str, bytes] | None:
        """See `Exchange.count`."""
        return self._count_path, self.upstream_body

    def limit_output(self, limit: int) -> None:
        """See `Exchange.limit_output`."""
        others: dict[str, bytes | None] = dict.fromkeys(self._limits)
        self.upstream_body = splice(self.upstream_body, others | {self._limits[0]: b"%d" % limit})
        self.output_limit = limit

    def keepalive(self, position: int, estimated_wait: float | None, away: str | None = None) -> bytes:
        """A comment: `: queued position=3 estimated_wait=4.2` (seconds) in line, `: keepalive` elsewhere.

        ` backend=loading` follows while the backend is away for that reason.
        """
        words = [f"queued position={position}" if position else "keepalive"]
        if position and estimated_wait is not None:
            words.append(f"estimated_wait={estimated_wait:.1f}")
        if away is not None:
            words.append(f"backend={away}")
        return f": {' '.join(words)}\n\n".encode()

    def relay(self, data: bytes) -> bytes:
        """See `Exchange.relay`."""
        if self.finished:
            return b""
        events = self._scanner.feed(data)
        self._account(events)
        if not self.stream:
            self._take(events)
            return b""
        return self._take(events) if self._is_marked(events) else self._pass(events)

    def answer(self) -> bytes:
        """See `Exchange.answer`."""
        if self.failure:
            raise ProblemError(self.failure)
        if not self.finished:
            raise ProblemError(bad_gateway())
        try:
            return dump(self._assemble())
        except FOREIGN:
            raise ProblemError(bad_gateway()) from None

    def error_body(self, problem: Problem) -> bytes:
        """See `Exchange.error_body`."""
        return dump(problem.openai())

    @abstractmethod
    def error_event(self, problem: Problem) -> bytes:
        """See `Exchange.error_event`."""

    @abstractmethod
    def _is_last(self, data: bytes, chunk: dict[str, Any]) -> bool:
        """Whether this event ends a complete answer; asked once for each event that is read.

        Args:
            data: the event's data.
            chunk: the JSON in it, empty for `[DONE]` and null.
        """

    @abstractmethod
    def _fold(self, chunk: dict[str, Any]) -> None:
        """Add the JSON of an event to the answer; may raise any of `FOREIGN` if it is of another dialect."""

    @abstractmethod
    def _assemble(self) -> object:
        """The answer, from what was folded; raises ProblemError if that is not a complete one."""

    def _account(self, events: bytes) -> None:
        """Take note of the tokens that events account for."""
        if TIMINGS in events:
            for each in read_accounts(events):
                self.tokens = (self.tokens[0] + each.prompt, self.tokens[1] + each.generated)
                self.account = each

    def _pass(self, events: bytes) -> bytes:
        """Let events through to the client."""
        return events

    def _fail(self, failure: Problem, event: bytes | None) -> bytes:  # noqa: ARG002 - some dialects pass it on
        """End the stream and return what a client is sent.

        Args:
            failure: what went wrong.
            event: the event that says so in an `error` member of its data; None if it says so in another way.
        """
        self.failure = failure
        self.finished = True
        return self.error_event(failure)

    def _is_marked(self, events: bytes) -> bool:
        return self._mark in events or b"error" in events

    def _take(self, events: bytes) -> bytes:
        taken = []
        for event in split_events(events):
            read = not self.stream or self._is_marked(event)
            taken.append(self._read(event) if read else self._pass(event))
            if self.finished:
                break
        return b"".join(taken)

    def _read(self, event: bytes) -> bytes:
        fields = read_fields(event)
        if b"error" in fields:  # where older servers put the error
            return self._fail(upstream_error(500, fields[b"error"]), None)
        if b"data" not in fields:
            return self._pass(event)
        data = fields[b"data"]
        try:
            chunk = {} if data == DONE else load(data) or {}
            if chunk.get("error"):
                return self._fail(upstream_error(500, data), event)
            if fields.get(b"event") == b"error":
                return self._fail(upstream_error(500, data), None)
            self.finished = self._is_last(data, chunk)
            if chunk and not self.stream:
                self._fold(chunk)
        except FOREIGN:
            return self._fail(bad_gateway(), None)
        return self._pass(event)


FOREIGN = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading JSON of another dialect's shape may end in."""

CUT = "\ufffd"
"""What an answer in one piece has in place of a character that the limit has cut, and a stream leaves out."""

DONE = b"[DONE]"
"""The data of the last event in the older OpenAI dialects."""


def load(data: bytes) -> Any:
    """Read JSON that the backend sent; broken UTF-8 inside it becomes U+FFFD."""
    return json.loads(data.decode(errors="replace"))


def dump(value: object) -> bytes:
    """Write JSON as compactly as the backend does, non-ASCII text as it is."""
    # A lone surrogate has no UTF-8; Python's backslash form of it is the JSON escape that it came from.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")
