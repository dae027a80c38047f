"""OpenAI chat completions: `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from .body import read_choices, read_flag, read_limit, read_list, read_object, read_text
from .choices import AS_STREAM, LIMITS, Choice, Choices
from .offer import for_upstream, read_conversation
from .prefill import Prefill, read_prefill
from .streamed import CUT


class Chat(Choices):
    """A chat completion; see `Exchange`."""

    path = "/v1/chat/completions"
    _limits = LIMITS
    _count_path = "/v1/chat/completions/input_tokens"
    _object = "chat.completion"

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        body = read_object(raw)
        messages = read_list(body, "messages")
        self.model = read_text(body, "model")
        self.stream = read_flag(body, "stream")
        self.slots = read_choices(body)
        self.output_limit = read_limit(body, *self._limits)
        self.conversation = read_conversation(body)
        self.can_be_pinned = self.slots == 1
        self.upstream_body = for_upstream(raw, body, {} if self.stream else AS_STREAM)
        self.has_tools = bool(body.get("tools"))
        self._prefill = Prefill() if self.stream else read_prefill(messages)

    def _is_marked(self, events: bytes) -> bool:
        return super()._is_marked(events) or (self.has_tools and b'"tool_calls"' in events)

    def _is_last(self, data: bytes, chunk: dict[str, Any]) -> bool:
        reasons = (part.get("finish_reason") for part in chunk.get("choices") or ())
        self.calls_client = self.calls_client or "tool_calls" in reasons
        return super()._is_last(data, chunk)

    def _new_choice(self) -> Choice:
        return _ChatChoice(self._prefill)


class _ChatChoice(Choice):
    def __init__(self, prefill: Prefill) -> None:
        super().__init__()
        self._message: dict[str, Any] = {"role": "assistant"}
        self._texts = {"content": [prefill.text]}
        if prefill.reasoning:
            self._texts["reasoning_content"] = [prefill.reasoning]
        self._calls: dict[int, _Call] = {}
        self._begun = bool(prefill.text or prefill.reasoning)

    def fold(self, part: dict[str, Any]) -> None:
        delta = part.pop("delta", None) or {}
        self._begun = self._begun or bool(delta)
        for name, value in delta.items():
            if name == "tool_calls":
                for call in value or ():
                    self._calls.setdefault(call["index"], _Call()).fold(call)
            elif isinstance(value, str) and name != "role":
                self._texts.setdefault(name, []).append(value)
            elif value is not None:
                self._message[name] = value
        super().fold(part)

    def assemble(self) -> dict[str, Any]:
        message = self._message | {name: "".join(pieces) for name, pieces in self._texts.items()}
        if not self._begun:  # the first delta comes with the first character
            message["content"] = CUT
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
        for name, piece in (part.pop("function", None) or {}).items():
            if piece is not None:
                self._texts.setdefault(name, []).append(piece)
        del part["index"]
        self._members |= {name: value for name, value in part.items() if value is not None}

    def assemble(self) -> dict[str, Any]:
        function = {name: "".join(pieces) for name, pieces in self._texts.items()}
        return self._members | {"function": function}
