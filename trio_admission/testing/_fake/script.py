"""What a test may say about how one request is answered."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .http import chunk, response_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class End(enum.Enum):
    """How an answer stops before its proper end."""

    RESET = "reset"
    """The connection is reset (RST)."""
    CLOSE = "close"
    """The connection is closed (FIN) where it stands: no terminal event, no last chunk."""
    FINISH = "finish"
    """The body ends properly but the dialect's terminal event is missing."""
    SILENCE = "silence"
    """Nothing more is sent; the connection stays open until the client leaves."""
    ERROR = "error"
    """The engine fails: an error event in a stream, else a plain 500."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Stop a generation when its next token would be due after `after` tokens."""

    after: int
    """How many tokens are sent before."""
    how: End
    """What happens then."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model makes."""

    name: str
    """The function's name."""
    arguments: Sequence[str]
    """Its arguments as JSON, in fragments; each is one token."""


class Kind(enum.Enum):
    """What a token is part of."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Piece:
    """One token: its text and what it is part of."""

    text: str
    kind: Kind = Kind.TEXT
    call: int = 0
    name: str = ""  # the function's name, on the first fragment of a call


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How one generation goes; what is left out follows the server's defaults.

    The k-th token (from 0) comes `prefill + (k + 1) * interval` seconds after the slot was given, plus the
    pauses up to it.

    Attributes:
        tokens: The text, token by token; a number asks for so many words `r1w0 r1w1 ...` (the request's
            number, then the word's); None for the server's default number.
        reasoning: Tokens of thinking, before the text.
        tool_calls: Calls, after the text.
        prefill: Seconds before decoding starts; nothing interrupts them, as a batch cannot be interrupted.
        interval: Seconds per token.
        pauses: Additional seconds before the token with that index.
        cut: Where and how the answer breaks.
        injected: Raw bytes put between the events of a stream, before those of the token with that index.
        newline: What ends each line of a stream's events.
        split: Cuts what would be one write of a stream into several, each a chunk of its own.
        split_gap: Seconds between those, so that a waiting reader sees each alone.
        headers: Additional headers of the answer.
    """

    tokens: Sequence[str] | int | None = None
    reasoning: Sequence[str] = ()
    tool_calls: Sequence[ToolCall] = ()
    prefill: float | None = None
    interval: float | None = None
    pauses: Mapping[int, float] = field(default_factory=dict)
    cut: Cut | None = None
    injected: Mapping[int, bytes] = field(default_factory=dict)
    newline: bytes = b"\n"
    split: Callable[[bytes], Iterable[bytes]] | None = None
    split_gap: float = 0.001
    headers: Sequence[tuple[str, str]] = ()

    def pieces(self, label: str, default: int) -> Iterator[Piece]:
        """Yield the tokens; `label` starts each default word, `default` says how many there are."""
        words = default if self.tokens is None else self.tokens
        if isinstance(words, int):  # one by one, since there may be millions of which few are ever sent
            texts: Iterable[str] = (f"{' ' if k else ''}{label}w{k}" for k in range(words))
        else:
            texts = words
        yield from (Piece(text, Kind.REASONING) for text in self.reasoning)
        yield from (Piece(text) for text in texts)
        for number, call in enumerate(self.tool_calls):
            for k, fragment in enumerate(call.arguments):
                yield Piece(fragment, Kind.CALL, number, "" if k else call.name)


class Raw:
    """An answer given byte by byte; it takes no slot.

    After the last step the connection stays open for the next request, unless an `End` closed it.
    `End.FINISH` sends the last chunk of a chunked body; `End.ERROR` belongs to scripts.

    Args:
        steps: Each is bytes to send, seconds to wait, or an `End`.

    Raises:
        ValueError: if a step is `End.ERROR`.
    """

    def __init__(self, *steps: bytes | float | End) -> None:
        if End.ERROR in steps:
            raise ValueError("only a Script can end with End.ERROR")
        self.steps = steps

    @classmethod
    def answer(
        cls,
        status: int = 200,
        body: object = b"",
        *,
        content_type: str = "application/json; charset=utf-8",
        content_length: int | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> Raw:
        """Make a complete answer.

        Args:
            status: The HTTP status.
            body: What is neither bytes nor str is sent as JSON.
            content_type: The header of that name.
            content_length: None = that of the body. A wrong one makes a body that is too long or too short;
                to end the latter, add a step (`then`).
            headers: Additional headers.
        """
        data = (
            body
            if isinstance(body, bytes)
            else (body if isinstance(body, str) else json.dumps(body)).encode()
        )
        length = len(data) if content_length is None else content_length
        head = [("Content-Type", content_type), ("Content-Length", str(length)), *headers]
        return cls(response_head(status, head) + data)

    @classmethod
    def stream(cls, *steps: bytes | float | End, headers: Iterable[tuple[str, str]] = ()) -> Raw:
        r"""Make a 200 event stream: `Raw.stream(b"data: {}\n\n", 0.5, End.RESET)`.

        Args:
            steps: As in `Raw`, but bytes are framed as one chunk each. Without an `End` it has no end.
            headers: Additional headers.
        """
        head = [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"), *headers]
        return cls(response_head(200, head), *(chunk(s) if isinstance(s, bytes) else s for s in steps))

    def then(self, *steps: bytes | float | End) -> Raw:
        """Return the same answer with more steps at its end."""
        return Raw(*self.steps, *steps)


Reply = Script | Raw
"""How a request is answered: by a generation that goes as the script says, or by these very bytes."""


def pieces_of(size: int) -> Callable[[bytes], Iterable[bytes]]:
    """Return a `Script.split` that makes pieces of at most `size` bytes."""
    return lambda data: (data[at : at + size] for at in range(0, len(data), size))
