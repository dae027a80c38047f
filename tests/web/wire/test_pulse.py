"""What of a stream of events shows that the server works."""

from __future__ import annotations

import pytest

from trio_admission_web.wire.pulse import Pulse

ENDS = pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])


def beats_at(stream: bytes, cuts: list[int]) -> list[bool]:
    pulse = Pulse()
    return [
        pulse.feed(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]


@ENDS
@pytest.mark.parametrize(
    "event",
    [[b":"], [b": data: {}"], [b"event: ping", b'data: {"type": "ping"}'], [b"event:ping", b"data:"], [b""]],
    ids=["comment", "comment of data", "ping", "tight ping", "nothing"],
)
def test_comments_and_pings_are_no_sign_of_work_wherever_they_are_cut(event: list[bytes], end: bytes) -> None:
    stream = end.join([*event, b"", b""]) * 2
    for cut in range(len(stream) + 1):
        assert beats_at(stream, [cut]) == [False, False]
    assert not any(beats_at(stream, list(range(1, len(stream)))))


@ENDS
@pytest.mark.parametrize(
    "event", [[b"data: {}"], [b"event: message_start", b"data: {}"], [b'error: {"code": 500}']], ids=repr
)
def test_each_event_is_one_wherever_it_is_cut(event: list[bytes], end: bytes) -> None:
    ping = end.join([b"event: ping", b"data: {}", b"", b":", b"", b""])
    stream = end.join([*event, b"", b""])
    for cut in range(1, len(stream)):
        assert any(beats_at(ping + stream, [len(ping), len(ping) + cut])[1:])
        assert not beats_at(ping + stream, [len(ping), len(ping) + cut])[0]


def test_each_byte_of_a_long_event_counts() -> None:
    pulse = Pulse()
    assert pulse.feed(b"data: ")
    assert all(pulse.feed(b"x" * 100) for _ in range(10))
    assert pulse.feed(b"\n\n")
    assert not pulse.feed(b":\n\n")
