from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import CHAT, DONE, TIMINGS, USAGE, call, chunk, delta
from trio_admission_web.problems import ProblemError, bad_gateway
from trio_admission_web.wire.chat import Chat


def answer(*events: bytes, **members: Any) -> dict[str, Any]:
    exchange = CHAT.exchange(stream=False, **members)
    exchange.relay(b"".join(events))
    found: dict[str, Any] = json.loads(exchange.answer())
    return found


def message(*events: bytes, **members: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer(*events, chunk(delta(finish="stop")), DONE, **members)["choices"][0][
        "message"
    ]
    return found


def test_parallel_tool_calls_are_put_together_by_index() -> None:
    found = message(
        chunk(delta(role="assistant", content=None)),
        chunk(delta(tool_calls=[call(0, "{", id="a", type="function", name="f")])),
        chunk(delta(tool_calls=[call(1, "", id="b", type="function", name="g")])),
        chunk(delta(tool_calls=[call(1, "{}"), call(0, '"x":')])),
        chunk(delta(tool_calls=[call(0, "1}", id=None)])),
    )
    assert found == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": '{"x":1}'}, "id": "a"},
            {"type": "function", "function": {"name": "g", "arguments": "{}"}, "id": "b"},
        ],
    }


def test_a_character_that_was_cut_is_replaced_if_it_is_all_there_is() -> None:
    assert message() == {"role": "assistant", "content": "\ufffd"}
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]
    assert message(messages=begun) == {"role": "assistant", "content": "x"}


def test_several_choices_come_in_order_with_the_account_of_the_first() -> None:
    found = answer(
        chunk(delta(1, content="one")),
        chunk(delta(0, content="zero")),
        chunk(delta(1, finish="length")),
        chunk(usage={"total_tokens": 99}, timings={"predicted_n": 99}),
        chunk(delta(0, finish="stop")),
        chunk(usage=USAGE, timings=TIMINGS),
        DONE,
        n=2,
    )
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in found["choices"]] == [
        (0, "zero", "stop"),
        (1, "one", "length"),
    ]
    assert (found["usage"], found["timings"]) == (USAGE, TIMINGS)


def test_one_account_for_all_choices_is_kept() -> None:
    found = answer(
        chunk(delta(0, finish="stop")), chunk(delta(1, finish="stop")), chunk(usage=USAGE), DONE, n=2
    )
    assert found["usage"] == USAGE


def test_timings_on_the_way_are_not_the_answers() -> None:
    found = answer(
        chunk(delta(0, finish="stop"), timings=TIMINGS),
        chunk(delta(1, content="x"), timings={"predicted_n": 1}),
        chunk(delta(1, finish="stop"), timings={"predicted_n": 2}),
        DONE,
        n=2,
    )
    assert found["timings"] == TIMINGS


def test_logprobs_are_joined() -> None:
    one, two = ({"token": token, "logprob": -9999.0, "bytes": [240, 159]} for token in ("\ufffd", "\n"))
    found = answer(
        chunk(delta(content="a", logprobs={"content": [one]})),
        chunk(delta(content="b", logprobs={"content": [two]})),
        chunk(delta(finish="stop")),
        DONE,
    )
    assert found["choices"][0]["logprobs"] == {"content": [one, two]}


def test_an_answer_without_text_has_empty_content() -> None:
    assert message(chunk(delta(role="assistant", content=None))) == {"role": "assistant", "content": ""}


def test_members_that_are_not_known_are_kept() -> None:
    found = answer(chunk(delta(content="x"), x=1), chunk(delta(finish="stop"), service_tier="y"), DONE)
    assert (found["x"], found["service_tier"]) == (1, "y")


def test_a_choice_without_an_end_is_no_answer() -> None:
    for events in ([DONE], [chunk(delta(content="x")), DONE], [chunk(usage=USAGE), DONE]):
        with pytest.raises(ProblemError) as caught:
            answer(*events)
        assert caught.value.problem == bad_gateway()


@pytest.mark.parametrize(
    "strange",
    [
        chunk(delta(tool_calls=[call(0, "{}", name=7)])),
        chunk(delta(tool_calls=[{"index": [], "function": {}}])),
        chunk(delta(finish="stop"), delta(finish="stop") | {"index": "0"}),
        chunk(delta(logprobs={"content": 7})),
        b'data: {"choices":7}\n\n',
        b'data: {"choices":[7]}\n\n',
    ],
)
def test_events_of_another_shape_are_no_answer(strange: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        message(strange)
    assert caught.value.problem == bad_gateway()


@pytest.mark.parametrize(
    ("last", "content", "reasoning"),
    [
        ({"content": "The weather"}, "The weather is", None),
        ({"content": None, "reasoning_content": "hm"}, " is", "hm"),
        ({"content": [{"type": "text", "text": t} for t in ("A", "", "B")]}, "A\n\nB is", None),
        ({"content": [{"type": "image_url"}, 7]}, " is", None),
    ],
)
def test_an_answer_that_the_client_began_begins_with_it(
    last: dict[str, Any], content: str, reasoning: str | None
) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", **last}]
    found = message(chunk(delta(content=" is")), messages=messages)
    assert (found["content"], found.get("reasoning_content")) == (content, reasoning)


def test_only_a_last_message_of_the_assistant_begins_the_answer() -> None:
    for messages in ([], ["hi"], [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]):
        assert message(chunk(delta(content="z")), messages=messages)["content"] == "z"


@pytest.mark.parametrize(("members", "slots"), [({}, 1), ({"n": None}, 1), ({"n": 3}, 3), ({"n_cmpl": 2}, 2)])
def test_each_choice_costs_a_slot(members: dict[str, Any], slots: int) -> None:
    assert CHAT.exchange(stream=True, **members).slots == slots


def test_a_request_that_asks_for_usage_in_a_stream_is_not_touched() -> None:
    for options in (b"null", b'{"include_usage":false}', b'{"include_usage": true}'):
        raw = b'{"messages":[],"stream":true,"stream_options":' + options + b"}"
        assert Chat(raw).upstream_body == raw


def test_only_the_members_that_ask_for_a_stream_are_changed() -> None:
    raw = b'{ "messages" : [] , "stream":null, "stream_options":{"x":1},"temperature":1.0 }'
    changed = (
        b'{ "messages" : [] , "stream":true, "stream_options":{"include_usage":true},"temperature":1.0 }'
    )
    assert Chat(raw).upstream_body == changed


def test_what_official_clients_send_is_accepted() -> None:
    messages = [
        {"role": "user", "content": None},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "y"}]},
    ]
    nulls = dict.fromkeys((
        "model",
        "n",
        "stream",
        "tools",
        "stop",
        "max_tokens",
        "stream_options",
        "new_field",
    ))
    exchange = Chat(json.dumps({"messages": messages, **nulls}).encode())
    assert (exchange.model, exchange.stream, exchange.slots, exchange.output_limit) == (None, False, 1, None)
