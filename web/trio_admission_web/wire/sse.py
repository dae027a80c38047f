"""Server-sent events as bytes: where events end, and what is in one.

A stream is cut only between events and is otherwise left alone: line ends (LF, CRLF, lone CR, mixed),
comments, broken UTF-8 and a byte order mark pass as they came.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import TYPE_CHECKING

from trio_admission_web.problems import ProblemError, bad_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EVENT = 16 * 2**20
"""Bytes of one event, above which the upstream is not taken for an event stream."""

# The first line end is atomic: without that, the CR LF of a single line end would match as two.
_BLANK_LINES = re.compile(rb"(?>\r\n|\n|\r)(?:\r\n|\n|\r)+")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventScanner:
    """Holds back the incomplete tail of a stream of events."""

    def __init__(self) -> None:
        self._tail = bytearray()  # never contains the end of an event
        self._ended_in_cr = False

    @property
    def pending(self) -> bytes:
        """The bytes of the event that is not complete yet."""
        return bytes(self._tail)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the stream and return the events that they complete, byte for byte.

        Raises:
            ProblemError: `bad_gateway`, when one event is longer than `MAX_EVENT`.
        """
        if not self._tail and data.endswith(b"\n\n"):
            self._ended_in_cr = False
            return data
        if self._ended_in_cr and data:
            # A lone CR ends an event at once; the LF of a CR LF that was cut there still belongs to it.
            self._ended_in_cr = False
            if data.startswith(b"\n"):
                return b"\n" + self.feed(data[1:])
        # An end may have begun in the last line end of the tail, which is at most two bytes long.
        start = max(0, len(self._tail) - 2)
        self._tail += data
        end = _last_event_end(self._tail, start)
        if not end:
            if len(self._tail) > MAX_EVENT:
                raise ProblemError(bad_gateway())
            return b""
        complete = bytes(self._tail[:end])
        del self._tail[:end]
        self._ended_in_cr = not self._tail and complete.endswith(b"\r")
        return complete


def _last_event_end(buffer: bytearray, start: int) -> int:
    """The index after the last blank line at or after `start`, 0 if there is none."""
    if buffer.find(b"\r", start) < 0:
        at = buffer.rfind(b"\n\n", start)
        return 0 if at < 0 else at + 2
    end = 0
    for match in _BLANK_LINES.finditer(buffer, start):
        end = match.end()
    return end


def split_events(events: bytes) -> Iterator[bytes]:
    """Cut complete events apart; each keeps its line ends and its blank line."""
    if b"\r" not in events:
        for event in events.split(b"\n\n")[:-1]:
            yield event + b"\n\n"
        return
    start = 0
    for match in _BLANK_LINES.finditer(events):
        yield events[start : match.end()]
        start = match.end()
    if start < len(events):  # the LF of a CR LF that was cut in two
        yield events[start:]


def read_fields(event: bytes) -> dict[bytes, bytes]:
    """The fields of one event; the values of a field that stands several times are joined by LF.

    The byte order mark with which a stream may begin is no part of the first event's first name.
    """
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event.find(b"\r") < 0:
        return {b"data": event[6:-2]}
    fields: dict[bytes, bytes] = {}
    for line in _LINE_END.split(event.removeprefix(BOM_UTF8)):
        name, _, value = line.partition(b":")
        if name:  # a comment has no name
            value = value.removeprefix(b" ")
            fields[name] = fields[name] + b"\n" + value if name in fields else value
    return fields
