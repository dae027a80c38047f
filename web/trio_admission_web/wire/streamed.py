"""What the dialects share that answer in a stream of events."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from trio_admission_web.problems import Problem, ProblemError, bad_gateway, upstream_error

from .sse import EventScanner, read_fields, split_events

if TYPE_CHECKING:
    from collections.abc import Mapping


class Streamed(ABC):
    """The answering half of an `Exchange` whose backend sends events.

    A dialect says which events are worth a look (`_marks`), which one is the last (`_is_last`) and how the
    events become one answer (`_fold`, `_assemble`). On the way to a streaming client, bytes without a mark
    are not read.
    """

    stream: bool

    _marks: ClassVar[tuple[bytes, ...]]
    """Every last event and every error contains one of these; other events may."""

    def __init__(self) -> None:
        self.finished = False
        self.failure: Problem | None = None
        self._scanner = EventScanner()

    def keepalive(self, position: int, estimated_wait: float | None) -> bytes:
        """A comment: `: queued position=3 estimated_wait=4.2` (seconds) in line, `: keepalive` elsewhere."""
        if position == 0:
            return b": keepalive\n\n"
        wait = "" if estimated_wait is None else f" estimated_wait={estimated_wait:.1f}"
        return f": queued position={position}{wait}\n\n".encode()

    def relay(self, data: bytes) -> bytes:
        """See `Exchange.relay`."""
        if self.finished:
            return b""
        events = self._scanner.feed(data)
        if not self.stream:
            self._take(events, fold=True)
            return b""
        if any(mark in events for mark in self._marks):
            return self._take(events, fold=False)
        return events

    def answer(self) -> bytes:
        """See `Exchange.answer`."""
        if self.failure:
            raise ProblemError(self.failure)
        if not self.finished:
            raise ProblemError(bad_gateway())
        return dump(self._assemble())

    @abstractmethod
    def error_event(self, problem: Problem) -> bytes:
        """See `Exchange.error_event`."""

    @abstractmethod
    def _is_last(self, fields: Mapping[bytes, bytes]) -> bool:
        """Whether this event ends a complete answer."""

    @abstractmethod
    def _fold(self, chunk: dict[str, Any]) -> None:
        """Add the data of an event to the answer.

        Raises:
            ValueError, TypeError, KeyError: the data is not of this dialect.
        """

    @abstractmethod
    def _assemble(self) -> dict[str, Any]:
        """The answer, from what was folded; ProblemError if that is not a complete one."""

    def _end_failed(self, event: bytes, failure: Problem) -> bytes:  # noqa: ARG002 - for dialects that pass it on
        """What a client is sent for the event that brought the failure."""
        return self.error_event(failure)

    def _take(self, events: bytes, *, fold: bool) -> bytes:
        passed = []
        for event in split_events(events):
            fields = read_fields(event)
            failure = _failure_in(fields)
            if failure is None and fold:
                failure = self._fold_data(fields.get(b"data"))
            if failure is not None:
                self.failure = failure
                self.finished = True
                passed.append(self._end_failed(event, failure))
                break
            passed.append(event)
            if self._is_last(fields):
                self.finished = True
                break
        return b"".join(passed)

    def _fold_data(self, data: bytes | None) -> Problem | None:
        if data is None or data == DONE:
            return None
        try:
            self._fold(load(data))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return bad_gateway()
        return None


DONE = b"[DONE]"
"""The data of the last event in the OpenAI dialects."""


def load(data: bytes) -> Any:
    """Read JSON that the backend sent; broken UTF-8 inside it becomes U+FFFD."""
    return json.loads(data.decode(errors="replace"))


def dump(value: object) -> bytes:
    """Write JSON as compactly as the backend does, non-ASCII text as it is."""
    # A lone surrogate has no UTF-8; Python's backslash form of it is the JSON escape that it came from.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def _failure_in(fields: Mapping[bytes, bytes]) -> Problem | None:
    """The error that an event brings, in any of the forms that backends have used."""
    data = fields.get(b"data", b"")
    if b"error" in fields:  # servers before 2026 put the object into a field of this name
        return upstream_error(500, fields[b"error"])
    if fields.get(b"event") == b"error":
        return upstream_error(500, data)
    if b'"error"' not in data:
        return None
    try:
        chunk = load(data)
    except (ValueError, RecursionError):
        return None
    return upstream_error(500, data) if isinstance(chunk, dict) and chunk.get("error") else None
