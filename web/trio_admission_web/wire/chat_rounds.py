"""Chat completions with tools of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .body import read_object
from .chat import Chat
from .exchange import Call
from .rounds import MAX_ROUNDS, Rounds, read_arguments, without_force
from .splice import extend, splice
from .streamed import dump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .offer import Function


class ChatRounds(Rounds, Chat):
    """A chat completion in rounds; see `Conversation`."""

    def __init__(self, raw: bytes, functions: Sequence[Function]) -> None:
        super().__init__(raw, functions)
        self._first: dict[str, Any] = {}
        self.upstream_body = extend(self.upstream_body, "tools", map(_describe, functions))

    def notice(self, facts: Mapping[str, Any]) -> bytes:
        """A chunk without choices and with `admission`."""
        return self._write({**self._first, "choices": [], "admission": facts})

    def _begin_round(self) -> None:
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        self._called: dict[int, dict[str, str]] = {}  # the gateway's tools
        self._shown: dict[int, int] = {}  # the client's: the backend's index -> ours
        self._reason: str | None = None

    @property
    def _acts(self) -> bool:
        """Whether the gateway runs what was called. Never what was cut off by the limit of tokens."""
        complete = self._reason in {"tool_calls", "stop"}
        return complete and bool(self._called) and not self._shown and not self._last_round

    def _filter(self, chunk: Any) -> Any:
        if not chunk:
            if self._acts:
                self.calls = tuple(self._call(index) for index in sorted(self._called))
                return None
            return chunk
        shown = dict(chunk)
        if not self._first:
            names = ("id", "object", "created", "model")
            self._first = {name: chunk[name] for name in names if name in chunk}
        elif self._number > 1:
            shown |= {name: value for name, value in self._first.items() if name in chunk}
        if chunk.get("choices"):
            [part] = chunk["choices"]
            shown["choices"] = [self._filter_part(part)]
        if chunk.get("usage") and self._reason is not None:
            shown["usage"] = self._add_up(chunk["usage"])
            if self._acts:
                self._used = shown.pop("usage")
        if shown == chunk:
            return chunk
        return shown if _says_something(shown) else None

    def _filter_part(self, part: dict[str, Any]) -> dict[str, Any]:
        delta = dict(part.get("delta") or {})
        for name, pieces in self._texts.items():
            if isinstance(delta.get(name), str):
                pieces.append(delta[name])
        if self._number > 1:
            delta.pop("role", None)
        if delta.get("tool_calls"):
            delta["tool_calls"] = [each for call in delta["tool_calls"] if (each := self._take_call(call))]
        part = part | {"delta": delta}
        self._reason = part.get("finish_reason") or self._reason
        if self._acts:
            part["finish_reason"] = None
        return part

    def _take_call(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """Collect what is the gateway's; return what is the client's."""
        index, function = call["index"], call.get("function") or {}
        if index not in self._called and index not in self._shown:
            if function.get("name") in self._own:
                self._called[index] = {"id": call.get("id") or f"call_{self._number}_{index}", "text": ""}
                self._called[index]["name"] = function["name"]
            else:
                self._shown[index] = len(self._shown)
        if index in self._shown:
            return call | {"index": self._shown[index]}
        self._called[index]["text"] += function.get("arguments") or ""
        return None

    def _call(self, index: int) -> Call:
        found = self._called[index]
        return Call(found["id"], found["name"], read_arguments(found["text"]), found["text"])

    def _write(self, chunk: Any) -> bytes:
        return b"data: " + dump(chunk) + b"\n\n"

    def _next_body(self, results: Sequence[str]) -> bytes:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        message: dict[str, Any] = {"role": "assistant", "content": texts.pop("content") or None}
        message |= {name: text for name, text in texts.items() if text}
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                # the backend reads it, and fails if it is no JSON
                "function": {"name": call.name, "arguments": "{}" if call.arguments is None else call.text},
            }
            for call in self.calls
        ]
        told = [
            {"role": "tool", "tool_call_id": call.id, "content": result}
            for call, result in zip(self.calls, results, strict=True)
        ]
        body = extend(self.upstream_body, "messages", map(dump, [message, *told]))
        return splice(body, self._freed(read_object(body)))

    def _freed(self, body: dict[str, Any]) -> dict[str, bytes | None]:
        """What changes after a round, so that the model can answer and at last has to."""
        changes = without_force(body)
        if self._number + 1 == MAX_ROUNDS:
            changes["tool_choice"] = b'"none"'
        elif body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), dict):
            changes["tool_choice"] = b'"auto"'
        return changes

    @staticmethod
    def _name_of(tool: Any) -> object:
        function = tool.get("function") if isinstance(tool, dict) else None
        return function.get("name") if isinstance(function, dict) else None


def _says_something(chunk: dict[str, Any]) -> bool:
    if chunk.get("usage"):
        return True
    return any(
        part.get("finish_reason") is not None or any(part["delta"].values())
        for part in chunk.get("choices") or ()
    )


def _describe(function: Function) -> bytes:
    described = {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
    }
    return dump({"type": "function", "function": described})
