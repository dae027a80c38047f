"""What tells a conversation from others, and how a request is told its slot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trio_admission_web.problems import ProblemError
from trio_admission_web.wire.chat import Chat
from trio_admission_web.wire.completions import Completions
from trio_admission_web.wire.messages import Messages
from trio_admission_web.wire.native import Completion, Infill
from trio_admission_web.wire.offer import read_offer
from trio_admission_web.wire.responses import Responses
from trio_admission_web.wire.unstreamed import Embeddings

if TYPE_CHECKING:
    from trio_admission_web.wire.exchange import Exchange

SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
SECOND = {"role": "user", "content": "And now?"}


def raw(**members: Any) -> bytes:
    return json.dumps(members).encode()


def chat(*messages: dict[str, Any], **members: Any) -> Chat:
    return Chat(raw(messages=messages, **members))


def test_the_whole_of_one_turn_is_a_beginning_of_the_next() -> None:
    before = chat(SYSTEM, FIRST).thread
    after = chat(SYSTEM, FIRST, ANSWER, SECOND).thread
    assert len(before) == 2
    assert before == after[:2]
    assert len(set(after)) == 4


@pytest.mark.parametrize(
    "other",
    [
        chat(SYSTEM, SECOND),
        chat(FIRST, SYSTEM),
        chat(SYSTEM, FIRST, tools=[{"type": "function", "function": {"name": "f"}}]),
    ],
)
def test_what_differs_in_anything_that_was_computed_is_another_conversation(other: Chat) -> None:
    assert chat(SYSTEM, FIRST).thread[-1] not in other.thread


def test_the_order_of_members_and_the_settings_of_one_turn_make_no_difference() -> None:
    turned = {"content": "Hi", "role": "user"}
    assert chat(turned, temperature=1, stream=True).thread == chat(FIRST).thread


def test_an_input_that_is_a_text_is_the_user_s_first_message() -> None:
    assert Responses(raw(input="Hi")).thread == Responses(raw(input=[FIRST])).thread
    with_instructions = Responses(raw(input="Hi", instructions="Be brief."))
    assert with_instructions.thread != Responses(raw(input="Hi")).thread


def test_a_name_stands_for_the_messages() -> None:
    named = {"admission": {"conversation": "tea"}}
    one, other = chat(FIRST, **named).thread, Completion(raw(prompt="x", **named)).thread
    assert one == other
    assert one[-1] in one[:-1]  # it is a follow-up of itself
    assert not set(one) & set(chat(FIRST, admission={"conversation": "coffee"}).thread)


@pytest.mark.parametrize("exchange", [chat(FIRST, cache_prompt=False), Completion(raw(prompt="x"))])
def test_some_have_nothing_to_go_by(exchange: Exchange) -> None:
    assert exchange.thread == ()


@pytest.mark.parametrize(
    "exchange",
    [
        chat(FIRST),
        Completions(raw(prompt="x")),
        Completion(raw(prompt=["x"])),
        Infill(raw(input_prefix="a", input_suffix="b")),
        Responses(raw(input="x")),
    ],
)
def test_one_answer_to_one_prompt_can_be_pinned(exchange: Exchange) -> None:
    assert exchange.can_be_pinned
    body = json.loads(exchange.pinned(3))
    assert body.pop("id_slot") == 3
    assert body == json.loads(exchange.upstream_body)


@pytest.mark.parametrize(
    "exchange",
    [
        chat(FIRST, n=2),
        Completions(raw(prompt=["x", "y"])),
        Completions(raw(prompt="x", best_of=2)),
        Completion(raw(prompt=["x", "y"])),
        Responses(raw(input="x", n=2)),
        Messages(raw(messages=[FIRST])),
        Embeddings(raw(input="x")),
    ],
)
def test_others_are_left_to_the_backend(exchange: Exchange) -> None:
    assert not exchange.can_be_pinned


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        (Chat, {"messages": [FIRST]}),
        (Completions, {"prompt": "x"}),
        (Completion, {"prompt": "x"}),
        (Responses, {"input": "x"}),
        (Messages, {"messages": [FIRST]}),
        (Embeddings, {"input": "x"}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_the_backend_gets_neither_a_client_s_pin_nor_what_is_for_the_gateway(
    kind: Any, members: dict[str, Any], *, stream: bool
) -> None:
    mine = raw(**members, id_slot=1, stream=stream, admission={"conversation": "tea"})
    assert kind(mine).upstream_body == kind(raw(**members, stream=stream)).upstream_body


@pytest.mark.parametrize("name", ["", 7, ["a"]])
def test_a_conversation_s_name_is_text(name: object) -> None:
    with pytest.raises(ProblemError) as refused:
        read_offer(raw(admission={"conversation": name}))
    assert refused.value.problem.param == "admission.conversation"


def test_nothing_but_null_asks_for_nothing() -> None:
    assert read_offer(raw(admission={"conversation": None, "tools": None})) is None


def test_a_conversation_may_be_named_with_and_without_tools() -> None:
    offer = read_offer(raw(admission={"conversation": "tea"}))
    assert offer is not None
    assert offer.tools == ()
    both = read_offer(raw(admission={"conversation": "tea", "tools": ["clock"]}))
    assert both is not None
    assert both.tools == ("clock",)
