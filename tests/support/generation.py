"""Every way to ask for a generation: the routes of all dialects, with and without a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.gateway import chat


@dataclass(frozen=True)
class Ask:
    """One route and the smallest body that it takes."""

    path: str
    body: dict[str, Any]
    end: bytes = b"data: [DONE]\n\n"
    """What a complete stream ends with."""

    @property
    def anthropic(self) -> bool:
        """Whether errors have Anthropic's envelope."""
        return self.path == "/v1/messages"

    def __str__(self) -> str:
        return self.path


MESSAGES = chat()["messages"]
ASKS = (
    Ask("/v1/chat/completions", {"messages": MESSAGES}),
    Ask("/v1/completions", {"prompt": "Hello"}),
    Ask("/completion", {"prompt": "Hello"}, end=b"}\n\n"),
    Ask("/infill", {"input_prefix": "a", "input_suffix": "b"}, end=b"}\n\n"),
    Ask("/v1/responses", {"input": "Hello"}, end=b"}\n\n"),
    Ask("/v1/messages", {"messages": MESSAGES, "max_tokens": 100_000}, end=b'{"type":"message_stop"}\n\n'),
)
ROUTES = pytest.mark.parametrize("ask", ASKS, ids=str)
STREAM = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
