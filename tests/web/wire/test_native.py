from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import NATIVE, TIMINGS, data, last_piece, piece, whole_piece
from trio_admission_web.problems import ProblemError
from trio_admission_web.wire.native import Infill


def answer(*events: bytes, **members: Any) -> Any:
    exchange = NATIVE.exchange(stream=False, **members)
    exchange.relay(b"".join(events))
    return json.loads(exchange.answer())


def test_one_prompt_has_one_answer() -> None:
    assert answer(piece(0, "x", tokens=[5]), last_piece(0), prompt="a") == whole_piece(0, "x")
    assert answer(piece(0, "x", tokens=[5]), last_piece(0), prompt=["a"]) == whole_piece(0, "x")


def test_tokens_are_given_if_they_were_asked_for() -> None:
    progress = piece(0, "", tokens=[0], prompt_progress={"total": 3})  # whose token is none
    events = progress, piece(0, "x", tokens=[5]), piece(0, "y", tokens=[6]), last_piece(0)
    assert answer(*events, prompt="a", return_tokens=True)["tokens"] == [5, 6]
    assert answer(*events, prompt="a", return_tokens=None)["tokens"] == []


@pytest.mark.parametrize(
    ("counts", "content"), [([2, 2], "xx"), ([2, 3], "xx\ufffd"), ([3], "\ufffd"), ([None, 2], "xx")]
)
def test_a_character_that_was_cut_at_the_end_is_replaced(counts: list[int | None], content: str) -> None:
    """The server counts its tokens, and has no event for it."""
    *before, last = counts
    events = [
        piece(0, "xx", tokens=[5], **({"tokens_predicted": count} if count else {})) for count in before
    ]
    assert answer(*events, last_piece(0, tokens_predicted=last), prompt="a")["content"] == content


def test_probabilities_are_joined() -> None:
    events = [piece(0, "x", tokens=[5], completion_probabilities=[{"id": n}]) for n in (5, 6)]
    assert answer(*events, last_piece(0), prompt="a")["completion_probabilities"] == [{"id": 5}, {"id": 6}]


def test_the_fields_that_were_asked_for_are_picked_from_the_whole_answer() -> None:
    fields = ["content", "timings/predicted_n", "nope/x", "content/x"]
    exchange = NATIVE.exchange(stream=False, prompt="a", response_fields=fields)
    assert "response_fields" not in json.loads(exchange.upstream_body)
    exchange.relay(piece(0, "x", tokens=[5]) + last_piece(0))
    assert json.loads(exchange.answer()) == {"content": "x", "timings/predicted_n": 2}


@pytest.mark.parametrize("fields", [None, [], "content", [1]])
def test_fields_that_the_server_does_not_understand_pick_nothing(fields: object) -> None:
    assert answer(last_piece(0), prompt="a", response_fields=fields) == whole_piece(0, "")


def test_a_stream_of_picked_fields_ends_with_the_last_answer() -> None:
    exchange = NATIVE.exchange(stream=True, response_fields=["timings"])
    end = data({"timings": TIMINGS})
    for events in (piece(0, "x", tokens=[5]), piece(1, "y", tokens=[5]), end, piece(1, "y", tokens=[5])):
        assert exchange.relay(events) == events
        assert not exchange.finished
    assert exchange.relay(end) == end
    assert exchange.finished


def test_two_ends_of_one_answer_are_not_two_answers() -> None:
    with pytest.raises(ProblemError):
        answer(last_piece(0), last_piece(0))


def test_an_error_event_has_no_ending() -> None:
    exchange = NATIVE.exchange(stream=True)
    event = data({"error": {"code": 500, "message": "x", "type": "server_error"}})
    assert exchange.relay(event) == event


def test_infill_is_a_completion_at_another_address() -> None:
    exchange = Infill(b'{"input_prefix":"a","input_suffix":"b","n_cmpl":2,"n_predict":9}')
    assert (exchange.path, exchange.slots, exchange.output_limit) == ("/infill", 2, 9)
    with pytest.raises(ProblemError) as caught:
        Infill(b'{"input_prefix":"a"}')
    assert caught.value.problem.param == "input_suffix"
