from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import COMPLETIONS, DONE, text


@pytest.mark.parametrize(
    ("members", "slots"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": "a", "n": 2, "best_of": 4}, 4),
    ],
)
def test_each_prompt_costs_a_slot_for_each_of_its_answers(members: dict[str, Any], slots: int) -> None:
    assert COMPLETIONS.exchange(stream=True, **members).slots == slots


def test_a_character_that_was_cut_is_replaced_if_it_is_all_there_is() -> None:
    for before, text_ in ((b"", "\ufffd"), (text(0, ""), ""), (text(0, "x"), "x")):
        exchange = COMPLETIONS.exchange(stream=False, prompt="a")
        exchange.relay(before + text(0, "", "length") + DONE)
        assert json.loads(exchange.answer())["choices"][0]["text"] == text_


def test_logprobs_are_joined() -> None:
    exchange = COMPLETIONS.exchange(stream=False, prompt="a")
    exchange.relay(text(0, "x", logprobs={"content": [1]}) + text(0, "y", logprobs={"content": [2]}))
    exchange.relay(text(0, "", "stop") + DONE)
    [choice] = json.loads(exchange.answer())["choices"]
    assert choice == {"text": "xy", "index": 0, "logprobs": {"content": [1, 2]}, "finish_reason": "stop"}
