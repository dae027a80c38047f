from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import RESPONSES, data, named
from trio_admission_web.problems import ProblemError, cancelled
from trio_admission_web.wire.sse import read_fields, split_events

CREATED = RESPONSES.events[0]


def read(events: bytes) -> list[dict[str, Any]]:
    """The events, each of which has the name of its type."""
    found = []
    for event in split_events(events):
        fields = read_fields(event)
        value = json.loads(fields[b"data"])
        assert fields[b"event"].decode() == value["type"]
        found.append(value)
    return found


def ended(kind: str, **response: Any) -> bytes:
    return named({
        "type": f"response.{kind}",
        "response": {"id": "resp_1", "created_at": 17, "status": kind} | response,
    })


def test_an_error_before_the_first_event_is_numbered_from_zero() -> None:
    error, failed = read(RESPONSES.exchange(stream=True, model="m").error_event(cancelled()))
    assert error == {
        "type": "error",
        "sequence_number": 0,
        "code": "cancelled",
        "message": "The request was cancelled.",
        "param": None,
        "error": {
            "message": "The request was cancelled.",
            "type": "api_error",
            "param": None,
            "code": "cancelled",
        },
    }
    assert failed["sequence_number"] == 1
    response = failed["response"]
    assert response.pop("id").startswith("resp_")
    assert isinstance(response.pop("created_at"), int)
    assert response == {
        "object": "response",
        "model": "m",
        "output": [],
        "status": "failed",
        "error": {"code": "cancelled", "message": "The request was cancelled."},
    }


def test_an_error_goes_on_with_the_streams_numbers_and_response() -> None:
    exchange = RESPONSES.exchange(stream=True)
    exchange.relay(b"".join(RESPONSES.events[:3]))
    exchange.relay(b":\n\n" + RESPONSES.events[3])
    error, failed = read(exchange.error_event(cancelled()))
    assert (error["sequence_number"], failed["sequence_number"]) == (4, 5)
    assert failed["response"]["id"] == "resp_1"
    assert failed["response"]["status"] == "failed"


def test_an_error_in_the_same_chunk_is_numbered_after_the_events_before_it() -> None:
    exchange = RESPONSES.exchange(stream=True)
    before = b"".join(RESPONSES.events[:4])
    sent = exchange.relay(before + data({"error": {"code": 500, "message": "x", "type": "server_error"}}))
    error, failed = read(sent.removeprefix(before))
    assert (error["sequence_number"], error["code"], failed["sequence_number"]) == (4, "server_error", 5)


def test_a_failed_response_passes_and_is_no_answer() -> None:
    event = ended("failed", error={"code": "server_error", "message": "broken"})
    exchange = RESPONSES.exchange(stream=True)
    assert exchange.relay(CREATED + event + b"data: late\n\n") == CREATED + event
    assert exchange.failure is not None

    exchange = RESPONSES.exchange(stream=False)
    exchange.relay(CREATED + event)
    with pytest.raises(ProblemError) as caught:
        exchange.answer()
    assert (caught.value.problem.code, caught.value.problem.message) == ("server_error", "broken")


def test_an_incomplete_response_is_an_answer() -> None:
    exchange = RESPONSES.exchange(stream=False)
    exchange.relay(CREATED + ended("incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert json.loads(exchange.answer())["status"] == "incomplete"


def test_several_responses_are_a_list_that_ends_with_the_last() -> None:
    exchange = RESPONSES.exchange(stream=False, n=2)
    assert exchange.slots == 2
    exchange.relay(CREATED + CREATED + ended("completed", output=[{"n": 1}]))
    assert not exchange.finished
    exchange.relay(ended("completed", output=[{"n": 2}]))
    assert [response["output"] for response in json.loads(exchange.answer())] == [[{"n": 1}], [{"n": 2}]]


def test_thoughts_have_a_status_in_one_piece_as_the_server_gives_it() -> None:
    exchange = RESPONSES.exchange(stream=False)
    thoughts, text = {"type": "reasoning", "id": "rs_1"}, {"type": "message", "status": "completed"}
    exchange.relay(CREATED + ended("completed", output=[thoughts, text]))
    assert json.loads(exchange.answer())["output"] == [thoughts | {"status": "completed"}, text]


def test_a_character_that_was_cut_is_replaced_if_it_is_all_there_is() -> None:
    exchange = RESPONSES.exchange(stream=False, n=2)
    exchange.relay(CREATED + ended("completed", output=[]) + ended("completed", output=[], id="resp_2"))
    empty, cut = json.loads(exchange.answer())
    assert empty["output"] == []  # this one has begun
    [item] = cut["output"]
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "status": "completed",
        "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "\ufffd"}],
        "role": "assistant",
    }


def test_the_limit_has_a_name_of_its_own() -> None:
    assert RESPONSES.exchange(stream=True, max_output_tokens=9).output_limit == 9
