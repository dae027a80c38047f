"""Our chat template: the small model calls tools on demand, and chats as it does with its own template."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.engine import CHAT, RunningEngine
from trio_admission_web.engine import Model, find_model

if TYPE_CHECKING:
    from tests.engine.conftest import StartEngine

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city", "unit"],
        },
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two integers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
FORCED = {
    "tools": [WEATHER],
    "tool_choice": "required",
    "chat_template_kwargs": {"force_tool_call": True},
    "max_tokens": 96,
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def call(identity: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def ask(engine: RunningEngine, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    async with engine.client() as client:
        answer = await client.post(CHAT, json={"messages": messages, "temperature": 0, **more})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


async def prompt(engine: RunningEngine, messages: list[dict[str, Any]], **more: Any) -> str:
    async with engine.client() as client:
        answer = await client.post("/apply-template", json={"messages": messages, **more})
    rendered: str = answer.json()["prompt"]
    return rendered


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, *({"temperature": 1, "seed": n} for n in range(3))], ids=str
)
async def test_a_forced_call_is_one_call_that_fits_its_schema(
    engine: RunningEngine, sampling: dict[str, Any]
) -> None:
    choice = await ask(engine, QUESTION, **FORCED, parallel_tool_calls=False, **sampling)
    assert choice["finish_reason"] == "tool_calls"
    [made] = choice["message"]["tool_calls"]
    arguments = json.loads(made["function"]["arguments"])
    assert made["function"]["name"] == "get_weather"
    assert arguments.keys() == {"city", "unit"}
    assert isinstance(arguments["city"], str)
    assert arguments["unit"] in {"C", "F"}


async def test_a_forced_call_streams_as_a_call(engine: RunningEngine) -> None:
    async with (
        engine.client() as client,
        client.stream(
            "POST", CHAT, json={"messages": QUESTION, "temperature": 0, "stream": True, **FORCED}
        ) as response,
    ):
        lines = [line async for line in response.aiter_lines() if line]
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-1]]
    pieces = [piece for choice in choices for piece in choice["delta"].get("tool_calls", [])]
    assert lines[-1] == "data: [DONE]"
    assert pieces[0]["function"]["name"] == "get_weather"
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces))["city"]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert not any(choice["delta"].get("content") for choice in choices)


async def test_several_calls_may_come_in_one_turn_unless_the_client_wants_one(engine: RunningEngine) -> None:
    # Whether a list goes on is the model's whim; without the tokens that end one it is the grammar's rule.
    never_ending = {"logit_bias": [[end, False] for end in ("]", "],", "]}", "];", "}]", " ]", " ],")]}
    sums = [user("What is 17 + 25?")]
    forced = {**FORCED, "tools": [ADD], **never_ending}
    several = await ask(engine, sums, **forced)
    one = await ask(engine, sums, **forced, parallel_tool_calls=False)
    assert len(several["message"]["tool_calls"]) > 1
    assert len(one["message"]["tool_calls"]) == 1
    assert one["finish_reason"] == "tool_calls"


async def test_the_call_is_to_one_of_the_tools(engine: RunningEngine) -> None:
    choice = await ask(engine, QUESTION, **{**FORCED, "tools": [WEATHER, ADD]}, parallel_tool_calls=False)
    [made] = choice["message"]["tool_calls"]
    assert made["function"]["name"] in {"get_weather", "add"}


async def test_the_model_answers_in_words_after_a_call(engine: RunningEngine) -> None:
    history: list[dict[str, Any]] = [
        *QUESTION,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("1", "get_weather", city="Paris", unit="C")],
        },
        {"role": "tool", "tool_call_id": "1", "content": "18 C and sunny"},
    ]
    choice = await ask(engine, history, max_tokens=48)
    assert choice["message"]["content"]


async def test_all_calls_of_a_turn_and_their_results_are_in_the_prompt(engine: RunningEngine) -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        user("Two sums, please."),
        {
            "role": "assistant",
            "content": "Here:",
            "tool_calls": [call("1", "add", a=1, b=2), call("2", "add", a=3, b=4)],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "tool", "tool_call_id": "2", "content": "7"},
    ]
    rendered = await prompt(engine, history, tools=[ADD])
    system, rest = rendered.split("<|im_end|>\n", maxsplit=1)
    assert system.startswith("<|im_start|>system\nBe brief.\n\n")
    assert json.dumps(ADD) in system
    assert rest == (
        "<|im_start|>user\nTwo sums, please.<|im_end|>\n"
        '<|im_start|>assistant\nHere:<tool_call>\n[{"name": "add", "arguments": {"a": 1, "b": 2}}, '
        '{"name": "add", "arguments": {"a": 3, "b": 4}}]\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nResult of the call: 3\nTell me the result in one sentence.<|im_end|>\n"
        "<|im_start|>user\nResult of the call: 7\nTell me the result in one sentence.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_without_tools_it_is_the_models_own_template(
    engine: RunningEngine, start_engine: StartEngine
) -> None:
    ours = find_model()
    own = await start_engine(model=Model(ours.name, ours.path))
    conversations = [
        [user("Name three colours.")],
        [{"role": "system", "content": "You are a pirate."}, user("Where is the gold?")],
        [user("Hello"), {"role": "assistant", "content": "Hi!"}, user("Who are you?")],
        [user("Hello"), {"role": "system", "content": "Be brief."}, user("Who are you?")],
    ]
    for messages in conversations:
        assert await prompt(engine, messages) == await prompt(own, messages)
    told = [
        (await ask(which, conversations[0], max_tokens=16, cache_prompt=False))["message"]["content"]
        for which in (engine, own)
    ]
    assert told[0] == told[1]
