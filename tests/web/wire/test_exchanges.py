"""What holds in every dialect that streams."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.dialects import CHAT, DIALECTS, Dialect, data
from trio_admission_web.problems import Problem, ProblemError, queue_timeout
from trio_admission_web.wire.sse import read_fields, split_events

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=str)

OVERFLOW = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
FORMS = [
    data({"error": OVERFLOW}),
    data(OVERFLOW, "error"),
    data({"type": "error", "error": OVERFLOW}, "error"),
    b"error: " + json.dumps(OVERFLOW).encode() + b"\n\n",
]


def problem_of(dialect: Dialect, *chunks: bytes) -> Problem:
    """Why there is no answer after these chunks."""
    exchange = dialect.exchange(stream=False)
    for chunk in chunks:
        exchange.relay(chunk)
    with pytest.raises(ProblemError) as caught:
        exchange.answer()
    return caught.value.problem


@every_dialect
def test_a_stream_passes_byte_for_byte_at_every_cut(dialect: Dialect) -> None:
    stream = dialect.stream
    for cut in range(len(stream)):
        exchange = dialect.exchange(stream=True)
        first = exchange.relay(stream[:cut])
        assert not exchange.finished
        assert first + exchange.relay(stream[cut:]) == stream
        assert exchange.finished
        assert exchange.failure is None


@every_dialect
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_last_event_is_known_whatever_the_line_ends_are(dialect: Dialect, end: bytes) -> None:
    exchange = dialect.exchange(stream=True)
    stream = dialect.stream.replace(b"\n", end)
    passed = b"".join(exchange.relay(bytes([byte])) for byte in stream)
    assert passed == (stream[:-1] if end == b"\r\n" else stream)  # a CR ends the last event; its LF is late
    assert exchange.finished


@every_dialect
def test_the_events_make_the_answer_at_every_cut(dialect: Dialect) -> None:
    stream = dialect.stream
    for cut in range(0, len(stream), 7):
        exchange = dialect.exchange(stream=False)
        assert exchange.relay(stream[:cut]) + exchange.relay(stream[cut:]) == b""
        assert json.loads(exchange.answer()) == dialect.answer


@every_dialect
def test_a_stream_may_begin_with_a_byte_order_mark(dialect: Dialect) -> None:
    stream = BOM_UTF8 + dialect.stream
    for cut in range(6):
        exchange = dialect.exchange(stream=True)
        assert exchange.relay(stream[:cut]) + exchange.relay(stream[cut:]) == stream
        exchange = dialect.exchange(stream=False)
        exchange.relay(stream[:cut])
        exchange.relay(stream[cut:])
        assert json.loads(exchange.answer()) == dialect.answer


@every_dialect
def test_the_answer_is_compact_and_not_escaped(dialect: Dialect) -> None:
    exchange = dialect.exchange(stream=False)
    exchange.relay(dialect.stream)
    answer = exchange.answer()
    assert "Grüß dich 👩‍👩‍👧\u2028!".encode() in answer
    assert len(answer) == len(json.dumps(dialect.answer, ensure_ascii=False, separators=(",", ":")).encode())


@every_dialect
def test_what_comes_after_the_last_event_is_dropped(dialect: Dialect) -> None:
    exchange = dialect.exchange(stream=True)
    assert exchange.relay(dialect.stream + b"data: late\n\n") == dialect.stream
    assert exchange.relay(b"data: later\n\n") == b""


@every_dialect
def test_a_stream_that_is_cut_never_makes_an_answer(dialect: Dialect) -> None:
    for count in range(len(dialect.events)):
        whole = b"".join(dialect.events[:count])
        half = whole + dialect.events[count][:-3]
        assert problem_of(dialect, whole).code == "bad_gateway"
        assert problem_of(dialect, half, b"\r\nproxy error: Failed to read connection").code == "bad_gateway"


@every_dialect
def test_an_error_in_the_stream_never_makes_an_answer(dialect: Dialect) -> None:
    for form in FORMS:
        problem = problem_of(dialect, *dialect.events[:3], form, *dialect.events[3:])
        assert (problem.status, problem.code, problem.message) == (500, "server_error", OVERFLOW["message"])


@every_dialect
def test_an_error_in_the_stream_reaches_a_client_after_what_was_generated(dialect: Dialect) -> None:
    before = b"".join(dialect.events[:3])
    for form in FORMS:
        exchange = dialect.exchange(stream=True)
        sent = exchange.relay(before + form + b"data: late\n\n")
        assert exchange.finished
        assert exchange.failure is not None
        assert sent.startswith(before)
        told = sent.removeprefix(before)
        assert b"late" not in told
        assert str(OVERFLOW["message"]) in told.decode()
        assert not re.search(rb"(?m)^error:", told)  # SDKs pass over a field of this name


@every_dialect
def test_events_that_are_not_json_objects_never_make_an_answer(dialect: Dialect) -> None:
    for garbage in (b"data: {\n\n", b"data: [1]\n\n", b"data: 7\n\n", b"data: \n\n"):
        assert problem_of(dialect, *dialect.events[:2], garbage, *dialect.events[2:]).code == "bad_gateway"


@every_dialect
def test_broken_utf8_passes_in_a_stream_and_is_replaced_in_an_answer(dialect: Dialect) -> None:
    broken = dialect.stream.replace("ü".encode(), b"\xff")
    exchange = dialect.exchange(stream=True)
    assert exchange.relay(broken) == broken
    exchange = dialect.exchange(stream=False)
    exchange.relay(broken)
    assert "Gr\ufffdß" in exchange.answer().decode()


def test_half_a_character_stays_the_escape_that_it_came_as() -> None:
    exchange = CHAT.exchange(stream=False)
    exchange.relay(CHAT.stream.replace("ü".encode(), b"\\ud83d"))
    assert b'"content":"Gr\\ud83d\xc3\x9f' in exchange.answer()


fragments = st.sampled_from([
    b"data: ",
    b"event: ",
    b"error",
    b'{"error":',
    b"null",
    b"[DONE]",
    b"{}",
    b"\n\n",
    b"\r",
    b":",
])


@every_dialect
@settings(deadline=None, max_examples=50)
@given(
    parts=st.lists(fragments | st.binary(max_size=4) | st.integers(0, 20), max_size=12), stream=st.booleans()
)
def test_no_bytes_of_an_upstream_raise_anything_but_a_problem(
    dialect: Dialect, parts: list[bytes | int], stream: bool
) -> None:
    exchange = dialect.exchange(stream=stream)
    for part in parts:
        exchange.relay(dialect.events[part % len(dialect.events)] if isinstance(part, int) else part)
    if not stream:
        with suppress(ProblemError):
            exchange.answer()


@every_dialect
def test_the_clients_bytes_go_upstream_as_they_are_if_it_wants_a_stream(dialect: Dialect) -> None:
    raw = json.dumps(dialect.request | {"stream": True, "stop": None, "tools": None}, indent=3).encode()
    assert dialect.make(raw).upstream_body is raw


@every_dialect
@pytest.mark.parametrize("asked", [{}, {"stream": None}, {"stream": False}])
def test_the_server_is_asked_for_a_stream_where_the_client_did_not(
    dialect: Dialect, asked: dict[str, object]
) -> None:
    body: dict[str, object] = dialect.request | {"x": [1.0, "ä"]} | asked
    exchange = dialect.make(json.dumps(body).encode())
    assert not exchange.stream
    sent = json.loads(exchange.upstream_body)
    assert sent.pop("stream") is True
    assert sent.pop("stream_options", {"include_usage": True}) == {"include_usage": True}
    assert sent == {name: value for name, value in body.items() if name != "stream"}


@every_dialect
@pytest.mark.parametrize("member", ["stream", "model", "max_tokens"])
def test_a_wrong_member_is_named(dialect: Dialect, member: str) -> None:
    with pytest.raises(ProblemError) as caught:
        dialect.make(json.dumps(dialect.request | {member: [1]}).encode())
    assert (caught.value.problem.code, caught.value.problem.param) == ("invalid_request", member)


@every_dialect
def test_what_a_dialect_cannot_do_without_is_named(dialect: Dialect) -> None:
    for member in {"messages", "prompt", "input"} & set(dialect.request):
        with pytest.raises(ProblemError) as caught:
            dialect.make(b"{}")
        assert caught.value.problem.param == member


@every_dialect
def test_model_and_limit_are_read(dialect: Dialect) -> None:
    exchange = dialect.make(json.dumps(dialect.request | {"model": "org/m:q4", "max_tokens": 7}).encode())
    assert (exchange.model, exchange.output_limit) == ("org/m:q4", 7)


@every_dialect
def test_a_keepalive_is_one_event_that_tells_place_and_wait(dialect: Dialect) -> None:
    exchange = dialect.exchange(stream=True)
    forms = [exchange.keepalive(3, 4.25), exchange.keepalive(3, None), exchange.keepalive(0, None)]
    for form in forms:
        assert list(split_events(form)) == [form]
    if dialect.comment:
        assert forms == [
            b": queued position=3 estimated_wait=4.2\n\n",
            b": queued position=3\n\n",
            b": keepalive\n\n",
        ]
    else:
        assert [json.loads(read_fields(form)[b"data"]) for form in forms] == [
            {"type": "ping", "position": 3, "estimated_wait": 4.2},
            {"type": "ping", "position": 3},
            {"type": "ping"},
        ]


@every_dialect
def test_an_http_error_has_the_dialects_envelope(dialect: Dialect) -> None:
    problem = queue_timeout(waiting=1, slots=2, retry_after=3)
    body = json.loads(dialect.exchange(stream=True).error_body(problem))
    assert body["error"]["message"] == problem.message
    assert body.get("type") == (None if dialect.comment else "error")


def test_an_upstream_error_event_of_the_usual_form_passes_as_it_is() -> None:
    exchange = CHAT.exchange(stream=True)
    event = data({"error": OVERFLOW})
    assert exchange.relay(event) == event + b"data: [DONE]\n\n"


def test_cuts_do_not_matter_to_an_error() -> None:
    stream = CHAT.events[1] + data({"error": OVERFLOW})
    expected = stream + b"data: [DONE]\n\n"
    for cuts in pairwise(range(0, len(stream), 5)):
        exchange = CHAT.exchange(stream=True)
        sent = b"".join(
            exchange.relay(part) for part in (stream[: cuts[0]], stream[cuts[0] : cuts[1]], stream[cuts[1] :])
        )
        assert sent == expected
