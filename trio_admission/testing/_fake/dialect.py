"""What all dialects share: reading a request, and making one answer or a stream of the engine's results."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .errors import ApiError
from .results import Ended, Timings, Token
from .script import Kind, Piece

CREATED = 1_700_000_000
FINGERPRINT = "b0-fake"
_WORD = re.compile(r"<\|[a-z_]+\|>|\n|[^\S\n]*[^\s<]+|[^\S\n]+|<")
_JSON_TYPES = {dict: "object", list: "array", str: "string", type(None): "null"}


def tokenize(text: str) -> list[str]:
    """Cut text into the fake's tokens: words with the spaces before them, line ends, and template marks."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server knows of itself and of the request."""

    number: int
    model: str
    slots: int
    vision: bool = False


@dataclass(slots=True)
class Said:
    """What one sequence has said so far, and how it ended."""

    pieces: list[Piece] = field(default_factory=list)
    ended: Ended | None = None

    def text(self, kind: Kind) -> str:
        """Return all of one kind, joined."""
        return "".join(piece.text for piece in self.pieces if piece.kind is kind)

    def calls(self) -> list[tuple[str, str]]:
        """Return name and arguments of each call."""
        calls: dict[int, list[str]] = {}
        for piece in self.pieces:
            if piece.kind is Kind.CALL:
                calls.setdefault(piece.call, [piece.name]).append(piece.text)
        return [(name, "".join(fragments)) for name, *fragments in calls.values()]

    @property
    def outcome(self) -> Ended:
        """How it ended; only when it has."""
        assert self.ended is not None
        return self.ended

    @property
    def finish(self) -> str:
        """Why it ended, as chat completions word it."""
        if self.outcome.truncated:
            return "length"
        return "tool_calls" if self.calls() else "stop"


class Dialect(ABC):
    """One request in one API. Making it validates the body and raises `ApiError`.

    `prompts` holds one text for each job and `copies` how many sequences each makes. `feed` takes the
    engine's results in order and returns the events that a stream gets; after all have ended, `answer` is
    the one JSON body.
    """

    limits: ClassVar[tuple[str, ...]] = ("max_tokens", "n_predict")
    default_limit: ClassVar[int | None] = None
    terminal: ClassVar[bytes] = b""
    speaks: ClassVar[bool] = True

    def __init__(self, body: dict[str, Any], facts: Facts) -> None:
        self.body = body
        self.facts = facts
        self.prompts = self.read_prompts()
        self.stream: bool = self.speaks and (self.member("stream", bool) or False)
        self.copies = self.number("n", 1, facts.slots) or 1
        self.limit = self.default_limit
        for name in reversed(self.limits):
            stated = self.number(name, -1, 2**31 - 1)
            self.limit = self.limit if stated is None else stated
        self.limit = None if self.limit == -1 else self.limit
        self.member("temperature", float)
        self.pin = self._pin()
        self.said: defaultdict[int, Said] = defaultdict(Said)

    @abstractmethod
    def read_prompts(self) -> list[str]:
        """Return the prompts, or raise `ApiError`."""

    def begin(self, index: int, timings: Timings) -> bytes:  # noqa: ARG002 (not every dialect has any)
        """Return the events that come before all others of one sequence, even of one that says nothing."""
        return b""

    @abstractmethod
    def token(self, token: Token) -> bytes:
        """Return the events of one token."""

    @abstractmethod
    def end(self, index: int, said: Said) -> bytes:
        """Return the events at the end of one sequence."""

    @abstractmethod
    def answer(self) -> Any:
        """Return the answer to a request that asked for no stream."""

    def failure(self, error: ApiError) -> bytes:
        """Return the event that tells of an error after the first byte."""
        return event(error.body)

    def feed(self, result: Token | Ended) -> bytes:
        """Take the engine's next result and return the events that it makes."""
        said = self.said[result.index]
        beginning = b"" if said.pieces else self.begin(result.index, result.timings)
        if isinstance(result, Token):
            said.pieces.append(result.piece)
            return beginning + self.token(result)
        said.ended = result
        return beginning + self.end(result.index, said)

    def identifier(self, prefix: str, part: int = 0) -> str:
        """Return an id of the server's length that tells the request's number."""
        return f"{prefix}{self.facts.number:028d}{part:04d}"

    def member(self, name: str, kind: type[bool | float]) -> Any:
        """Return a member, None if it is absent or null; refuse a wrong type in the server's words."""
        value = self.body.get(name)
        wanted = "boolean" if kind is bool else "number"
        if value is None or (isinstance(value, bool) if kind is bool else isinstance(value, int | float)):
            return value
        found = _JSON_TYPES.get(type(value), "boolean" if isinstance(value, bool) else "number")
        message = f"[json.exception.type_error.302] type must be {wanted}, but is {found}"
        raise ApiError(400, f"Field '{name}': {message}")

    def number(self, name: str, low: int, high: int) -> int | None:
        """Return an integer member within its bounds, None if it is absent or null."""
        value = self.member(name, float)
        if value is not None and not low <= value <= high:
            raise ApiError(
                400, f"Field '{name}': Value must be between {low} <= value <= {high}, but got {value}"
            )
        return None if value is None else int(value)

    def _pin(self) -> int | None:
        pin = self.body.get("id_slot")
        return int(pin) if isinstance(pin, int | float) and pin != -1 else None


def event(data: Any, name: str | None = None) -> bytes:
    """Return one server-sent event."""
    text = data if isinstance(data, str) else compact(data)
    named = "" if name is None else f"event: {name}\n"
    return f"{named}data: {text}\n\n".encode(errors="replace")


def typed_event(data: dict[str, Any]) -> bytes:
    """Return one server-sent event that is named by its own type."""
    return event(data, data["type"])


def compact(value: Any) -> str:
    """Return JSON without spaces, as the server writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def timings_body(timings: Timings) -> dict[str, float]:
    """Return the server's `timings` object."""
    steps = max(timings.predicted_n - 1, 0)
    return {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _per(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _per(1000 * timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _per(timings.predicted_ms, steps),
        "predicted_per_second": _per(1000 * steps, timings.predicted_ms),
    }


def read_object(raw: bytes) -> dict[str, Any]:
    """Parse a body as the server does, or refuse it in its words; what is no object counts as empty."""
    try:
        body = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        at = getattr(error, "pos", 0) + 1
        kind = "syntax error while parsing value" if raw else "attempting to parse an empty input"
        message = f"[json.exception.parse_error.101] parse error at line 1, column {at}: {kind}"
        raise ApiError(400, message) from None
    return body if isinstance(body, dict) else {}


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def chat_prompt(messages: Any, tools: Any, *, vision: bool) -> str:
    """Apply the fake's chat template: ChatML, the tools in front."""
    if messages is None:
        raise ApiError(400, "'messages' is required")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ApiError(400, "Expected 'messages' to be an array")
    parts = [f"<|im_start|>tools\n{compact(tools)}<|im_end|>\n"] if tools else []
    for message in messages:
        role = message.get("role")
        if "content" not in message and role != "assistant":
            raise ApiError(400, "All non-assistant messages must contain 'content'")
        extra = compact(message["tool_calls"]) if message.get("tool_calls") else ""
        parts.append(
            f"<|im_start|>{role}\n{_content(message.get('content'), vision=vision)}{extra}<|im_end|>\n"
        )
    return "".join([*parts, "<|im_start|>assistant\n"])


def _content(content: Any, *, vision: bool) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, "Expected 'content' to be a string or an array")
    return "".join(_part(part, vision=vision) for part in content)


def _part(part: Any, *, vision: bool) -> str:
    match part.get("type") if isinstance(part, dict) else None:
        case "text" | "input_text" | "output_text":
            return str(part.get("text", ""))
        case "tool_result" | "tool_use" | "thinking":
            return compact(part)
        case "image_url" | "image" | "input_image" if vision:
            return "<|image|>"
        case "image_url" | "image" | "input_image":
            hint = "hint: if this is unexpected, you may need to provide the mmproj"
            raise ApiError(500, f"image input is not supported - {hint}")
    raise ApiError(400, "unsupported content[].type")


def _per(amount: float, count: float) -> float:
    return amount / count if count else 0.0
