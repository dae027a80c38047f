"""What chat completions and completions share: choices that come in pieces, and `[DONE]`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from trio_admission_web.problems import Problem, ProblemError, bad_gateway

from .streamed import DONE, Streamed, dump

AS_STREAM = {"stream": b"true", "stream_options": b'{"include_usage":true}'}
"""What a body needs for its answer to come as events that tell all that the one JSON answer would."""

LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
"""The names of the output limit that llama-server takes in these dialects."""

_ENDING = b"data: [DONE]\n\n"


class Choices(Streamed):
    """The answering half of the dialects with `choices`.

    The debugging aid `__verbose` is that of the last event: its `content` is empty, for what the model said
    before it was read as text, thoughts and calls is in no event.
    """

    _mark = b"[DONE]"
    _object: ClassVar[str]
    """The `object` of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self._top: dict[str, Any] = {}
        self._choices: dict[int, Choice] = {}
        self._ended_last: Choice | None = None

    def error_event(self, problem: Problem) -> bytes:
        """See `Exchange.error_event`."""
        return b"data: " + dump(problem.openai()) + b"\n\n" + _ENDING

    @abstractmethod
    def _new_choice(self) -> Choice:
        """A choice of which nothing has come yet."""

    def _fail(self, failure: Problem, event: bytes | None) -> bytes:
        translated = super()._fail(failure, event)
        # SDKs raise on an `error` object in the data of an event; every other form they pass over.
        return translated if event is None else event + _ENDING

    def _is_last(self, data: bytes, chunk: dict[str, Any]) -> bool:  # noqa: ARG002
        return data == DONE

    def _fold(self, chunk: dict[str, Any]) -> None:
        choice: Choice | None = None
        for part in chunk.pop("choices"):
            index = part["index"]
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = self._new_choice()
            choice.fold(part)
            if choice.ended:
                self._ended_last = choice
        usage, timings = chunk.pop("usage", None), chunk.pop("timings", None)
        # The server accounts for each choice by itself, with its end or right behind it; before that
        # (`timings_per_token`) the figures are not final.
        if self._ended_last is not None and choice in {None, self._ended_last}:
            self._ended_last.account(usage, timings)
        chunk.pop("prompt_progress", None)  # tells of the way, not of the answer
        self._top |= chunk

    def _assemble(self) -> dict[str, Any]:
        choices = [self._choices[index] for index in sorted(self._choices)]
        if not choices or not all(choice.ended for choice in choices):
            raise ProblemError(bad_gateway())
        answer = {"choices": [choice.assemble() for choice in choices], **self._top, "object": self._object}
        # Of several choices the server, too, gives the first one's account only.
        usage = next((choice.usage for choice in choices if choice.usage is not None), None)
        if usage is not None:
            answer["usage"] = usage
        timings = next((choice.timings for choice in choices if choice.timings is not None), None)
        if timings is not None:
            answer["timings"] = timings
        return answer


class Choice(ABC):
    """One of the answers to a prompt, as far as it has come."""

    def __init__(self) -> None:
        self.usage: Any = None
        self.timings: Any = None
        self._members: dict[str, Any] = {}
        self._logprobs: dict[str, list[Any]] = {}

    @property
    def ended(self) -> bool:
        """Whether its reason to finish has come."""
        return self._members.get("finish_reason") is not None

    def account(self, usage: Any, timings: Any) -> None:
        """Note what the choice cost, as far as it is told."""
        if usage is not None:
            self.usage = usage
        if timings is not None:
            self.timings = timings

    def fold(self, part: dict[str, Any]) -> None:
        """Add what a chunk says of this choice."""
        for name, tokens in (part.pop("logprobs", None) or {}).items():
            self._logprobs.setdefault(name, []).extend(tokens or ())
        self._members |= part

    @abstractmethod
    def assemble(self) -> dict[str, Any]:
        """The whole choice."""
