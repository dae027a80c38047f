"""Change top-level members of a JSON object in its bytes, and leave every other byte alone."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPACE = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder()


def splice(body: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Set, replace or remove top-level members of a JSON object.

    Members that are replaced stay where they are, new ones come last.

    Args:
        body: a JSON object that `read_object` took.
        changes: the member's name -> its new value as JSON, or None to remove it.
    """
    # Latin-1 makes one character of each byte, so the decoder's positions are positions in the bytes. What it
    # makes of the text inside strings is wrong and not looked at; the names that matter here are ASCII.
    text = body.decode("latin-1")
    at = opened = _after_space(text, 0) + 1
    members: list[bytes] = []  # what stands between the commas
    left = dict(changes)
    if text[_after_space(text, at)] == "}":
        at = _after_space(text, at)
    while text[at] != "}":
        start = at
        name, at = _decoder.raw_decode(text, _after_space(text, at))
        value_at = _after_space(text, _after_space(text, at) + 1)
        _, value_end = _decoder.raw_decode(text, value_at)
        at = _after_space(text, value_end)
        if name not in changes:
            members.append(body[start:at])
        elif (value := changes[name]) is not None:
            members.append(body[start:value_at] + value + body[value_end:at])
        left.pop(name, None)
        if text[at] == ",":
            at += 1
    members += [json.dumps(name).encode() + b":" + value for name, value in left.items() if value is not None]
    return body[:opened] + b",".join(members) + body[at:]


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match
    return match.end()
