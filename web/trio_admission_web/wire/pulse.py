"""Whether a stream of events goes on: comments and pings only say that somebody is there."""

from __future__ import annotations

# What tells an event's data from everything else; llama-server has a field of its own for some errors.
_DATA = (b"data", b"error")
_LONGEST_START = 16  # bytes of a line that are enough to know what it is


class Pulse:
    """Listens to a stream of events as it comes, cut anywhere."""

    def __init__(self) -> None:
        self._start = b""  # of the line that is not complete
        self._in_ping = False
        self._ended_in_cr = False

    def feed(self, data: bytes) -> bool:
        """Take the next bytes and return whether any of them are an event's data, and no ping's."""
        if not (self._start or self._in_ping) and data.startswith(b"data:") and data.endswith(b"\n\n"):
            self._ended_in_cr = False
            return True
        if self._ended_in_cr:
            data = data.removeprefix(b"\n")
        if not data:
            return False
        beats = False
        self._ended_in_cr = data.endswith(b"\r")
        for line in (self._start + data).splitlines(keepends=True):
            if line.startswith(b"event:"):
                self._in_ping = line[6:].strip() == b"ping"
            elif line in {b"\n", b"\r", b"\r\n"}:
                self._in_ping = False
            else:
                beats |= line.startswith(_DATA) and not self._in_ping
        self._start = b"" if data.endswith((b"\n", b"\r")) else line[:_LONGEST_START]
        return beats
