"""One answer in each streamed dialect: as events, as llama-server sends them, and as one piece of JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trio_admission_web.wire.chat import Chat
from trio_admission_web.wire.completions import Completions
from trio_admission_web.wire.messages import Messages
from trio_admission_web.wire.native import Completion
from trio_admission_web.wire.responses import Responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_admission_web.wire.exchange import Exchange

TEXT = "Grüß dich 👩‍👩‍👧\u2028!"


@dataclass(frozen=True)
class Dialect:
    """A dialect, with a request and its answer."""

    make: Callable[[bytes], Exchange]
    request: dict[str, Any]
    events: list[bytes]
    answer: object
    comment: bool = True
    """Whether a keepalive is a comment."""

    def exchange(self, *, stream: bool, **members: Any) -> Exchange:
        """The exchange of the request."""
        return self.make(json.dumps(self.request | members | {"stream": stream}).encode())

    @property
    def stream(self) -> bytes:
        """The whole event stream."""
        return b"".join(self.events)

    def __str__(self) -> str:
        """The dialect's name, for test ids."""
        return self.make.__name__


def data(value: object, event: str = "") -> bytes:
    """One event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def named(value: dict[str, Any]) -> bytes:
    """One event that is named after its type."""
    return data(value, value["type"])


def chunk(*choices: dict[str, Any], **members: Any) -> bytes:
    """One event of a chat completion."""
    top = {"created": 1, "id": "chatcmpl-1", "model": "m", "system_fingerprint": "b1"}
    return data({"choices": list(choices), **top, "object": "chat.completion.chunk", **members})


def delta(
    index: int = 0, *, finish: str | None = None, logprobs: object = None, **delta: Any
) -> dict[str, Any]:
    """What a chunk says of one choice."""
    choice: dict[str, Any] = {"finish_reason": finish, "index": index, "delta": delta}
    return choice if logprobs is None else choice | {"logprobs": logprobs}


def call(index: int, arguments: str, **members: Any) -> dict[str, Any]:
    """A piece of a tool call."""
    function = (
        {"name": members.pop("name"), "arguments": arguments}
        if "name" in members
        else {"arguments": arguments}
    )
    return {"index": index, **members, "function": function}


DONE = b"data: [DONE]\n\n"
PING = b":\n\n"
TIMINGS = {"prompt_n": 3, "predicted_n": 2}
USAGE = {"completion_tokens": 2, "prompt_tokens": 3, "total_tokens": 5}

CHAT = Dialect(
    Chat,
    {"messages": [{"role": "user", "content": "hi"}]},
    [
        PING,
        chunk(delta(role="assistant", content=None), prompt_progress={"total": 3, "processed": 3}),
        chunk(delta(role="assistant", content=None)),
        chunk(delta(reasoning_content="hm")),
        chunk(delta(content=TEXT)),
        PING,
        chunk(delta(content=" error: [DONE]")),
        chunk(delta(finish="stop")),
        chunk(usage=USAGE, timings=TIMINGS),
        DONE,
    ],
    {
        "choices": [
            {
                "finish_reason": "stop",
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": TEXT + " error: [DONE]",
                    "reasoning_content": "hm",
                },
            }
        ],
        "created": 1,
        "id": "chatcmpl-1",
        "model": "m",
        "system_fingerprint": "b1",
        "object": "chat.completion",
        "usage": USAGE,
        "timings": TIMINGS,
    },
)


def text(index: int, text: str, finish: str | None = None, **members: Any) -> bytes:
    """One event of a text completion."""
    choice = {
        "text": text,
        "index": index,
        "logprobs": members.pop("logprobs", None),
        "finish_reason": finish,
    }
    return data({
        "choices": [choice],
        "created": 1,
        "model": "m",
        "object": "text_completion",
        "id": "c",
        **members,
    })


COMPLETIONS = Dialect(
    Completions,
    {"prompt": ["a", "b"]},
    [
        b"data: null\n\n",
        text(1, TEXT),
        text(0, "x"),
        text(1, "", "length", usage={"total_tokens": 7}, timings={"predicted_n": 1}),
        text(0, "y [DONE]"),
        text(0, "", "stop", usage=USAGE, timings=TIMINGS),
        DONE,
    ],
    {
        "choices": [
            {"text": "xy [DONE]", "index": 0, "logprobs": None, "finish_reason": "stop"},
            {"text": TEXT, "index": 1, "logprobs": None, "finish_reason": "length"},
        ],
        "created": 1,
        "model": "m",
        "object": "text_completion",
        "id": "c",
        "usage": USAGE,
        "timings": TIMINGS,
    },
)


def piece(index: int, content: str, *, tokens: list[int], **members: Any) -> bytes:
    """One event of a native completion that is not an answer's last."""
    return data({
        "index": index,
        "content": content,
        "tokens": tokens,
        "stop": False,
        "id_slot": -1,
        **members,
    })


def last_piece(index: int, **members: Any) -> bytes:
    """The last event of an answer in a native completion."""
    settings = {"n_predict": 2, "stream": True}
    return data({
        "index": index,
        "content": "",
        "tokens": [],
        "id_slot": index,
        "stop": True,
        "generation_settings": settings,
        "timings": TIMINGS,
        **members,
    })


def whole_piece(index: int, content: str) -> dict[str, Any]:
    """An answer of a native completion."""
    return {
        "index": index,
        "content": content,
        "tokens": [],
        "id_slot": index,
        "stop": True,
        "generation_settings": {"n_predict": 2, "stream": False},
        "timings": TIMINGS,
    }


NATIVE = Dialect(
    Completion,
    {"prompt": ["a", "b"]},
    [
        b"data: null\n\n",
        piece(0, "", tokens=[0], prompt_progress={"total": 3}),
        piece(1, TEXT, tokens=[7]),
        piece(0, 'x "stop":true', tokens=[8]),
        last_piece(1),
        PING,
        piece(0, "y", tokens=[9]),
        last_piece(0),
    ],
    [whole_piece(0, 'x "stop":truey'), whole_piece(1, TEXT)],
)

MESSAGES = Dialect(
    Messages,
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    [
        named({
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "content": [],
                "model": "m",
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"cache_read_input_tokens": 2, "input_tokens": 1, "output_tokens": 0},
            },
        }),
        named({
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": ""},
        }),
        named({
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "message_stop"},
        }),
        named({
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "signature_delta", "signature": "s"},
        }),
        named({"type": "content_block_stop", "index": 0}),
        named({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
        named({"type": "ping"}),
        named({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": TEXT}}),
        named({
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "text_delta", "text": "an error"},
        }),
        named({"type": "content_block_stop", "index": 1}),
        named({
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "t", "name": "f"},
        }),
        named({
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": ""},
        }),
        named({
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": '{"a": '},
        }),
        named({
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": '"ö"}'},
        }),
        named({"type": "content_block_stop", "index": 2}),
        named({
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 4},
        }),
        named({"type": "message_stop"}),
    ],
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "message_stop", "signature": "s"},
            {"type": "text", "text": TEXT + "an error"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "ö"}},
        ],
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"cache_read_input_tokens": 2, "input_tokens": 1, "output_tokens": 4},
    },
    comment=False,
)

OUTPUT = [
    {
        "type": "message",
        "status": "completed",
        "id": "msg_1",
        "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": TEXT}],
        "role": "assistant",
    }
]

RESPONSES = Dialect(
    Responses,
    {"input": "hi"},
    [
        named({
            "type": "response.created",
            "response": {"id": "resp_1", "object": "response", "status": "in_progress"},
        }),
        named({
            "type": "response.in_progress",
            "response": {"id": "resp_1", "status": "in_progress", "error": None},
        }),
        named({
            "type": "response.output_item.added",
            "item": {"id": "msg_1", "type": "message", "content": []},
        }),
        named({"type": "response.output_text.delta", "item_id": "msg_1", "delta": TEXT}),
        PING,
        named({"type": "response.output_item.done", "item": OUTPUT[0]}),
        named({
            "type": "response.completed",
            "response": {
                "id": "resp_1",
                "object": "response",
                "created_at": 17,
                "status": "completed",
                "model": "m",
                "output": OUTPUT,
                "usage": {"input_tokens": 3, "output_tokens": 2},
            },
            "timings": TIMINGS,
        }),
    ],
    {
        "completed_at": 17,
        "id": "resp_1",
        "object": "response",
        "created_at": 17,
        "status": "completed",
        "model": "m",
        "output": OUTPUT,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    },
)

DIALECTS = [CHAT, COMPLETIONS, NATIVE, MESSAGES, RESPONSES]
