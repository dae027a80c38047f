"""What the fake server answers in each API: the events, their framing, the JSON bodies, the refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.raw_client import Answer, RawClient, data_of, events
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script, ToolCall

HI = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS, MESSAGES, RESPONSES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
)
ALL = Script(tokens=["A", "B"], reasoning=["hm"], tool_calls=[ToolCall("f", ["{", "}"])])


async def ask(
    server: FakeLlamaServer, path: str, body: object = None, *, method: str = "POST", **headers: str
) -> Answer:
    client = RawClient(server.connect())
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    answer = await client.ask(method, path, body, named)
    await client.close()
    return answer


def names(answer: Answer) -> list[str]:
    lines = [line for event in events(answer.body) for line in event.decode().splitlines()]
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


async def test_a_chat_stream_has_role_deltas_finish_and_done() -> None:
    async with FakeLlamaServer(default=ALL) as server:
        answer = await ask(server, CHAT, {"messages": HI, "stream": True})
    *chunks, done = data_of(answer.body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    call_id = deltas[4]["tool_calls"][0].pop("id")
    assert deltas == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "hm"},
        {"content": "A"},
        {"content": "B"},
        {"tool_calls": [{"index": 0, "type": "function", "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
        {},
    ]
    assert (len(call_id), done) == (32, "[DONE]")
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6 + ["tool_calls"]
    assert [("usage" in chunk, "timings" in chunk) for chunk in chunks] == [(False, False)] * 6 + [
        (False, True)
    ]
    assert len(events(answer.chunks[0])) == 2  # the role and the first token come in one write
    assert dict(answer.headers) == {
        "Server": "llama.cpp",
        "Access-Control-Allow-Origin": "",
        "X-Accel-Buffering": "no",
        "Content-Type": "text/event-stream",
        "Transfer-Encoding": "chunked",
        "Keep-Alive": "timeout=5, max=100",
    }


@pytest.mark.parametrize("asked", [None, {}, {"include_usage": False}, {"include_usage": True}])
async def test_a_chat_stream_tells_its_usage_only_when_asked(asked: dict[str, Any] | None) -> None:
    async with FakeLlamaServer() as server:
        answer = await ask(server, CHAT, {"messages": HI, "stream": True, "stream_options": asked})
    *_, before, last, _done = data_of(answer.body)
    if asked == {"include_usage": True}:
        assert (last["choices"], last["usage"]["completion_tokens"], "timings" in before) == ([], 8, False)
    else:
        assert "usage" not in last
    assert "timings" in last


async def test_a_chat_answer_holds_what_its_stream_says() -> None:
    async with FakeLlamaServer(default=ALL) as server:
        answer = await ask(server, CHAT, {"messages": HI, "logprobs": True})
    (choice,) = answer.json["choices"]
    call_id = choice["message"]["tool_calls"][0].pop("id")
    assert choice["message"] == {
        "role": "assistant",
        "content": "AB",
        "reasoning_content": "hm",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert (choice["finish_reason"], len(call_id)) == ("tool_calls", 32)
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["hm", "A", "B", "{", "}"]
    usage = answer.json["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (5, usage["prompt_tokens"] + 5)
    assert (answer.json["timings"]["predicted_n"], answer.header("Content-Type")) == (
        5,
        "application/json; charset=utf-8",
    )


async def test_several_choices_finish_apart_and_carry_their_index() -> None:
    async with FakeLlamaServer() as server:
        body = {"messages": HI, "stream": True, "n": 2, "max_tokens": 1}
        answer = await ask(server, CHAT, {**body, "stream_options": {"include_usage": True}})
    *chunks, _done = data_of(answer.body)
    finished = [one["index"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
    assert sorted(finished) == [0, 1]
    assert sum("usage" in chunk for chunk in chunks) == 2  # the server sends one for each choice


@pytest.mark.parametrize(("stated", "tokens"), [(0, 1), (1, 1), (3, 3), (8, 8), (-1, 8), (None, 8)])
async def test_the_output_limit_cuts_and_is_the_reason(stated: int | None, tokens: int) -> None:
    async with FakeLlamaServer() as server:
        answer = (await ask(server, CHAT, {"messages": HI, "max_tokens": stated})).json
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["choices"][0]["finish_reason"] == ("stop" if stated in {-1, None} else "length")


async def test_a_completion_stream_ends_with_usage_and_done() -> None:
    async with FakeLlamaServer() as server:
        body = {"prompt": ["a", "b"], "stream": True, "max_tokens": 1}
        answer = await ask(server, COMPLETIONS, body)
        whole = await ask(server, COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 1})
    heard = data_of(answer.body)
    assert (heard[0], heard[-1]) == (None, "[DONE]")  # `data: null` for the second prompt, as the server does
    texts = {(chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in heard[1:-1]}
    assert texts == {(0, "r1w0"), (1, "r1c1w0"), (0, ""), (1, "")}
    assert sum("usage" in chunk for chunk in heard[1:-1]) == 2
    assert (whole.json["usage"]["prompt_tokens"], whole.json["choices"][0]["text"]) == (3, "r2w0")


async def test_a_native_completion_names_its_slot_and_has_no_done() -> None:
    async with FakeLlamaServer(infill=True) as server:
        answer = await ask(
            server, "/completion", {"prompt": "a", "n_predict": 2, "stream": True, "id_slot": 1}
        )
        *tokens, final = data_of(answer.body)
        assert [(token["content"], token["stop"]) for token in tokens] == [("r1w0", False), (" r1w1", False)]
        assert (final["stop"], final["id_slot"], final["tokens_predicted"], final["stop_type"]) == (
            True,
            1,
            2,
            "limit",
        )
        several = (await ask(server, "/completion", {"prompt": ["a", "b"], "n_predict": 1})).json
        assert [one["content"] for one in several] == ["r2w0", "r2c1w0"]
        filled = (await ask(server, "/infill", {"input_prefix": "a", "input_suffix": "b"})).json
        assert filled["content"].startswith("r3w0")


async def test_a_message_stream_closes_its_blocks_together() -> None:
    async with FakeLlamaServer(default=ALL) as server:
        answer = await ask(server, MESSAGES, {"messages": HI, "stream": True})
    heard = data_of(answer.body)
    assert names(answer) == [event["type"] for event in heard]
    assert [(event["type"], event.get("index")) for event in heard] == [
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_delta", 2),
        ("content_block_delta", 0),  # the signature
        ("content_block_stop", 0),
        ("content_block_stop", 1),
        ("content_block_stop", 2),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert heard[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert heard[-2]["usage"] == {"output_tokens": 5}


async def test_a_message_holds_its_blocks() -> None:
    async with FakeLlamaServer(default=ALL) as server:
        message = (await ask(server, MESSAGES, {"messages": HI, "system": "Be brief."})).json
    call_id = message["content"][2].pop("id")
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "AB"},
        {"type": "tool_use", "name": "f", "input": {}},
    ]
    assert (len(call_id), message["stop_reason"], message["usage"]["output_tokens"]) == (32, "tool_use", 5)


async def test_a_response_stream_closes_its_items_at_the_end() -> None:
    async with FakeLlamaServer(default=ALL) as server:
        answer = await ask(server, RESPONSES, {"input": "hi", "stream": True})
    heard = data_of(answer.body)
    assert names(answer) == [event["type"] for event in heard]
    assert [event["type"].removeprefix("response.") for event in heard] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_text.delta",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "output_item.done",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.done",
        "completed",
    ]
    output = heard[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert output[2]["arguments"] == "{}"


async def test_a_response_takes_items_and_holds_items() -> None:
    async with FakeLlamaServer() as server:
        call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "1", "output": "42"}
        body = {"input": [*HI, call, output], "max_output_tokens": 2, "instructions": "Be brief."}
        response = (await ask(server, RESPONSES, body)).json
    assert [(item["type"], item["content"][0]["text"]) for item in response["output"]] == [
        ("message", "r1w0 r1w1")
    ]
    assert (response["status"], response["usage"]["output_tokens"]) == ("completed", 2)


async def test_embeddings_and_reranking_take_a_slot_for_their_prefill() -> None:
    async with FakeLlamaServer(embeddings=True, reranking=True, prefill=2) as server:
        vectors = (await ask(server, "/v1/embeddings", {"input": ["a", "bb"]})).json
        packed = (await ask(server, "/v1/embeddings", {"input": "a", "encoding_format": "base64"})).json
        native = (await ask(server, "/embedding", {"content": "a"})).json
        ranked = (
            await ask(server, "/v1/rerank", {"query": "q", "documents": ["long", "s"], "top_n": 1})
        ).json
    assert [item["index"] for item in vectors["data"]] == [0, 1]
    assert vectors["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert isinstance(packed["data"][0]["embedding"], str)
    assert native[0]["embedding"] == [vectors["data"][0]["embedding"]]
    assert [result["index"] for result in ranked["results"]] == [1]
    assert [(request.launched, request.released) for request in server.generations] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
    ]


async def test_counting_tokens_needs_no_slot_and_agrees_with_the_usage() -> None:
    async with FakeLlamaServer(total_slots=1) as server:
        tools = [{"type": "function", "function": {"name": "f"}}]
        body = {
            "messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
            "tools": tools,
        }
        used = (await ask(server, CHAT, body)).json["usage"]["prompt_tokens"]
        counted = (await ask(server, f"{CHAT}/input_tokens", body)).json
        assert counted == {"input_tokens": used, "object": "response.input_tokens"}
        assert (await ask(server, f"{MESSAGES}/count_tokens?beta=true", {"messages": HI})).json == {
            "input_tokens": 9
        }
        assert (await ask(server, f"{RESPONSES}/input_tokens", {"input": "hi"})).json["input_tokens"] == 9
        assert server.total == 1


async def test_text_can_be_tokenized_and_put_together_again() -> None:
    async with FakeLlamaServer() as server:
        tokens = (await ask(server, "/tokenize", {"content": "one two\none"})).json["tokens"]
        pieces = (await ask(server, "/tokenize", {"content": "one two", "with_pieces": True})).json["tokens"]
        assert (await ask(server, "/detokenize", {"tokens": tokens})).json == {"content": "one two\none"}
        applied = (await ask(server, "/apply-template", {"messages": HI})).json
    assert (len(tokens), [piece["piece"] for piece in pieces]) == (4, ["one", " two"])
    assert applied == {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}


async def test_the_server_tells_of_itself() -> None:
    async with FakeLlamaServer(total_slots=2, n_ctx=512, model="m", vision=True) as server:
        props = (await ask(server, "/props", method="GET")).json
        assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 512)
        assert (await ask(server, "/v1/models", method="GET")).json["data"][0]["id"] == "m"
        fresh = {"n_ctx": 512, "speculative": False, "is_processing": False}
        assert (await ask(server, "/slots", method="GET")).json == [{"id": 0, **fresh}, {"id": 1, **fresh}]
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        await ask(server, CHAT, {"messages": [{"role": "user", "content": image}]})
        used = (await ask(server, "/slots", method="GET")).json[1]
        assert used["is_processing"] is False
        assert (used["id_task"], used["next_token"][0]["has_next_token"]) == (1, False)
        metrics = await ask(server, "/metrics", method="GET")
        assert metrics.header("Content-Type") == "text/plain; version=0.0.4"
        assert b"\nllamacpp:tokens_predicted_total 8\n" in metrics.body
        head = RawClient(server.connect())
        await head.request("HEAD", "/health")
        assert (await head.read_head()).header("Content-Length") == "15"


async def test_a_busy_slot_tells_how_far_it_is() -> None:
    async with FakeLlamaServer(total_slots=1, interval=1) as server:
        client = RawClient(server.connect())
        await client.request("POST", CHAT, {"messages": HI, "stream": True, "max_tokens": 5})
        answer = await client.read_head()
        await client.read_events(answer, 4)
        (slot,) = (await ask(server, "/slots", method="GET")).json
        assert (slot["is_processing"], slot["n_prompt_tokens"]) == (True, 9 + 3)
        assert slot["next_token"] == [
            {"has_next_token": True, "has_new_line": False, "n_remain": 2, "n_decoded": 3}
        ]
        full = await ask(server, "/slots?fail_on_no_slot=1", method="GET")
        assert (full.status, full.json["error"]["message"]) == (503, "no slot available")


REFUSALS: list[tuple[str, object, int, str, str]] = [
    (CHAT, {}, 400, "invalid_request_error", "'messages' is required"),
    (CHAT, b"{bad", 400, "invalid_request_error", "[json.exception.parse_error.101] parse error"),
    (CHAT, b"", 400, "invalid_request_error", "attempting to parse an empty input"),
    (CHAT, b"[" * 200_000, 400, "invalid_request_error", "parse error"),
    (CHAT, {"messages": "x"}, 400, "invalid_request_error", "Expected 'messages' to be an array"),
    (CHAT, {"messages": [1]}, 400, "invalid_request_error", "Expected 'messages' to be an array"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "invalid_request_error", "must contain 'content'"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": 5}]},
        400,
        "invalid_request_error",
        "string or an array",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "zzz"}]}]},
        400,
        "invalid_request_error",
        "unsupported content[].type",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        500,
        "server_error",
        "image input is not",
    ),
    (CHAT, {"messages": HI, "stream": "yes"}, 400, "invalid_request_error", "must be boolean, but is string"),
    (
        CHAT,
        {"messages": HI, "temperature": "x"},
        400,
        "invalid_request_error",
        "must be number, but is string",
    ),
    (
        CHAT,
        {"messages": HI, "max_tokens": -2},
        400,
        "invalid_request_error",
        "-1 <= value <= 2147483647, but got -2",
    ),
    (CHAT, {"messages": HI, "n": 5}, 400, "invalid_request_error", "1 <= value <= 4, but got 5"),
    (COMPLETIONS, {}, 400, "invalid_request_error", "key 'prompt' not found"),
    ("/completion", {}, 400, "invalid_request_error", "key 'prompt' not found"),
    (MESSAGES, {}, 500, "server_error", "'messages' is required"),
    (RESPONSES, {}, 400, "invalid_request_error", "'input' is required"),
    (
        RESPONSES,
        {"input": "x", "previous_response_id": "y"},
        400,
        "invalid_request_error",
        "previous_response_id",
    ),
    ("/v1/embeddings", {"input": "x"}, 501, "not_supported_error", "--embeddings"),
    ("/v1/rerank", {}, 501, "not_supported_error", "--reranking"),
    ("/infill", {}, 501, "not_supported_error", "Infill is not supported"),
    ("/slots/0?action=save", {}, 501, "not_supported_error", "--slot-save-path"),
    ("/nope", {}, 404, "not_found_error", "File Not Found"),
    ("/health", {}, 404, "not_found_error", "File Not Found"),
]


@pytest.mark.parametrize(("path", "body", "status", "kind", "sentence"), REFUSALS)
async def test_refusals_speak_the_server_s_words(
    path: str, body: object, status: int, kind: str, sentence: str
) -> None:
    async with FakeLlamaServer() as server:
        answer = await ask(server, path, body)
        assert server.in_flight == 0
    error = answer.json["error"]
    assert (answer.status, error["code"], error["type"]) == (status, status, kind)
    assert sentence in error["message"]
    assert answer.header("Connection") == "close"


async def test_what_is_off_is_not_supported() -> None:
    async with FakeLlamaServer(slots_endpoint=False, metrics_endpoint=False) as server:
        assert (await ask(server, "/slots", method="GET")).status == 501
        assert (await ask(server, "/metrics", method="GET")).status == 501


async def test_a_loading_server_answers_503_everywhere() -> None:
    async with FakeLlamaServer(loading=True) as server:
        for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("POST", CHAT)):
            answer = await ask(server, path, {"messages": HI} if method == "POST" else None, method=method)
            assert answer.json == {
                "error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            }
        server.loading = False
        assert (await ask(server, "/health", method="GET")).status == 200


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Authorization", "Bearer k", 200),
        ("Authorization", "k", 200),
        ("X_Api_Key", "k", 200),
        ("Authorization", "bearer k", 401),
        ("Authorization", "Bearer other", 401),
        ("Cookie", "k", 401),
    ],
)
async def test_a_key_is_asked_for_everywhere_but_health(header: str, value: str, status: int) -> None:
    async with FakeLlamaServer(api_key="k") as server:
        answer = await ask(server, "/v1/models", method="GET", **{header: value})
        assert answer.status == status
        assert (await ask(server, "/nope", method="GET")).status == 401
        assert (await ask(server, "/health", method="GET")).status == 200
    if status == 401:
        assert answer.json["error"]["type"] == "authentication_error"


ODD: list[bytes] = [
    b"[]",
    b"null",
    b'"text"',
    b'{"messages": [{"role": "user", "content": "\\ud800"}], "prompt": "\\ud800", "input": "\\ud800"}',
    b'{"messages": NaN, "prompt": NaN, "input": NaN}',
    b'{"messages": [[]], "prompt": {}, "input": 5, "content": 5, "tokens": {"a": 1}}',
    b'{"messages": [{"role": [], "content": [null, 1, {}]}], "prompt": [], "input": [null], "tokens": [[]]}',
    b'{"messages": [], "prompt": "", "input": "", "id_slot": 1.5, "n": 1.0, "max_tokens": 1e300}',
    b'{"messages": [], "prompt": [[]], "input": [{}], "id_slot": "x", "temperature": true}',
    "{}".encode("utf-16"),
    b"\xff",
    b"1" * 10_000,
]


@pytest.mark.parametrize("body", ODD)
async def test_whatever_the_body_there_is_an_answer(body: bytes) -> None:
    paths = [CHAT, COMPLETIONS, "/completion", MESSAGES, RESPONSES, "/v1/embeddings", "/v1/rerank", "/infill"]
    paths += [f"{CHAT}/input_tokens", "/tokenize", "/detokenize", "/apply-template", "/slots/0?action=save"]
    async with FakeLlamaServer(embeddings=True, reranking=True, infill=True, slot_save=True) as server:
        for path in paths:
            answer = await ask(server, path, body)
            assert answer.status in {200, 400, 500}
            assert answer.status == 200 or answer.json["error"]["code"] == answer.status
        assert server.in_flight == 0


async def test_nulls_and_unknown_fields_are_taken() -> None:
    async with FakeLlamaServer() as server:
        body = {"messages": HI, "stream": None, "max_tokens": None, "n": None, "id_slot": None, "what": [1]}
        answer = await ask(server, CHAT, json.dumps(body).encode(), Content_Encoding="identity")
    assert answer.status == 200
