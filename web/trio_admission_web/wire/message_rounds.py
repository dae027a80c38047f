"""Anthropic messages with tools of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .body import read_object
from .exchange import Call
from .messages import Messages
from .rounds import MAX_ROUNDS, Rounds, read_arguments, without_force
from .splice import extend, splice
from .streamed import dump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .offer import Function


class MessageRounds(Rounds, Messages):
    """A message in rounds; see `Conversation`."""

    def __init__(self, raw: bytes, functions: Sequence[Function]) -> None:
        self._base = 0  # index of this round's first block in the whole message
        super().__init__(raw, functions)
        self.upstream_body = extend(self.upstream_body, "tools", map(_describe, functions))

    def notice(self, facts: Mapping[str, Any]) -> bytes:
        """A ping with `admission`."""
        return self._write({"type": "ping", "admission": facts})

    def _begin_round(self) -> None:
        self._input: dict[str, Any] = {}
        self._content: dict[int, dict[str, Any]] = {}  # every block of this round
        self._inputs: dict[int, list[str]] = {}  # the gateway's tools
        self._shown: dict[int, int] = {}  # the backend's index -> ours
        self._calls_client = False
        self._reason: str | None = None

    @property
    def _acts(self) -> bool:
        """Whether the gateway runs what was called. Never what was cut off by the limit of tokens."""
        complete = self._reason in {"tool_use", "end_turn"}
        return complete and bool(self._inputs) and not self._calls_client and not self._last_round

    def _filter(self, chunk: Any) -> Any:
        kind = chunk["type"]
        if kind == "message_start":
            self._input = chunk["message"].get("usage") or {}
            return chunk if self._number == 1 else None
        if kind.startswith("content_block_"):
            return self._filter_block(kind, chunk)
        if kind == "message_delta":
            return self._filter_end(chunk)
        if kind == "message_stop" and self._acts:
            self.calls = tuple(self._call(index) for index in sorted(self._inputs))
            return None
        return chunk

    def _filter_block(self, kind: str, chunk: dict[str, Any]) -> dict[str, Any] | None:
        index = chunk["index"]
        if kind == "content_block_start":
            block = dict(chunk["content_block"])
            self._content[index] = block
            if block["type"] == "tool_use" and block["name"] in self._own:
                self._inputs[index] = []
            else:
                self._calls_client = self._calls_client or block["type"] == "tool_use"
                self._shown[index] = self._base + index - sum(hidden < index for hidden in self._inputs)
        elif kind == "content_block_delta":
            self._collect(index, chunk["delta"])
        if index in self._inputs:
            return None
        ours = self._shown[index]
        return chunk if ours == index else chunk | {"index": ours}

    def _collect(self, index: int, delta: dict[str, Any]) -> None:
        if index in self._inputs:
            self._inputs[index].append(delta.get("partial_json") or "")
            return
        name = delta["type"].removesuffix("_delta")
        if name in {"text", "thinking", "signature"}:
            block = self._content[index]
            block[name] = block.get(name, "") + delta[name]

    def _filter_end(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        self._reason = chunk["delta"].get("stop_reason") or self._reason
        usage = chunk.get("usage") or {}
        if self._acts:
            self._used = self._add_up(self._input | usage)
            return None
        return chunk if not self._used else chunk | {"usage": self._add_up(self._input | usage)}

    def _call(self, index: int) -> Call:
        text = "".join(self._inputs[index])
        block = self._content[index]
        return Call(block["id"], block["name"], read_arguments(text), text)

    def _write(self, chunk: Any) -> bytes:
        return b"event: " + str(chunk["type"]).encode() + b"\ndata: " + dump(chunk) + b"\n\n"

    def _next_body(self, results: Sequence[str]) -> bytes:
        self._base = max(self._shown.values(), default=self._base - 1) + 1
        calls = {call.id: call for call in self.calls}
        content = [
            block | {"input": calls[block["id"]].arguments or {}} if index in self._inputs else block
            for index, block in sorted(self._content.items())
            if block.get("text") != ""  # which the dialect does not allow
        ]
        told = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result}
            for call, result in zip(self.calls, results, strict=True)
        ]
        turns = [{"role": "assistant", "content": content}, {"role": "user", "content": told}]
        body = extend(self.upstream_body, "messages", map(dump, turns))
        return splice(body, self._freed(read_object(body)))

    def _freed(self, body: dict[str, Any]) -> dict[str, bytes | None]:
        """What changes after a round, so that the model can answer and at last has to."""
        changes = without_force(body)
        choice = body.get("tool_choice")
        if self._number + 1 == MAX_ROUNDS:
            changes["tool_choice"] = b'{"type":"none"}'
        elif isinstance(choice, dict) and choice.get("type") in {"any", "tool"}:
            changes["tool_choice"] = b'{"type":"auto"}'
        return changes

    @staticmethod
    def _name_of(tool: Any) -> object:
        return tool.get("name") if isinstance(tool, dict) else None


def _describe(function: Function) -> bytes:
    return dump({
        "name": function.name,
        "description": function.description,
        "input_schema": function.parameters,
    })
