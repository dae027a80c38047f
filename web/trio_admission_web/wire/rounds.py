"""Answers that take several rounds, because the model calls tools that the gateway runs in between.

To the client they are one answer: the calls of the gateway's tools are taken out of the stream, and so is
every ending but the last; what each round has used is added up. A call of one of the client's own tools ends
the answer as it always does; calls of the gateway's tools beside it are dropped, and the model may make them
again in the follow-up.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from trio_admission_web.problems import ProblemError, bad_gateway, invalid_request

from .body import read_list, read_object
from .sse import EventScanner, read_fields, split_events
from .streamed import DONE, FOREIGN, Streamed, dump, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .exchange import Call
    from .offer import Function

MAX_ROUNDS: Final = 8
"""Requests to the backend for one answer; in the last one the model must not call anything."""


class Rounds(Streamed):
    """Goes before a dialect's class; see `Conversation`.

    Args:
        raw: The client's body.
        functions: The gateway's tools that the model may call.
    """

    slots: int
    upstream_body: bytes

    def __init__(self, raw: bytes, functions: Sequence[Function]) -> None:
        super().__init__(raw)  # type: ignore[call-arg]  # the dialect's
        self.calls: tuple[Call, ...] = ()
        self._own = {each.name for each in functions}
        self._number = 1
        self._used: dict[str, Any] = {}  # in the rounds before this one
        self._outer_scanner = EventScanner()
        body = read_object(raw)
        if self.slots != 1:
            raise ProblemError(invalid_request("'n' must be 1 with tools of the gateway.", "n"))
        read_list(body, "messages")
        tools = [] if body.get("tools") is None else read_list(body, "tools")
        names = [self._name_of(each) for each in tools]
        if clash := self._own.intersection(name for name in names if isinstance(name, str)):
            message = f"The tool {min(clash)!r} is both yours and the gateway's."
            raise ProblemError(invalid_request(message, "tools"))
        self._begin_round()

    def relay(self, data: bytes) -> bytes:
        """See `Exchange.relay`."""
        if self.finished:
            return b""
        events = self._outer_scanner.feed(data)
        super()._account(events)
        return super().relay(b"".join(self._let_through(event) for event in split_events(events)))

    def go_on(self, results: Sequence[str]) -> None:
        """See `Conversation.go_on`."""
        self.upstream_body = self._next_body(results)
        self.calls = ()
        self._number += 1
        self._outer_scanner = EventScanner()
        self._begin_round()

    def _account(self, events: bytes) -> None:
        """Nothing: `relay` has seen all events, those that end a round and go no further among them."""

    @property
    def _last_round(self) -> bool:
        return self._number == MAX_ROUNDS

    def _let_through(self, event: bytes) -> bytes:
        data = read_fields(event).get(b"data")
        if data is None or self.calls:
            return b"" if self.calls else event
        try:
            chunk = {} if data == DONE else load(data)
            if isinstance(chunk, dict) and (chunk.get("error") or chunk.get("type") == "error"):
                return event
            changed = self._filter(chunk)
        except FOREIGN:
            raise ProblemError(bad_gateway()) from None
        if changed is None:
            return b""
        return event if changed is chunk else self._write(changed)

    def _add_up(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        return add_up(self._used, usage)

    @abstractmethod
    def _begin_round(self) -> None:
        """Forget what the last round said."""

    @abstractmethod
    def _filter(self, chunk: Any) -> Any:
        """Take note of one event's JSON, `{}` for `[DONE]`.

        Returns the very same object to let the event pass as it is, another one to send that instead, None to
        send nothing. Sets `calls` when the round ends in calls that the gateway runs.
        """

    @abstractmethod
    def _write(self, chunk: Any) -> bytes:
        """The event with this JSON."""

    @abstractmethod
    def _next_body(self, results: Sequence[str]) -> bytes:
        """The body of the next request: the conversation with the calls and their results added."""

    @staticmethod
    @abstractmethod
    def _name_of(tool: Any) -> object:
        """The name of one of the client's tools."""


def read_arguments(text: str) -> Any:
    """The arguments of a call, as JSON; None if they are none, or such that the backend cannot read them."""
    try:
        value = json.loads(text or "{}")
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # NaN, 1e999, a lone surrogate
    except (ValueError, RecursionError):
        return None
    return value


def add_up(total: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Add numbers that have the same name, on every level."""
    result = dict(total)
    for name, value in more.items():
        old = result.get(name)
        if isinstance(value, dict):
            result[name] = add_up(old if isinstance(old, dict) else {}, value)
        elif type(value) is int and type(old) is int:
            result[name] = old + value
        else:
            result[name] = value
    return result


def without_force(body: Mapping[str, Any]) -> dict[str, bytes | None]:
    """End our own template's way to force a call (engine/tools.jinja), as the tool choice's force ends."""
    options = body.get("chat_template_kwargs")
    if not isinstance(options, dict) or "force_tool_call" not in options:
        return {}
    kept = {name: value for name, value in options.items() if name != "force_tool_call"}
    return {"chat_template_kwargs": dump(kept)}
