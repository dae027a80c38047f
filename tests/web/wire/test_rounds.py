"""Answers in rounds: what the client sees of them, and what the backend is asked next."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trio_admission_web.problems import ProblemError
from trio_admission_web.wire.chat_rounds import ChatRounds
from trio_admission_web.wire.message_rounds import MessageRounds
from trio_admission_web.wire.offer import Function, Offer, for_upstream, read_offer
from trio_admission_web.wire.rounds import MAX_ROUNDS
from trio_admission_web.wire.splice import extend

FIND = Function("find", "Find.", {"type": "object"})
MESSAGES = [{"role": "user", "content": "Hi"}]
DONE = b"data: [DONE]\n\n"


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def body(**members: Any) -> bytes:
    return dump({"messages": MESSAGES, "stream": True, "admission": {"tools": ["find"]}, **members})


def chunk(delta: dict[str, Any], reason: str | None = None, number: int = 1, **members: Any) -> bytes:
    part = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + dump({"id": f"c{number}", "created": number, "choices": [part], **members}) + b"\n\n"


def usage(prompt: int, completion: int, number: int = 1) -> bytes:
    used = {"prompt_tokens": prompt, "completion_tokens": completion, "details": {"cached": prompt}}
    return b"data: " + dump({"id": f"c{number}", "created": number, "choices": [], "usage": used}) + b"\n\n"


def call(name: str, *pieces: str, index: int = 0) -> list[bytes]:
    first = {"index": index, "id": f"id-{name}", "type": "function"}
    function = {"name": name, "arguments": pieces[0]}
    return [
        chunk({"tool_calls": [first | {"function": function}]}),
        *(
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in pieces[1:]
        ),
    ]


ROLE = chunk({"role": "assistant", "content": None})


def test_the_gateways_member_is_removed_and_its_tools_stand_behind_the_clients() -> None:
    raw = b'{ "messages" : [] ,"x":1.50, "tools":[ {"a":1} ],"admission":{"tools":["find"]} ,"stream":true}'
    tool = (
        '{"type":"function","function":{"name":"find","description":"Find.","parameters":{"type":"object"}}}'
    )
    expected = '{ "messages" : [] ,"x":1.50, "tools":[ {"a":1} ,TOOL],"stream":true}'.replace("TOOL", tool)
    assert ChatRounds(raw, [FIND]).upstream_body == expected.encode()


def test_an_answer_without_calls_passes_byte_for_byte() -> None:
    exchange = ChatRounds(body(), [FIND])
    stream = ROLE + chunk({"content": "Hello"}) + chunk({}, "stop") + usage(3, 1) + DONE
    assert b"".join(exchange.relay(bytes([byte])) for byte in stream) == stream
    assert exchange.finished
    assert not exchange.calls


def test_calls_are_hidden_and_their_results_asked_about() -> None:
    exchange = ChatRounds(body(tool_choice="required"), [FIND])
    stream = [ROLE, chunk({"content": "Let me see"}), *call("find", '{"x"', ":1}"), chunk({}, "tool_calls")]
    shown = exchange.relay(b"".join([*stream, usage(3, 4), DONE]))
    assert shown == ROLE + chunk({"content": "Let me see"})
    [found] = exchange.calls
    assert (found.id, found.name, found.arguments) == ("id-find", "find", {"x": 1})
    assert not exchange.finished

    exchange.go_on(["42"])
    sent = json.loads(exchange.upstream_body)
    assert sent["tool_choice"] == "auto"
    assert sent["messages"] == [
        *MESSAGES,
        {
            "role": "assistant",
            "content": "Let me see",
            "tool_calls": [
                {"id": "id-find", "type": "function", "function": {"name": "find", "arguments": '{"x":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "id-find", "content": "42"},
    ]
    stream = [
        chunk({"role": "assistant", "content": None}, number=2),
        chunk({"content": "It is 42"}, number=2),
    ]
    shown = exchange.relay(b"".join([*stream, chunk({}, "stop", number=2), usage(9, 5, 2), DONE]))
    assert shown == chunk({"content": "It is 42"}) + chunk({}, "stop") + usage(12, 9) + DONE
    assert exchange.finished


def test_an_answer_in_one_piece_is_put_together_from_all_rounds() -> None:
    exchange = ChatRounds(body(stream=False), [FIND])
    assert (
        exchange.relay(b"".join([ROLE, *call("find", "{}"), chunk({}, "tool_calls"), usage(3, 4), DONE]))
        == b""
    )
    exchange.go_on(["42"])
    exchange.relay(b"".join([ROLE, chunk({"content": "42"}), chunk({}, "stop"), usage(9, 5), DONE]))
    answer = json.loads(exchange.answer())
    assert answer["choices"] == [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "42"}}
    ]
    assert answer["usage"] == {"prompt_tokens": 12, "completion_tokens": 9, "details": {"cached": 12}}


def test_a_call_of_the_clients_tool_ends_the_answer_and_is_numbered_from_0() -> None:
    exchange = ChatRounds(body(), [FIND])
    shown = exchange.relay(
        b"".join([*call("find", "{}"), *call("mine", "{}", index=1), chunk({}, "tool_calls"), DONE])
    )
    assert shown == b"".join([*call("mine", "{}"), chunk({}, "tool_calls"), DONE])
    assert exchange.finished
    assert not exchange.calls


def test_a_call_that_was_cut_by_the_limit_is_not_made() -> None:
    exchange = ChatRounds(body(), [FIND])
    shown = exchange.relay(b"".join([*call("find", "{}"), chunk({}, "length"), DONE]))
    assert shown == chunk({}, "length") + DONE
    assert exchange.finished
    assert not exchange.calls


def test_the_last_round_must_not_call() -> None:
    exchange = ChatRounds(body(), [FIND])
    stream = b"".join([*call("find", "{}"), chunk({}, "tool_calls"), DONE])
    for number in range(2, MAX_ROUNDS + 1):
        exchange.relay(stream)
        exchange.go_on([""])
        assert (json.loads(exchange.upstream_body).get("tool_choice") == "none") is (number == MAX_ROUNDS)
    assert b"tool_calls" in exchange.relay(stream)
    assert exchange.finished


def test_the_force_of_our_own_template_ends_with_the_first_round() -> None:
    options = {"force_tool_call": True, "other": 1}
    exchange = ChatRounds(body(chat_template_kwargs=options, tool_choice={"type": "function"}), [FIND])
    exchange.relay(b"".join([*call("find", "no json"), chunk({}, "tool_calls"), DONE]))
    assert exchange.calls[0].arguments is None
    exchange.go_on(["Error"])
    sent = json.loads(exchange.upstream_body)
    assert (sent["chat_template_kwargs"], sent["tool_choice"]) == ({"other": 1}, "auto")
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_an_error_in_the_stream_stays_an_error() -> None:
    exchange = ChatRounds(body(), [FIND])
    error = b'data: {"error":{"code":500,"message":"no","type":"server_error"}}\n\n'
    assert exchange.relay(ROLE + error) == ROLE + error + DONE
    assert exchange.failure is not None


@pytest.mark.parametrize("data", [b"data: [1]\n\n", b'data: {"choices":3}\n\n', b"data: {\n\n"])
def test_what_is_no_answer_is_a_bad_gateway(data: bytes) -> None:
    with pytest.raises(ProblemError):
        ChatRounds(body(), [FIND]).relay(data)


@pytest.mark.parametrize(
    ("members", "param"),
    [({"n": 2}, "n"), ({"tools": [{"type": "function", "function": {"name": "find"}}]}, "tools")],
)
def test_what_does_not_go_with_the_gateways_tools_is_refused(members: dict[str, Any], param: str) -> None:
    with pytest.raises(ProblemError) as caught:
        ChatRounds(body(**members), [FIND])
    assert caught.value.problem.param == param


def test_a_notice_is_a_chunk_of_the_same_answer_without_choices() -> None:
    exchange = ChatRounds(body(), [FIND])
    exchange.relay(ROLE)
    expected = {"id": "c1", "created": 1, "choices": [], "admission": {"type": "resumed"}}
    assert exchange.notice({"type": "resumed"}) == b"data: " + dump(expected) + b"\n\n"


# ---- messages


def event(kind: str, **members: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dump({"type": kind, **members}) + b"\n\n"


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    return b"".join([
        event("content_block_start", index=index, content_block=start),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ])


def text(index: int, said: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, {"type": "text_delta", "text": said})


def use(index: int, name: str) -> bytes:
    start = {"type": "tool_use", "id": f"id-{name}", "name": name, "input": {}}
    return block(index, start, {"type": "input_json_delta", "partial_json": '{"x":1}'})


def begin(tokens: int) -> bytes:
    message = {
        "id": "m",
        "role": "assistant",
        "content": [],
        "usage": {"input_tokens": tokens, "output_tokens": 0},
    }
    return event("message_start", message=message)


def end(reason: str, tokens: int) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return event("message_delta", delta=delta, usage={"output_tokens": tokens}) + event("message_stop")


def test_a_message_in_rounds_is_one_message() -> None:
    exchange = MessageRounds(body(tool_choice={"type": "any"}), [FIND])
    first = begin(10) + text(0, "Let me see")
    assert exchange.relay(first + use(1, "find") + end("tool_use", 5)) == first
    [found] = exchange.calls
    assert (found.id, found.name, found.arguments) == ("id-find", "find", {"x": 1})

    exchange.go_on(["42"])
    sent = json.loads(exchange.upstream_body)
    assert sent["tools"] == [{"name": "find", "description": "Find.", "input_schema": {"type": "object"}}]
    assert sent["tool_choice"] == {"type": "auto"}
    assert sent["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see"},
                {"type": "tool_use", "id": "id-find", "name": "find", "input": {"x": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "id-find", "content": "42"}]},
    ]
    shown = exchange.relay(begin(20) + text(0, "It is 42") + end("end_turn", 7))
    used = {"input_tokens": 30, "output_tokens": 12}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    last = event("message_delta", delta=delta, usage=used) + event("message_stop")
    assert shown == text(1, "It is 42") + last
    assert exchange.finished


def test_a_message_in_one_piece_is_put_together_from_all_rounds() -> None:
    exchange = MessageRounds(body(stream=False), [FIND])
    exchange.relay(begin(10) + use(0, "find") + end("tool_use", 5))
    exchange.go_on(["42"])
    exchange.relay(begin(20) + text(0, "It is 42") + end("end_turn", 7))
    answer = json.loads(exchange.answer())
    assert answer["content"] == [{"type": "text", "text": "It is 42"}]
    assert (answer["stop_reason"], answer["usage"]) == ("end_turn", {"input_tokens": 30, "output_tokens": 12})


def test_a_round_that_has_no_start_because_its_first_character_came_late_is_a_round() -> None:
    exchange = MessageRounds(body(stream=False), [FIND])
    exchange.relay(begin(10) + use(0, "find") + end("tool_use", 5))
    exchange.go_on(["42"])
    exchange.relay(text(0, "🌟") + end("end_turn", 7))
    answer = json.loads(exchange.answer())
    assert answer["content"] == [{"type": "text", "text": "🌟"}]
    assert answer["usage"] == {"input_tokens": 10, "output_tokens": 12}  # as far as it was told

    exchange = MessageRounds(body(stream=False), [FIND])
    exchange.relay(text(0, "🌟") + end("end_turn", 7))
    assert json.loads(exchange.answer())["content"] == [{"type": "text", "text": "🌟"}]


def test_a_message_that_calls_the_clients_tool_ends_there() -> None:
    exchange = MessageRounds(body(), [FIND])
    ending = end("tool_use", 5)
    shown = exchange.relay(begin(10) + use(0, "find") + use(1, "mine") + ending)
    assert shown == begin(10) + use(0, "mine") + ending
    assert exchange.finished


def test_a_call_in_a_message_that_was_cut_is_not_made() -> None:
    exchange = MessageRounds(body(), [FIND])
    assert exchange.relay(begin(10) + use(0, "find") + end("max_tokens", 5)) == begin(10) + end(
        "max_tokens", 5
    )
    assert exchange.finished


def test_a_notice_in_a_message_is_a_ping() -> None:
    notice = MessageRounds(body(), [FIND]).notice({"type": "resumed"})
    assert notice == event("ping", admission={"type": "resumed"})


# ---- the request's member


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ("x", "admission"),
        ({}, "admission.tools"),
        ({"tools": []}, "admission.tools"),
        ({"tools": [1]}, "admission.tools"),
        ({"tools": ["a"], "approval": "maybe"}, "admission.approval"),
        ({"tools": ["a"], "approval": []}, "admission.approval"),
        ({"tools": ["a"], "extra": 1}, "admission.extra"),
    ],
)
def test_a_malformed_offer_is_refused(said: object, param: str) -> None:
    with pytest.raises(ProblemError) as caught:
        read_offer(dump({"admission": said}))
    assert caught.value.problem.param == param


def test_an_offer_is_read_where_there_is_one() -> None:
    assert read_offer(dump({"admission": {"tools": ["a", "b", "a"]}})) == Offer(("a", "b"), "auto")
    assert read_offer(dump({"admission": {"tools": ["a"], "approval": None}})) == Offer(("a",), "auto")
    assert read_offer(dump({"admission": {"tools": None, "conversation": "c"}})) == Offer()
    assert read_offer(dump({"admission": None})) is None
    assert read_offer(b"no json") is None
    assert for_upstream(b'{"a":1, "admission":null}', {"a": 1, "admission": None}) == b'{"a":1}'
    assert read_offer(dump({"messages": [{"admission": 1}]})) is None


# ---- lists in bytes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"{}", b'{"a":[1,2]}'),
        (b'{ "b" : 3 }', b'{ "b" : 3 ,"a":[1,2]}'),
        (b'{"a":[ ],"b":1}', b'{"a":[1,2],"b":1}'),
        (b'{"a": null }', b'{"a": [1,2] }'),
        (b' {"a":[0.10 , [7]] } ', b' {"a":[0.10 , [7],1,2] } '),
    ],
)
def test_items_are_added_to_a_list_in_its_bytes(before: bytes, after: bytes) -> None:
    assert extend(before, "a", [b"1", b"2"]) == after
