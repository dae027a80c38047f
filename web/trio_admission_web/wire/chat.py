"""OpenAI chat completions: `/v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trio_admission_web.problems import Problem, ProblemError, bad_gateway

from .body import read_count, read_flag, read_limit, read_list, read_object, read_text
from .splice import splice
from .streamed import DONE, Streamed, dump

if TYPE_CHECKING:
    from collections.abc import Mapping

_AS_STREAM: Mapping[str, bytes] = {"stream": b"true", "stream_options": b'{"include_usage":true}'}
_LIMITS = ("max_completion_tokens", "n_predict", "max_tokens")


class Chat(Streamed):
    """A chat completion; see `Exchange`."""

    path = "/v1/chat/completions"
    _marks = (b"[DONE]", b'"error"', b"error:", b"event: error")

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        body = read_object(raw)
        read_list(body, "messages")
        self.model = read_text(body, "model")
        self.stream = read_flag(body, "stream")
        self.slots = max(read_count(body, "n"), read_count(body, "n_cmpl"))
        self.output_limit = read_limit(body, *_LIMITS)
        self.upstream_body = raw if self.stream else splice(raw, _AS_STREAM)
        self._top: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._ended_last: _Choice | None = None

    def error_event(self, problem: Problem) -> bytes:
        """See `Exchange.error_event`."""
        return b"data: " + dump(problem.openai()) + b"\n\n" + _ENDING

    def error_body(self, problem: Problem) -> bytes:
        """See `Exchange.error_body`."""
        return dump(problem.openai())

    def _is_last(self, fields: Mapping[bytes, bytes]) -> bool:
        return fields.get(b"data") == DONE

    def _end_failed(self, event: bytes, failure: Problem) -> bytes:
        # SDKs raise on an `error` object in a `data` field and skip every other form.
        return event + _ENDING if b'"error"' in event else self.error_event(failure)

    def _fold(self, chunk: dict[str, Any]) -> None:
        parts = chunk.pop("choices")
        for part in parts:
            choice = self._choices.setdefault(part["index"], _Choice())
            choice.fold(part)
            if choice.ended:
                self._ended_last = choice
        usage, timings = chunk.pop("usage", None), chunk.pop("timings", None)
        # The server accounts for each choice by itself, with its end or right behind it; before that
        # (`timings_per_token`) it is not final.
        if self._ended_last and (not parts or choice is self._ended_last):
            self._ended_last.account(usage, timings)
        chunk.pop("prompt_progress", None)  # tells of the way, not of the answer
        self._top |= chunk

    def _assemble(self) -> dict[str, Any]:
        choices = [self._choices[index] for index in sorted(self._choices)]
        if not choices or not all(choice.ended for choice in choices):
            raise ProblemError(bad_gateway())
        answer = {
            "choices": [choice.assemble() for choice in choices],
            **self._top,
            "object": "chat.completion",
        }
        # Of several choices the server gives the first one's account, too.
        for name in ("usage", "timings"):
            value = next((found for choice in choices if (found := getattr(choice, name)) is not None), None)
            if value is not None:
                answer[name] = value
        return answer


_ENDING = b"data: [DONE]\n\n"


class _Choice:
    """One of the answers to the same prompt, as far as it has come."""

    def __init__(self) -> None:
        self.usage: Any = None
        self.timings: Any = None
        self._members: dict[str, Any] = {"finish_reason": None}
        self._message: dict[str, Any] = {"role": "assistant"}
        self._texts: dict[str, list[str]] = {"content": []}
        self._calls: dict[int, _Call] = {}
        self._logprobs: dict[str, list[Any]] = {}

    @property
    def ended(self) -> bool:
        return self._members["finish_reason"] is not None

    def account(self, usage: Any, timings: Any) -> None:
        if usage is not None:
            self.usage = usage
        if timings is not None:
            self.timings = timings

    def fold(self, part: dict[str, Any]) -> None:
        for name, value in part.pop("delta").items():
            if name == "tool_calls":
                for call in value or ():
                    self._calls.setdefault(call["index"], _Call()).fold(call)
            elif name == "role":
                self._message["role"] = value
            elif isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif value is not None:
                self._message[name] = value
        for name, tokens in (part.pop("logprobs", None) or {}).items():
            self._logprobs.setdefault(name, []).extend(tokens or ())
        self._members |= part

    def assemble(self) -> dict[str, Any]:
        message = self._message | {name: "".join(parts) for name, parts in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [self._calls[index].assemble() for index in sorted(self._calls)]
        choice = self._members | {"message": message}
        if self._logprobs:
            choice["logprobs"] = self._logprobs
        return choice


class _Call:
    """One tool call, as far as it has come."""

    def __init__(self) -> None:
        self._members: dict[str, Any] = {"type": "function"}
        self._texts: dict[str, list[str]] = {"name": [], "arguments": []}

    def fold(self, part: dict[str, Any]) -> None:
        for name, value in part.pop("function", {}).items():
            self._texts.setdefault(name, []).append(value)
        self._members |= {
            name: value for name, value in part.items() if value is not None and name != "index"
        }

    def assemble(self) -> dict[str, Any]:
        return self._members | {"function": {name: "".join(parts) for name, parts in self._texts.items()}}
