"""What tells a conversation from others: a hash of each of its beginnings.

The next turn of a conversation repeats all messages of the turn before and adds to them, so the hash of the
whole of one turn is among the hashes of the beginnings of the next.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIXED = ("tools", "system", "instructions")
"""What a template puts before the messages: with others of these, nothing that was computed fits."""


def read_thread(body: Mapping[str, Any], name: str | None = None) -> tuple[bytes, ...]:
    """Hash each beginning of the conversation in a request's body, the longest one last.

    A prompt that is one text has no beginnings that could be told from those of other prompts.

    Args:
        body: What the client sent, read.
        name: What the client calls the conversation; it stands for each of its beginnings and for the whole.

    Returns:
        Nothing if there is nothing to go by, or if the client does not want that anything is used again.
    """
    if body.get("cache_prompt") is False:
        return ()
    if name is not None:
        return (_link(b"name", name),) * 2
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        return ()
    link = _link(b"", [body.get(each) for each in _FIXED])
    links = []
    for message in messages:
        link = _link(link, message)
        links.append(link)
    return tuple(links)


def _link(before: bytes, value: object) -> bytes:
    return blake2b(before + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
