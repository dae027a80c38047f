"""Change top-level members of a JSON object in its bytes, and leave every other byte alone."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SPACE = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder()


def splice(body: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Set, replace or remove top-level members of a JSON object.

    Members that are replaced stay where they are, new ones come last.

    Args:
        body: a JSON object that `read_object` took.
        changes: the member's name -> its new value as JSON, or None to remove it.
    """
    members: list[bytes] = []  # what stands between the commas
    left = dict(changes)
    opened = closed = body.index(b"{") + 1
    for member in _members(body):
        closed = member.end
        if member.name not in changes:
            members.append(body[member.start : member.end])
        elif (value := changes[member.name]) is not None:
            members.append(body[member.start : member.value] + value + body[member.value_end : member.end])
        left.pop(member.name, None)
    members += [json.dumps(name).encode() + b":" + value for name, value in left.items() if value is not None]
    return body[:opened] + b",".join(members) + body[body.index(b"}", closed) :]


def extend(body: bytes, name: str, items: Iterable[bytes]) -> bytes:
    """Add items at the end of a top-level list; a list that is not there, or null, counts as empty.

    Args:
        body: a JSON object that `read_object` took.
        name: the list's name.
        items: each one is JSON.
    """
    old = next((body[each.value : each.value_end] for each in _members(body) if each.name == name), b"[]")
    inside = b"" if old == b"null" else old[1:-1]
    return splice(body, {name: b"[" + b",".join([*([inside] if inside.strip() else []), *items]) + b"]"})


class _Member(NamedTuple):
    """Where one member stands: from the comma before it to the one after it, and its value."""

    name: str
    start: int
    value: int
    value_end: int
    end: int


def _members(body: bytes) -> Iterator[_Member]:
    # Latin-1 makes one character of each byte, so the decoder's positions are positions in the bytes. What it
    # makes of the text inside strings is wrong and not looked at; the names that matter here are ASCII.
    text = body.decode("latin-1")
    at = _after_space(text, 0) + 1
    if text[_after_space(text, at)] == "}":
        return
    while text[at] != "}":
        start = at
        name, at = _decoder.raw_decode(text, _after_space(text, at))
        value = _after_space(text, _after_space(text, at) + 1)
        _, value_end = _decoder.raw_decode(text, value)
        at = _after_space(text, value_end)
        yield _Member(name, start, value, value_end, at)
        if text[at] == ",":
            at += 1


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match
    return match.end()
