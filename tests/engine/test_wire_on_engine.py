"""The dialects against the server that speaks them: its events, put together, are its answer in one piece."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trio_admission_web.wire.chat import Chat
from trio_admission_web.wire.completions import Completions
from trio_admission_web.wire.messages import Messages
from trio_admission_web.wire.native import Completion
from trio_admission_web.wire.responses import Responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine import RunningEngine
    from trio_admission_web.wire.exchange import Exchange

# What differs between two answers to one request: identities, moments, durations and what was cached.
VOLATILE = {"id", "call_id", "id_slot", "created", "created_at", "completed_at", "cached_tokens"}
VOLATILE |= {"cache_read_input_tokens", "input_tokens", "cache_n", "prompt_n"}

HI = [{"role": "user", "content": "Say hi."}]
WEATHER: dict[str, Any] = {"name": "get_weather", "description": "Get the current weather in a city"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORCED = {"chat_template_kwargs": {"force_tool_call": True}, "parallel_tool_calls": False}
LONG_ENOUGH = 60


def chat(messages: list[dict[str, Any]] = HI, **members: Any) -> tuple[type[Chat], dict[str, Any]]:
    return Chat, {"messages": messages, "max_tokens": 4, **members}


def completions(prompt: object = "Once upon", **members: Any) -> tuple[type[Completions], dict[str, Any]]:
    return Completions, {"prompt": prompt, "max_tokens": 4, **members}


def native(prompt: object = "Once upon", **members: Any) -> tuple[type[Completion], dict[str, Any]]:
    return Completion, {"prompt": prompt, "n_predict": 4, **members}


def messages(messages: list[dict[str, Any]] = HI, **members: Any) -> tuple[type[Messages], dict[str, Any]]:
    return Messages, {"messages": messages, "max_tokens": 4, **members}


def responses(**members: Any) -> tuple[type[Responses], dict[str, Any]]:
    return Responses, {"input": "Say hi.", "max_output_tokens": 4, **members}


# What the model repeats takes three tokens for each character, none of which is one by itself.
STARS = [{"role": "user", "content": "Repeat: 🌟🌟🌟🌟"}]
MODEL = "SmolLM2-135M-Instruct"


def begun(**members: Any) -> list[dict[str, Any]]:
    """Messages of which the last begins the answer."""
    return [*HI, {"role": "assistant", **members}]


CHAT_TOOL: dict[str, Any] = {
    **FORCED,
    "tools": [{"type": "function", "function": {**WEATHER, "parameters": SCHEMA}}],
    "tool_choice": "required",
    "max_tokens": LONG_ENOUGH,
}
MESSAGES_TOOL: dict[str, Any] = {
    **FORCED,
    "tools": [{**WEATHER, "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
    "max_tokens": LONG_ENOUGH,
}
RESPONSES_TOOL: dict[str, Any] = {
    **FORCED,
    "tools": [{"type": "function", **WEATHER, "parameters": SCHEMA}],
    "tool_choice": "required",
    "max_output_tokens": LONG_ENOUGH,
}
THOUGHT = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Ah"}]
PICKED = ["content", "generation_settings/n_predict", "timings/predicted_n", "nope"]

SIMPLE = {
    "chat": chat(),
    "completions": completions(),
    "native": native(),
    "messages": messages(),
    "responses": responses(),
}
ALL = SIMPLE | {
    "chat: choices": chat(n=3),
    "chat: logprobs": chat(logprobs=True, top_logprobs=2),
    "chat: tool calls": chat(**CHAT_TOOL, n=2),
    "chat: stop": chat(max_tokens=30, stop=["!", ".", ","]),
    "chat: begun": chat(begun(content="The weather")),
    "chat: begun to think": chat(begun(content="", reasoning_content="hm")),
    "chat: begun after thinking": chat(begun(content="Ah", reasoning_content="hm")),
    "chat: told on the way": chat(n=2, timings_per_token=True, return_progress=True),
    "chat: nulls": chat(stream=None, stream_options=None, n=None, stop=None),
    "completions: choices": completions(["Once upon", "The sky"], n=2),
    "completions: tokens": completions([[504, 3501], [260]]),
    "completions: logprobs": completions(logprobs=2),
    "native: prompts": native(["Once upon", "The sky"]),
    "native: choices": native(n_cmpl=2, response_fields=PICKED),
    "native: tokens": native(return_tokens=True, return_progress=True),
    "native: probabilities": native(n_probs=2),
    "native: stop": native(n_predict=40, stop=["was", "were"]),
    "messages: tool call": messages(**MESSAGES_TOOL),
    "messages: stop": messages(max_tokens=30, stop_sequences=["!", ".", ","]),
    "messages: begun": messages(begun(content="The weather")),
    "messages: begun after thinking": messages(begun(content=THOUGHT)),
    "messages: first token no character": messages(STARS, max_tokens=8, model=MODEL),
    "responses: reasoning": responses(grammar='root ::= "<think>abc</think>hello"', max_output_tokens=40),
    "chat: nothing but a cut character": chat(STARS, max_tokens=1, n=2),
    "completions: nothing but a cut character": completions("🌟" * 6, max_tokens=1),
    "native: nothing but a cut character": native("🌟" * 6, n_predict=1),
    "native: a cut character": native("🌟" * 6, n_predict=7, n_probs=1),
    "messages: nothing but a cut character": messages(STARS, max_tokens=1, model=MODEL),
    "messages: a cut character after a beginning": messages(
        [*STARS, {"role": "assistant", "content": "🌟🌟"}], max_tokens=1, model=MODEL
    ),
    "responses: nothing but a cut character": responses(input=STARS, max_output_tokens=1, n=2),
    "responses: choices": responses(n=2),
    "responses: tool call": responses(**RESPONSES_TOOL),
}


def stable(value: Any, name: str = "") -> Any:
    """The value without what differs between two answers to one request."""
    if isinstance(value, dict):
        return {key: stable(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [stable(inner) for inner in value]
    return "..." if name in VOLATILE or name.endswith(("_ms", "_per_second")) else value


async def post(engine: RunningEngine, path: str, body: bytes) -> list[bytes]:
    """The answer's bytes as they came."""
    async with engine.client() as client, client.stream("POST", path, content=body) as response:
        assert response.status_code == 200, await response.aread()
        return [chunk async for chunk in response.aiter_raw()]


@pytest.mark.parametrize(("make", "request_"), ALL.values(), ids=ALL)
async def test_the_events_make_the_answer_that_the_server_gives_in_one_piece(
    engine: RunningEngine, make: Callable[[bytes], Exchange], request_: dict[str, Any]
) -> None:
    body = json.dumps({"temperature": 0, **request_}).encode()
    exchange = make(body)
    for chunk in await post(engine, exchange.path, exchange.upstream_body):
        exchange.relay(chunk)
    whole = json.loads(b"".join(await post(engine, exchange.path, body)))
    assert stable(json.loads(exchange.answer())) == stable(whole)


@pytest.mark.parametrize(("make", "request_"), SIMPLE.values(), ids=SIMPLE)
async def test_a_stream_passes_as_it_is_and_its_end_is_seen(
    engine: RunningEngine, make: Callable[[bytes], Exchange], request_: dict[str, Any]
) -> None:
    exchange = make(json.dumps({"temperature": 0, **request_, "stream": True}).encode())
    chunks = await post(engine, exchange.path, exchange.upstream_body)
    assert b"".join(exchange.relay(chunk) for chunk in chunks) == b"".join(chunks)
    assert exchange.finished
    assert exchange.failure is None
