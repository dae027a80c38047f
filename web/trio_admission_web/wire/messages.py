"""Anthropic messages: `/v1/messages`."""

from __future__ import annotations

import uuid
from typing import Any

from trio_admission_web.problems import Problem, ProblemError, bad_gateway

from .body import read_flag, read_limit, read_list, read_object, read_text
from .offer import for_upstream
from .prefill import Prefill, read_prefill
from .streamed import CUT, Streamed, dump, load


class Messages(Streamed):
    """An Anthropic message; see `Exchange`.

    llama-server leaves `message_start` out when the first token is only a part of a character. What is said
    there alone is then unknown to an answer in one piece: its input tokens are null, and its model is the one
    that the client named.
    """

    path = "/v1/messages"
    _limits = ("max_tokens",)
    _count_path = "/v1/messages/count_tokens"
    slots = 1
    _mark = b"message_stop"

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        body = read_object(raw)
        messages = read_list(body, "messages")
        self.model = read_text(body, "model")
        self.stream = read_flag(body, "stream")
        self.output_limit = read_limit(body, *self._limits)
        self.upstream_body = for_upstream(raw, body, {} if self.stream else {"stream": b"true"})
        self.has_tools = bool(body.get("tools"))
        self._start: dict[str, Any] = {}
        self._end: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks = {} if self.stream else _prefilled(read_prefill(messages))

    def keepalive(self, position: int, estimated_wait: float | None, away: str | None = None) -> bytes:
        """A ping; in line its data is `{"type":"ping","position":3,"estimated_wait":4.2}` (seconds).

        `"backend":"loading"` is in it while the backend is away for that reason.
        """
        ping: dict[str, object] = {"type": "ping"}
        if position:
            ping["position"] = position
            if estimated_wait is not None:
                ping["estimated_wait"] = round(estimated_wait, 1)
        if away is not None:
            ping["backend"] = away
        return b"event: ping\ndata: " + dump(ping) + b"\n\n"

    def error_event(self, problem: Problem) -> bytes:
        """See `Exchange.error_event`."""
        return b"event: error\ndata: " + dump(problem.anthropic()) + b"\n\n"

    def error_body(self, problem: Problem) -> bytes:
        """See `Exchange.error_body`."""
        return dump(problem.anthropic())

    def _fail(self, failure: Problem, event: bytes | None) -> bytes:
        translated = super()._fail(failure, event)
        # SDKs pass over an event without a name.
        return translated if event is None or not event.startswith(b"event") else event

    def _is_marked(self, events: bytes) -> bool:
        return super()._is_marked(events) or (self.has_tools and b'"tool_use"' in events)

    def _is_last(self, data: bytes, chunk: dict[str, Any]) -> bool:  # noqa: ARG002
        if chunk.get("type") == "message_delta" and chunk["delta"].get("stop_reason") == "tool_use":
            self.calls_client = True
        return chunk.get("type") == "message_stop"

    def _fold(self, chunk: dict[str, Any]) -> None:
        kind = chunk["type"]
        if kind == "message_start":
            self._start = chunk["message"]
        elif kind == "message_delta":
            self._end |= chunk["delta"]
            self._usage |= chunk.get("usage") or {}
        elif kind == "content_block_start":
            self._block(chunk["index"]).start(chunk["content_block"])
        elif kind == "content_block_delta":
            self._block(chunk["index"]).fold(chunk["delta"])

    def _block(self, index: int) -> _Block:
        return self._blocks.setdefault(index, _Block())

    def _assemble(self) -> dict[str, Any]:
        if self._end.get("stop_reason") is None:
            raise ProblemError(bad_gateway())
        content = [self._blocks[index].assemble() for index in sorted(self._blocks)]
        if not content and not self._start:
            content = [{"type": "text", "text": CUT}]
        start = self._start or self._unknown_start()
        return start | self._end | {"content": content, "usage": start["usage"] | self._usage}

    def _unknown_start(self) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "stop_sequence": None,
            "usage": {"cache_read_input_tokens": None, "input_tokens": None},
        }


class _Block:
    """One block of the message's content, as far as it has come."""

    def __init__(self) -> None:
        self._members: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._input: list[str] = []

    def start(self, block: dict[str, Any]) -> None:
        for name, value in block.items():
            if name in {"text", "thinking", "signature"}:
                self._texts.setdefault(name, []).append(value)
            else:
                self._members[name] = value

    def fold(self, delta: dict[str, Any]) -> None:
        kind = delta["type"]
        if kind == "input_json_delta":
            self._input.append(delta["partial_json"])
        elif kind == "citations_delta":
            self._members["citations"] = [*(self._members.get("citations") or ()), delta["citation"]]
        else:  # text_delta, thinking_delta, signature_delta
            name = kind.removesuffix("_delta")
            self._texts.setdefault(name, []).append(delta[name])

    def assemble(self) -> dict[str, Any]:
        block = self._members | {name: "".join(pieces) for name, pieces in self._texts.items()}
        if block.get("type") == "tool_use":
            block["input"] = _read_input("".join(self._input)) or block.get("input") or {}
        return block


def _read_input(text: str) -> Any:
    try:
        return load(text.encode(errors="surrogatepass"))
    except (ValueError, RecursionError):
        return None  # cut off by max_tokens; the server gives an empty object, too


def _prefilled(prefill: Prefill) -> dict[int, _Block]:
    """The blocks that the client began, numbered as the server numbers them."""
    begun: list[dict[str, Any]] = []
    if prefill.reasoning:
        begun.append({"type": "thinking", "thinking": prefill.reasoning})
    if prefill.text:
        begun.append({"type": "text", "text": prefill.text})
    blocks = {index: _Block() for index in range(len(begun))}
    for index, block in enumerate(begun):
        blocks[index].start(block)
    return blocks
