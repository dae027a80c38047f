"""The fake server against the real one: the same requests, and what may not differ in the answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.raw_client import RawClient, data_of, events
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script, ToolCall
from trio_admission_web.engine import find_model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import StartEngine
    from tests.support.engine import RunningEngine
    from tests.support.raw_client import Answer

CHAT, COMPLETIONS, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
HI = [{"role": "user", "content": "Say hi"}]
LONG = [{"role": "user", "content": "hi " * 2000}]
GREEDY: dict[str, Any] = {"temperature": 0}
"""Half a character, which a chance may begin with, has no log-probabilities yet."""
USAGE = {"stream_options": {"include_usage": True}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the current weather in a city"}
FORCED = {"chat_template_kwargs": {"force_tool_call": True}, "parallel_tool_calls": False, "temperature": 0}

# Words of a closed vocabulary; other strings are text.
LITERAL = {"object", "type", "role", "finish_reason", "stop_reason", "status", "stop_type"}
# Settings of the sampler, of which the fake has none, and what depends on the text.
UNTOLD = {"generation_settings", "params", "has_new_line"}


@dataclass(frozen=True)
class Asked:
    """One request of which both servers' answers are compared."""

    method: str
    path: str
    body: object = None
    headers: tuple[tuple[str, str], ...] = ()


def post(path: str, body: object = None, **members: Any) -> Asked:
    return Asked("POST", path, {**body, **members} if isinstance(body, dict) else body)


def shape(value: Any, name: str = "") -> Any:
    """Return what kind of value it is; lists of alike members count as one."""
    if isinstance(value, dict):
        return {key: shape(member, key) for key, member in sorted(value.items()) if key not in UNTOLD}
    if isinstance(value, list):
        shapes = [shape(member) for member in value]
        return [one for at, one in enumerate(shapes) if one not in shapes[:at]]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if name == "message":  # the parser of JSON says more than the fake's
            return re.sub(r"\d+", "N", value)[:32]
        return value if name in LITERAL else "text"
    return "number"


def events_of(answer: Answer) -> list[Any]:
    """Return each event's name and the shape of its data; runs of alike events count as one."""
    heard: list[Any] = []
    for event, data in zip(events(answer.body), data_of(answer.body), strict=True):
        named = event.split(b"\n")[0] if event.startswith(b"event:") else b""
        told = (named, shape(data) if isinstance(data, dict) else data)
        if told not in heard[-1:]:
            heard.append(told)
    return heard


def headers_of(answer: Answer) -> list[tuple[str, str]]:
    return [(name, "" if name == "Content-Length" else value) for name, value in answer.headers]


async def ask(url: str, key: str, asked: Asked) -> Answer:
    async with RawClient.connected(url) as client:
        headers = asked.headers or (("Authorization", f"Bearer {key}"),)
        return await client.ask(asked.method, asked.path, asked.body, headers)


async def both(engine: RunningEngine, asked: Asked, **options: Any) -> tuple[Answer, Answer]:
    async with (
        FakeLlamaServer(total_slots=engine.slots, n_ctx=1024, api_key=engine.api_key, **options) as fake,
        fake.listening() as url,
    ):
        real = await ask(engine.url, engine.api_key, asked)
        return real, await ask(url, engine.api_key, asked)


WHOLE = [
    post(CHAT, {"messages": HI, "max_tokens": 3}),
    post(CHAT, {"messages": HI, "max_tokens": 0}),
    post(CHAT, {"messages": [], "max_tokens": 3}),
    post(CHAT, {"messages": HI, "max_tokens": 2, "n": 2, "stream": None}),
    post(CHAT, {"messages": HI, "max_tokens": 2, "logprobs": True, "top_logprobs": 1, **GREEDY}),
    post(COMPLETIONS, {"prompt": "Once", "max_tokens": 3}),
    post(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 2}),
    post(COMPLETIONS, {"prompt": "Once", "max_tokens": 2, "logprobs": 1, **GREEDY}),
    post(NATIVE, {"prompt": "Once", "n_predict": 3}),
    post(NATIVE, {"prompt": ["a", "b"], "n_predict": 1}),
    post(MESSAGES, {"messages": HI, "max_tokens": 3, "system": "Be brief."}),
    post(RESPONSES, {"input": "Say hi", "max_output_tokens": 3}),
    post(RESPONSES, {"input": HI, "max_output_tokens": 3, "instructions": "Be brief."}),
    post("/v1/chat/completions/input_tokens", {"messages": HI}),
    post("/v1/messages/count_tokens?beta=true", {"messages": HI}),
    post("/v1/responses/input_tokens", {"input": "hi"}),
    post("/tokenize", {"content": "Hello world"}),
    post("/tokenize", {"content": "Hello world", "with_pieces": True}),
    post("/detokenize", {"tokens": []}),
    post("/apply-template", {"messages": HI}),
    Asked("GET", "/health"),
    Asked("GET", "/v1/health", headers=(("Connection", "close"),)),
    Asked("GET", "/health?x=1", headers=(("Origin", "http://a.test"),)),
]
STREAMS = [
    post(CHAT, {"messages": HI, "max_tokens": 3}),
    post(CHAT, {"messages": HI, "max_tokens": 3, **USAGE}),
    post(CHAT, {"messages": HI, "max_tokens": 2, "logprobs": True, "top_logprobs": 1, **GREEDY}),
    post(CHAT, {"messages": HI, "max_tokens": 2, "timings_per_token": True}),
    post(COMPLETIONS, {"prompt": "Once", "max_tokens": 3}),
    post(COMPLETIONS, {"prompt": "Once", "max_tokens": 2, "logprobs": 1, **GREEDY}),
    post(NATIVE, {"prompt": "Once", "n_predict": 3}),
    post(MESSAGES, {"messages": HI, "max_tokens": 3}),
    post(RESPONSES, {"input": "Say hi", "max_output_tokens": 3}),
]
REFUSED = [
    *(post(path, {}) for path in (CHAT, COMPLETIONS, NATIVE, MESSAGES, RESPONSES, "/apply-template")),
    *(post(path, b"{bad") for path in (CHAT, COMPLETIONS, NATIVE, MESSAGES, RESPONSES, "/tokenize")),
    *(
        post(path, {})
        for path in ("/infill", "/v1/embeddings", "/embedding", "/v1/rerank", "/nope", "/health")
    ),
    post(CHAT, b""),
    post(CHAT, {"messages": "x"}),
    post(CHAT, {"messages": [{"role": "user"}]}),
    post(CHAT, {"messages": [{"role": "user", "content": 5}]}),
    post(CHAT, {"messages": [{"role": "user", "content": [{"type": "zzz"}]}]}),
    post(
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    ),
    post(CHAT, {"messages": HI, "stream": "yes"}),
    post(CHAT, {"messages": HI, "temperature": "hot"}),
    post(CHAT, {"messages": HI, "max_tokens": -2}),
    post(CHAT, {"messages": HI, "n": 5}),
    post(CHAT, {"messages": LONG}),
    post(CHAT, {"messages": LONG, "stream": True}),
    post(MESSAGES, {"messages": LONG, "stream": True}),
    post(RESPONSES, {"input": "x", "previous_response_id": "y"}),
    post("/slots/0?action=save", {"filename": "a"}),
    Asked("GET", CHAT),
    Asked("GET", "/health/"),
    Asked("GET", "/v1/models", headers=(("Authorization", "Bearer wrong"),)),
    Asked("POST", CHAT, {"messages": HI}, headers=(("Cookie", "a=b"),)),
]


@pytest.mark.parametrize("asked", WHOLE, ids=lambda asked: asked.path)
async def test_whole_answers_have_the_same_shape(engine: RunningEngine, asked: Asked) -> None:
    real, fake = await both(engine, asked)
    assert (real.status, headers_of(real)) == (fake.status, headers_of(fake))
    assert shape(real.json) == shape(fake.json)


@pytest.mark.parametrize("asked", STREAMS, ids=lambda asked: asked.path)
async def test_streams_have_the_same_events_in_the_same_writes(engine: RunningEngine, asked: Asked) -> None:
    assert isinstance(asked.body, dict)
    real, fake = await both(engine, post(asked.path, asked.body, stream=True, temperature=0))
    assert (real.status, headers_of(real)) == (fake.status, headers_of(fake))
    assert events_of(real) == events_of(fake)
    ends = [(len(events(answer.chunks[0])), len(events(answer.chunks[-1]))) for answer in (real, fake)]
    assert ends[0] == ends[1]
    assert real.complete
    assert fake.complete


@pytest.mark.parametrize("asked", REFUSED, ids=lambda asked: asked.path)
async def test_refusals_have_the_same_status_shape_and_words(engine: RunningEngine, asked: Asked) -> None:
    real, fake = await both(engine, asked)
    assert (real.status, headers_of(real)) == (fake.status, headers_of(fake))
    assert shape(real.json) == shape(fake.json)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        post(
            CHAT,
            {"messages": HI, "tools": [{"type": "function", "function": {**WEATHER, "parameters": SCHEMA}}]},
            tool_choice="required",
            max_tokens=60,
        ),
        post(
            MESSAGES,
            {"messages": HI, "tools": [{**WEATHER, "input_schema": SCHEMA}]},
            tool_choice={"type": "any"},
            max_tokens=60,
        ),
        post(
            RESPONSES,
            {"input": "Say hi", "tools": [{"type": "function", **WEATHER, "parameters": SCHEMA}]},
            tool_choice="required",
            max_output_tokens=60,
        ),
    ],
    ids=lambda asked: asked.path,
)
async def test_a_tool_call_has_the_same_shape(engine: RunningEngine, asked: Asked, stream: bool) -> None:
    assert isinstance(asked.body, dict)
    call = ToolCall("get_weather", ["{", '"city":', '"Paris"', "}"])
    asked = post(asked.path, asked.body, stream=stream, **FORCED)
    real, fake = await both(engine, asked, default=Script(tokens=(), tool_calls=[call]))
    if stream:
        assert events_of(real) == events_of(fake)
    else:
        assert shape(real.json) == shape(fake.json)


THINKING = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.reasoning_content and
'<think>' + m.reasoning_content + '</think>' or '') + (m.content or '') + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif %}"""


async def test_thinking_has_the_same_shape(start_engine: StartEngine, tmp_path: Path) -> None:
    template = tmp_path / "thinking.jinja"
    template.write_text(THINKING)
    engine = await start_engine(model=replace(find_model(), chat_template=template))
    only = Script(tokens=(), reasoning=["a", "b", "c"])
    answered = Script(tokens=["d", "e"], reasoning=["a", "b", "c"])
    both_kinds = {"messages": HI, "grammar": 'root ::= "hmm </think>yes"'}
    for asked, script in (
        (post(CHAT, both_kinds), answered),
        (post(MESSAGES, {"messages": HI, "max_tokens": 3, "temperature": 0}), only),
        (post(RESPONSES, {"input": "Say hi", "max_output_tokens": 3, "temperature": 0}), only),
    ):
        assert isinstance(asked.body, dict)
        real, fake = await both(engine, asked, default=script)
        assert shape(real.json) == shape(fake.json)
        real, fake = await both(engine, post(asked.path, asked.body, stream=True), default=script)
        assert events_of(real) == events_of(fake)


@pytest.mark.parametrize(
    "asked",
    [
        post(CHAT, {"messages": HI, "max_tokens": 3}),
        post(RESPONSES, {"input": "Say hi", "max_output_tokens": 3}),
    ],
    ids=lambda asked: asked.path,
)
async def test_an_answer_without_a_word_has_the_same_events(engine: RunningEngine, asked: Asked) -> None:
    assert isinstance(asked.body, dict)
    asked = post(asked.path, asked.body, stream=True, grammar='root ::= ""')
    real, fake = await both(engine, asked, default=Script(tokens=0))
    assert events_of(real) == events_of(fake)


async def test_several_prompts_and_choices_send_the_same_events(engine: RunningEngine) -> None:
    """In which order the sequences get their turns is the engine's own affair."""
    for asked in (
        post(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 2, "stream": True}),
        post(CHAT, {"messages": HI, "n": 2, "max_tokens": 2, "stream": True, **USAGE}),
    ):
        real, fake = await both(engine, asked)
        assert events_of(real)[0] == events_of(fake)[0]
        assert sorted(map(repr, set(map(repr, events_of(real))))) == sorted(
            map(repr, set(map(repr, events_of(fake))))
        )
        assert data_of(real.body)[-1] == data_of(fake.body)[-1] == "[DONE]"


async def test_what_the_fake_tells_of_itself_the_server_tells_too(engine: RunningEngine) -> None:
    for path in ("/props", "/slots", "/v1/models"):
        real, fake = await both(engine, Asked("GET", path))
        assert headers_of(real) == headers_of(fake)
        assert _contained(shape(fake.json), shape(real.json)), path
    real, fake = await both(engine, Asked("GET", "/metrics"))
    assert real.header("Content-Type") == fake.header("Content-Type")
    assert set(_series(fake)) <= set(_series(real))


async def test_a_stream_ends_its_connection_and_an_answer_keeps_it(engine: RunningEngine) -> None:
    key = [("Authorization", f"Bearer {engine.api_key}")]
    async with FakeLlamaServer(api_key=engine.api_key) as fake, fake.listening() as url:
        for one in (engine.url, url):
            async with RawClient.connected(one) as client:
                await client.ask("GET", "/health")
                body = {"messages": HI, "max_tokens": 1}
                assert (await client.ask("POST", CHAT, body, key)).status == 200
                assert (await client.ask("POST", CHAT, {**body, "stream": True}, key)).complete
                assert await client.read_to_end() == b""
                assert client.arrivals[-1][0] - client.arrivals[-2][0] < 1  # not after five idle seconds


def _contained(small: Any, large: Any) -> bool:
    if isinstance(small, dict) and isinstance(large, dict):
        return all(key in large and _contained(value, large[key]) for key, value in small.items())
    if isinstance(small, list) and isinstance(large, list):
        return all(any(_contained(one, other) for other in large) for one in small)
    return type(small) is type(large)


def _series(answer: Answer) -> list[str]:
    return [line.split()[0] for line in answer.body.decode().splitlines() if not line.startswith("#")]
