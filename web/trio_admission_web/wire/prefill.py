"""The beginning of the answer that a client may put into the model's mouth: a last message of the assistant.

llama-server repeats it at the front of an answer in one piece, and not in a stream.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Prefill(NamedTuple):
    """What the answer begins with."""

    text: str = ""
    reasoning: str = ""


def read_prefill(messages: list[Any]) -> Prefill:
    """The beginning of the answer to these messages; empty if the last one is not the assistant's."""
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        return Prefill()
    content = last.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    blocks = [*blocks, {"type": "thinking", "thinking": last.get("reasoning_content")}]
    return Prefill(_texts(blocks, "text"), _texts(blocks, "thinking"))


def _texts(blocks: list[Any], kind: str) -> str:
    texts = [block.get(kind) for block in blocks if isinstance(block, dict) and block.get("type") == kind]
    return "\n\n".join(text for text in texts if isinstance(text, str) and text)  # as the server joins them
