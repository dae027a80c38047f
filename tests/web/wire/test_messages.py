from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import MESSAGES, named
from trio_admission_web.problems import ProblemError, queue_timeout

START, *_, MESSAGE_DELTA, STOP = MESSAGES.events


def start(index: int, **block: Any) -> bytes:
    return named({"type": "content_block_start", "index": index, "content_block": block})


def piece(index: int, kind: str, **delta: Any) -> bytes:
    return named({"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", **delta}})


def content(*events: bytes, **members: Any) -> list[dict[str, Any]]:
    exchange = MESSAGES.exchange(stream=False, **members)
    exchange.relay(b"".join((START, *events, MESSAGE_DELTA, STOP)))
    found: list[dict[str, Any]] = json.loads(exchange.answer())["content"]
    return found


@pytest.mark.parametrize("cut", ['{"city": "Par', "", "[1"])
def test_an_input_that_was_cut_off_is_empty(cut: str) -> None:
    events = start(0, type="tool_use", id="t", name="f"), piece(0, "input_json", partial_json=cut)
    assert content(*events) == [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]


def test_an_input_that_came_at_once_is_kept() -> None:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}
    assert content(start(0, **block)) == [block]


def test_citations_are_collected() -> None:
    events = (
        start(0, type="text", text="a"),
        piece(0, "citations", citation=1),
        piece(0, "citations", citation=2),
    )
    assert content(*events) == [{"type": "text", "text": "a", "citations": [1, 2]}]


def test_an_answer_that_the_client_began_begins_with_it() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "The"}],
        },
    ]
    # As the server sends it: the block that it adds nothing to is never started.
    events = (
        start(1, type="text", text=""),
        piece(1, "text", text=" sky"),
        piece(0, "signature", signature=""),
    )
    assert content(*events, messages=messages) == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "The sky"},
    ]


def test_an_answer_that_adds_nothing_is_what_the_client_began() -> None:
    assert content(messages=[{"role": "assistant", "content": "Yes"}]) == [{"type": "text", "text": "Yes"}]


def test_a_message_whose_first_character_came_late_has_no_start_and_is_an_answer() -> None:
    events = start(0, type="text", text=""), piece(0, "text", text="🌟"), MESSAGE_DELTA, STOP
    exchange = MESSAGES.exchange(stream=False, model="m")
    exchange.relay(b"".join(events))
    answer = json.loads(exchange.answer())
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "🌟"}],
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"cache_read_input_tokens": None, "input_tokens": None, "output_tokens": 4},
    }
    passing = MESSAGES.exchange(stream=True)
    assert passing.relay(b"".join(events)) == b"".join(events)
    assert passing.finished


@pytest.mark.parametrize(
    ("begun", "text"), [([], "\ufffd"), ([{"role": "assistant", "content": "Yes"}], "Yes")]
)
def test_a_character_that_was_cut_is_replaced_if_it_is_all_there_is(begun: list[Any], text: str) -> None:
    exchange = MESSAGES.exchange(stream=False, messages=[{"role": "user", "content": "hi"}, *begun])
    exchange.relay(MESSAGE_DELTA + STOP)
    assert json.loads(exchange.answer())["content"] == [{"type": "text", "text": text}]


def test_a_message_without_a_reason_to_stop_is_no_answer() -> None:
    exchange = MESSAGES.exchange(stream=False)
    exchange.relay(START + STOP)
    with pytest.raises(ProblemError):
        exchange.answer()


def test_an_error_event_has_the_name_and_the_envelope_that_sdks_raise_on() -> None:
    problem = queue_timeout(waiting=1, slots=2, retry_after=3)
    event = MESSAGES.exchange(stream=True).error_event(problem)
    assert (
        event
        == b"event: error\ndata: " + json.dumps(problem.anthropic(), separators=(",", ":")).encode() + b"\n\n"
    )


def test_an_error_event_of_the_right_form_passes_as_it_is() -> None:
    event = (
        b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}\n\n'
    )
    assert MESSAGES.exchange(stream=True).relay(event) == event
