"""OpenAI's responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .dialect import CREATED, Dialect, Said, chat_prompt, compact, timings_body, typed_event
from .errors import ApiError
from .script import Kind, Piece

if TYPE_CHECKING:
    from .results import Timings, Token

_PREFIXES = {Kind.REASONING: "rs_", Kind.TEXT: "msg_", Kind.CALL: "fc_"}


class Response(Dialect):
    """`/v1/responses`. Like the server's, events have no sequence number and items are closed at the end."""

    limits: ClassVar[tuple[str, ...]] = ("max_output_tokens",)

    def read_prompts(self) -> list[str]:
        """Return the input as one prompt."""
        if self.body.get("previous_response_id") is not None:
            raise ApiError(400, "llama.cpp does not support 'previous_response_id'.")
        given = self.body.get("input")
        if given is None:
            raise ApiError(400, "'input' is required")
        self._open: set[str] = set()
        instructions = self.body.get("instructions")
        system = [{"role": "system", "content": instructions}] if instructions else []
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        return [chat_prompt([*system, *map(_turn, items)], self.body.get("tools"), vision=self.facts.vision)]

    def begin(self, index: int, timings: Timings) -> bytes:  # noqa: ARG002 (a response has one sequence)
        """Return the start of the response."""
        started = {"id": self.identifier("resp_"), "object": "response", "status": "in_progress"}
        return b"".join(
            typed_event({"type": f"response.{how}", "response": started})
            for how in ("created", "in_progress")
        )

    def token(self, token: Token) -> bytes:
        """Return the token's delta, after the start of its item."""
        piece, events = token.piece, []
        identifier = self._item_id(piece.kind, piece.call)
        if identifier not in self._open:
            self._open.add(identifier)
            events += self._opening(piece, identifier)
        match piece.kind:
            case Kind.REASONING:
                delta = {"type": "response.reasoning_text.delta", "delta": piece.text, "item_id": identifier}
            case Kind.TEXT:
                delta = {"type": "response.output_text.delta", "item_id": identifier, "delta": piece.text}
            case Kind.CALL:
                kind = "response.function_call_arguments.delta"
                delta = {"type": kind, "delta": piece.text, "item_id": identifier}
        return b"".join([*events, typed_event(delta)])

    def end(self, index: int, said: Said) -> bytes:  # noqa: ARG002 (a response has one sequence)
        """Return what closes the items and the response."""
        events: list[bytes] = []
        items = self._items(said)
        for item in items:
            if item["type"] == "message":
                part, of = item["content"][0], {"item_id": item["id"]}
                events.append(typed_event({"type": "response.output_text.done", **of, "text": part["text"]}))
                events.append(typed_event({"type": "response.content_part.done", **of, "part": part}))
            events.append(typed_event({"type": "response.output_item.done", "item": item}))
        completed = {**self._head(said, items), "created_at": CREATED}
        timings = timings_body(said.outcome.timings)
        events.append(typed_event({"type": "response.completed", "response": completed, "timings": timings}))
        return b"".join(events)

    def answer(self) -> Any:
        """Return the response."""
        said = self.said[0]
        items = [{**item, "status": "completed"} for item in self._items(said)]
        return {"completed_at": CREATED, "created_at": CREATED, **self._head(said, items)}

    def _head(self, said: Said, items: list[dict[str, Any]]) -> dict[str, Any]:
        timings = said.outcome.timings
        prompt = timings.prompt_n + timings.cache_n
        usage = {
            "input_tokens": prompt,
            "output_tokens": timings.predicted_n,
            "total_tokens": prompt + timings.predicted_n,
            "input_tokens_details": {"cached_tokens": timings.cache_n},
        }
        head = {"id": self.identifier("resp_"), "object": "response", "status": "completed"}
        return {**head, "model": self.facts.model, "output": items, "usage": usage}

    def _items(self, said: Said) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if thought := said.text(Kind.REASONING):
            content = [{"text": thought, "type": "reasoning_text"}]
            items.append({**self._reasoning(), "content": content})
        if text := said.text(Kind.TEXT):
            part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
            identifier = self._item_id(Kind.TEXT, 0)
            item = {
                "type": "message",
                "status": "completed",
                "id": identifier,
                "content": [part],
                "role": "assistant",
            }
            items.append(item)
        for number, (name, arguments) in enumerate(said.calls()):
            items.append({**self._call(number, name), "status": "completed", "arguments": arguments})
        return items

    def _opening(self, piece: Piece, identifier: str) -> list[bytes]:
        added = "response.output_item.added"
        match piece.kind:
            case Kind.REASONING:
                return [
                    typed_event({
                        "type": added,
                        "item": {**self._reasoning(), "content": [], "status": "in_progress"},
                    })
                ]
            case Kind.CALL:
                item = {**self._call(piece.call, piece.name), "arguments": "", "status": "in_progress"}
                return [typed_event({"type": added, "item": item})]
            case Kind.TEXT:
                message = {"id": identifier, "role": "assistant", "status": "in_progress", "type": "message"}
                part = {"item_id": identifier, "part": {"type": "output_text", "text": ""}}
                return [
                    typed_event({"type": added, "item": {"content": [], **message}}),
                    typed_event({"type": "response.content_part.added", **part}),
                ]

    def _reasoning(self) -> dict[str, Any]:
        identifier = self._item_id(Kind.REASONING, 0)
        return {"id": identifier, "summary": [], "type": "reasoning", "encrypted_content": ""}

    def _call(self, number: int, name: str) -> dict[str, Any]:
        call_id = self.identifier("call_", number)
        return {
            "id": self._item_id(Kind.CALL, number),
            "type": "function_call",
            "call_id": call_id,
            "name": name,
        }

    def _item_id(self, kind: Kind, number: int) -> str:
        return self.identifier(_PREFIXES[kind], number)


def _turn(item: Any) -> Any:
    match item.get("type") if isinstance(item, dict) else None:
        case "function_call" | "reasoning":
            return {"role": "assistant", "content": compact(item)}
        case "function_call_output":
            return {"role": "tool", "content": compact(item.get("output"))}
    return item
