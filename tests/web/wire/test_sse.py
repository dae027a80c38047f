from __future__ import annotations

import itertools
import re
from codecs import BOM_UTF8

import pytest
from hypothesis import example, given, settings, strategies as st

from trio_admission_web.problems import ProblemError
from trio_admission_web.wire import sse
from trio_admission_web.wire.sse import EventScanner, read_fields, split_events

LINES = [
    b"data: x",
    b"data:y",
    b"data",
    b"event: e",
    b"id: 1",
    b": comment",
    b":",
    b"",
    b"data: \xff \xe2\x80\xa8",
]
ENDS = [b"\n", b"\r", b"\r\n"]

lines = st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(ENDS)), max_size=20)
marks = st.sampled_from([b"", BOM_UTF8])
streams = st.builds(lambda mark, pairs: mark + b"".join(line + end for line, end in pairs), marks, lines)


def events_by_the_book(stream: bytes) -> list[dict[bytes, bytes]]:
    """The events of a stream as the HTML standard reads them, line by line."""
    events: list[dict[bytes, bytes]] = []
    fields: dict[bytes, list[bytes]] = {}
    for line in re.split(rb"\r\n|\r|\n", stream.removeprefix(BOM_UTF8))[:-1]:
        if not line:
            if fields:
                events.append({name: b"\n".join(values) for name, values in fields.items()})
            fields = {}
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            fields.setdefault(name, []).append(value.removeprefix(b" "))
    return events


def scan(chunks: list[bytes]) -> tuple[list[bytes], EventScanner]:
    scanner = EventScanner()
    return [scanner.feed(chunk) for chunk in chunks], scanner


def read(events: bytes) -> list[dict[bytes, bytes]]:
    return [fields for event in split_events(events) if (fields := read_fields(event))]


@settings(deadline=None)
@example(BOM_UTF8 + b"data: x\n\n", [1, 2])
@example(b":\r\rdata: x\r\n", [11])  # the LF of a CR LF that was cut, after an event that a CR had ended
@given(streams, st.lists(st.integers(0, 200), max_size=6))
def test_however_a_stream_is_cut_its_bytes_and_events_are_the_same(stream: bytes, cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(at)]
    released, scanner = scan(chunks)
    assert b"".join(released) + scanner.pending == stream
    found = [fields for events in released for fields in read(events)]
    assert found == events_by_the_book(stream)


@pytest.mark.parametrize("end", ENDS)
def test_five_events_pass_whole_at_every_pair_of_cuts(end: bytes) -> None:
    source = (
        b"data: one\n\n:\n\nevent: e\ndata: two\ndata: lines\n\ndata: \xf0\x9f\x98\x80\n\ndata: [DONE]\n\n"
    )
    stream = source.replace(b"\n", end)
    expected = events_by_the_book(stream)
    for first in range(len(stream)):
        for second in range(first, len(stream)):
            released, scanner = scan([stream[:first], stream[first:second], stream[second:]])
            assert b"".join(released) == stream
            assert not scanner.pending
            assert [fields for events in released for fields in read(events)] == expected


def test_nothing_is_released_inside_an_event() -> None:
    scanner = EventScanner()
    assert scanner.feed(b"data: a\n\ndata: b") == b"data: a\n\n"
    assert scanner.feed(b"\n") == b""
    assert scanner.pending == b"data: b\n"
    assert scanner.feed(b"\ndata") == b"data: b\n\n"


def test_whole_events_are_handed_on_without_a_copy() -> None:
    chunk = b"data: a\n\ndata: b\n\n"
    assert EventScanner().feed(chunk) is chunk


def test_a_lone_cr_ends_an_event_at_once() -> None:
    scanner = EventScanner()
    assert scanner.feed(b"data: [DONE]\r\n\r") == b"data: [DONE]\r\n\r"
    assert scanner.feed(b"\ndata: late\n\n") == b"\ndata: late\n\n"


def test_an_event_without_end_is_no_event_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    scanner = EventScanner()
    scanner.feed(b"x" * 100)
    with pytest.raises(ProblemError) as caught:
        scanner.feed(b"x")
    assert caught.value.problem.code == "bad_gateway"


def test_events_are_cut_apart_with_their_line_ends() -> None:
    assert list(split_events(b"data: a\r\n\r\n:\n\n\rdata: b\r\r")) == [
        b"data: a\r\n\r\n",
        b":\n\n\r",
        b"data: b\r\r",
    ]


def test_the_values_of_a_field_are_joined() -> None:
    assert read_fields(b"data: a\ndata:b\n\n") == {b"data": b"a\nb"}
    assert read_fields(b"event: e\ndata: a\ndata:b\ndata\n: c\n\n") == {b"event": b"e", b"data": b"a\nb\n"}
