"""`Exchange`: what the rest of the gateway may know of a dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trio_admission_web.problems import Problem


class Exchange(Protocol):
    """One request and its answer in one dialect.

    Made from the raw body of the request; the making raises `ProblemError` (`invalid_request`) if the body is
    wrong in something that the gateway must know. What it need not know is the backend's to judge.

    Only answers of the type `text/event-stream` are fed to `relay`. Any other answer of the backend (its own
    4xx, or JSON from a server that does not stream) is passed on as it is: status, content type and bytes. If
    the client's stream has begun already, it is told `error_event(upstream_error(status, body))` instead.
    """

    @property
    def path(self) -> str:
        """The backend's path, a constant of the dialect."""

    @property
    def model(self) -> str | None:
        """The model that the client named."""

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream."""

    @property
    def slots(self) -> int:
        """How many slots the backend decodes it in, 1 or more."""

    @property
    def output_limit(self) -> int | None:
        """Tokens that may be generated for each choice; None if the client set no limit."""

    @property
    def count(self) -> tuple[str, bytes] | None:
        """The backend's path and the body with which it can be asked for the tokens of the prompt.

        None if there is no such path for this request.
        """

    def limit_output(self, limit: int) -> None:
        """Ask the backend for at most so many tokens for each choice, instead of whatever was asked for."""

    @property
    def has_tools(self) -> bool:
        """Whether the model may call tools of the client."""

    @property
    def calls_client(self) -> bool:
        """Whether the answer, as far as it has come, ends in calls of the client's tools."""

    @property
    def upstream_body(self) -> bytes:
        """The client's bytes, changed only to ask for a stream where the client did not, and without what is
        not for the backend: `admission` and `id_slot`.
        """

    @property
    def can_be_pinned(self) -> bool:
        """Whether the backend lets itself be told the slot to decode in."""

    def pinned(self, slot: int) -> bytes:
        """`upstream_body` for this slot; only if it `can_be_pinned`."""

    @property
    def thread(self) -> Sequence[bytes]:
        """What tells the conversation from others: a hash for each of its beginnings, the longest one last.

        Nothing if there is nothing to tell it by. Takes a reading of the body each time.
        """

    @property
    def account(self) -> Account | None:
        """What the backend said that the last prompt and its answer have cost it."""

    def keepalive(self, position: int, estimated_wait: float | None, away: str | None = None) -> bytes:
        """One event that every client of the dialect ignores.

        Args:
            position: the place in line, 1 = next; 0 when the request is not in line.
            estimated_wait: seconds, or None if there is no estimate.
            away: one word for why the backend cannot be asked now; None if it can.
        """

    def relay(self, data: bytes) -> bytes:
        """Take the next bytes of the backend's event stream; return what a streaming client may be sent now.

        That is always whole events, byte for byte. An error inside the stream sets `failure` and is returned
        in the dialect's form, with the dialect's ending. What comes after `finished` is dropped. For a client
        that did not ask for a stream, the events are kept for `answer` and nothing is returned.

        Raises:
            ProblemError: `bad_gateway`, when the bytes cannot be an event stream.
        """

    @property
    def finished(self) -> bool:
        """The dialect's last event was seen, or an error that ends the stream.

        If the backend's stream ends before this is true, the client is owed `error_event(bad_gateway())`.
        """

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompt that the backend read anew, and those it generated, as far as it said so."""

    @property
    def failure(self) -> Problem | None:
        """The error that the backend sent inside its stream."""

    def answer(self) -> bytes:
        """The JSON answer of a request without a stream, put together from all events.

        Raises:
            ProblemError: `failure`, or `bad_gateway` if the stream was cut or is not an answer.
        """

    def error_event(self, problem: Problem) -> bytes:
        """The problem inside a stream, with the dialect's ending. Nothing may be sent after it."""

    def error_body(self, problem: Problem) -> bytes:
        """The problem as the JSON body of an HTTP error."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one prompt and its answer have cost.

    Args:
        prompt: Tokens of the prompt that were read anew.
        generated: Tokens of the answer.
        cached: Tokens of the prompt that the backend still knew.
        prompt_ms: Milliseconds for the tokens that were read anew; None if it is not said.
    """

    prompt: int
    generated: int
    cached: int = 0
    prompt_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, complete.

    Args:
        id: What the backend calls it.
        name: The tool's name.
        arguments: The JSON that the model wrote, usually an object; None if it is no JSON.
        text: The same as the model wrote it.
    """

    id: str
    name: str
    arguments: Any
    text: str


class Conversation(Exchange, Protocol):
    """An exchange whose answer may take several requests to the backend, with tools run in between.

    When the backend's stream for one round has ended in calls, `calls` has them and `finished` is false. Then
    `go_on` gives their results, and `upstream_body` is what to send next.
    """

    @property
    def calls(self) -> Sequence[Call]:
        """The calls to run now."""

    def go_on(self, results: Sequence[str]) -> None:
        """Begin the next round.

        Args:
            results: one for each of `calls`, in their order.
        """

    def notice(self, facts: Mapping[str, Any]) -> bytes:
        """One event that tells a client about its tools, and that other clients of the dialect ignore."""
