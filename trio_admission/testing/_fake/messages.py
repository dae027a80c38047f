"""Anthropic's messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from .dialect import Dialect, Said, chat_prompt, event, typed_event
from .errors import ApiError
from .script import Kind, Piece

if TYPE_CHECKING:
    from .results import Timings, Token


class Message(Dialect):
    """`/v1/messages`. As the server does, blocks are closed together at the end."""

    default_limit: ClassVar[int | None] = 4096

    def read_prompts(self) -> list[str]:
        """Return the conversation as one prompt."""
        messages = self.body.get("messages")
        if messages is None:
            raise ApiError(500, "'messages' is required")
        self._blocks: dict[tuple[Kind, int], int] = {}
        system = [{"role": "system", "content": self.body["system"]}] if self.body.get("system") else []
        if isinstance(messages, list):
            messages = [*system, *messages]
        return [chat_prompt(messages, self.body.get("tools"), vision=self.facts.vision)]

    def begin(self, index: int, timings: Timings) -> bytes:  # noqa: ARG002 (a message has one sequence)
        """Return the start of the message."""
        return typed_event({"type": "message_start", "message": self._message(timings)})

    def token(self, token: Token) -> bytes:
        """Return the token's delta, after the start of its block."""
        piece, opening = token.piece, b""
        key = (piece.kind, piece.call)
        if key not in self._blocks:
            self._blocks[key] = len(self._blocks)
            block = {
                "type": "content_block_start",
                "index": self._blocks[key],
                "content_block": self._empty(piece),
            }
            opening = typed_event(block)
        match piece.kind:
            case Kind.REASONING:
                delta = {"type": "thinking_delta", "thinking": piece.text}
            case Kind.TEXT:
                delta = {"type": "text_delta", "text": piece.text}
            case Kind.CALL:
                delta = {"type": "input_json_delta", "partial_json": piece.text}
        return opening + typed_event({
            "type": "content_block_delta",
            "index": self._blocks[key],
            "delta": delta,
        })

    def end(self, index: int, said: Said) -> bytes:  # noqa: ARG002 (a message has one sequence)
        """Return what closes the blocks and the message."""
        closing = []
        for (kind, _), number in self._blocks.items():
            if kind is Kind.REASONING:
                delta = {"type": "signature_delta", "signature": ""}
                closing.append(typed_event({"type": "content_block_delta", "index": number, "delta": delta}))
            closing.append(typed_event({"type": "content_block_stop", "index": number}))
        usage = {"output_tokens": said.outcome.timings.predicted_n}
        ending = {"stop_reason": _stop_reason(said), "stop_sequence": None}
        closing.append(typed_event({"type": "message_delta", "delta": ending, "usage": usage}))
        return b"".join([*closing, typed_event({"type": "message_stop"})])

    def answer(self) -> Any:
        """Return the message."""
        said = self.said[0]
        content: list[dict[str, Any]] = []
        if thought := said.text(Kind.REASONING):
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        if text := said.text(Kind.TEXT):
            content.append({"type": "text", "text": text})
        for number, (name, arguments) in enumerate(said.calls()):
            call = {"id": self.identifier("", number), "name": name, "input": _arguments(arguments)}
            content.append({"type": "tool_use", **call})
        message = self._message(said.outcome.timings)
        message["usage"]["output_tokens"] = said.outcome.timings.predicted_n
        return {**message, "content": content, "stop_reason": _stop_reason(said)}

    def failure(self, error: ApiError) -> bytes:
        """Return the server's error event, which is not shaped as Anthropic's."""
        return event(error.detail, "error")

    def _message(self, timings: Timings) -> dict[str, Any]:
        usage = {
            "cache_read_input_tokens": timings.cache_n,
            "input_tokens": timings.prompt_n,
            "output_tokens": 0,
        }
        return {
            "id": self.identifier("chatcmpl-"),
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.facts.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _empty(self, piece: Piece) -> dict[str, Any]:
        match piece.kind:
            case Kind.REASONING:
                return {"type": "thinking", "thinking": ""}
            case Kind.TEXT:
                return {"type": "text", "text": ""}
            case Kind.CALL:
                return {"type": "tool_use", "id": self.identifier("", piece.call), "name": piece.name}


def _stop_reason(said: Said) -> str:
    return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[said.finish]


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}  # cut off by the limit
