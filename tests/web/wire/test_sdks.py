"""The official clients read what the dialects write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.support.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, TEXT, Dialect, data
from trio_admission_web.problems import bad_gateway, invalid_api_key, invalid_request, queue_full

Ask = Callable[..., Iterator[Any]]
"""Sends a streaming request, gets this body and status in answer, and yields what the SDK makes of it."""


def client(body: bytes, status: int) -> httpx2.Client:
    kind = "text/event-stream" if status == 200 else "application/json"
    answer = httpx2.Response(status, headers={"content-type": kind}, content=body)
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: answer))


def ask_openai(body: bytes, status: int = 200) -> openai.OpenAI:
    http = client(body, status)
    return openai.OpenAI(api_key="k", base_url="http://localhost/v1", http_client=http, max_retries=0)


def chat(body: bytes, status: int = 200) -> Iterator[Any]:
    yield from ask_openai(body, status).chat.completions.create(model="m", messages=[], stream=True)


def completions(body: bytes, status: int = 200) -> Iterator[Any]:
    yield from ask_openai(body, status).completions.create(model="m", prompt="a", stream=True)


def responses(body: bytes, status: int = 200) -> Iterator[Any]:
    yield from ask_openai(body, status).responses.create(model="m", input="a", stream=True)


def messages(body: bytes, status: int = 200) -> Iterator[Any]:
    http = client(body, status)
    sdk = anthropic.Anthropic(api_key="k", base_url="http://localhost", http_client=http, max_retries=0)
    yield from sdk.messages.create(model="m", messages=[], max_tokens=9, stream=True)


every_sdk = pytest.mark.parametrize(
    ("dialect", "ask"),
    [(CHAT, chat), (COMPLETIONS, completions), (RESPONSES, responses), (MESSAGES, messages)],
    ids=["chat", "completions", "responses", "messages"],
)


def usual(dialect: Dialect) -> list[bytes]:
    return [event for event in dialect.events if event != data(None)]  # which no SDK reads, from any server


@every_sdk
def test_keepalives_in_every_state_of_a_stream_are_not_seen(dialect: Dialect, ask: Ask) -> None:
    exchange = dialect.exchange(stream=True)
    forms = exchange.keepalive(3, 4.2) + exchange.keepalive(1, None) + exchange.keepalive(0, None)
    alive = b"".join(forms + event for event in usual(dialect))
    seen = list(ask(alive))
    assert seen == list(ask(b"".join(usual(dialect))))
    assert any(TEXT in event.model_dump_json() for event in seen)


@every_sdk
def test_an_error_at_any_place_in_a_stream_is_raised(dialect: Dialect, ask: Ask) -> None:
    for count in range(len(usual(dialect))):
        exchange = dialect.exchange(stream=True)
        before = exchange.relay(b"".join(usual(dialect)[:count]))
        seen: list[Any] = []
        with pytest.raises((openai.APIError, anthropic.APIError), match="did not give a complete answer"):
            seen.extend(ask(before + exchange.error_event(bad_gateway())))
        assert seen == list(ask(before))


@every_sdk
def test_an_error_that_the_server_sent_in_a_stream_is_raised(dialect: Dialect, ask: Ask) -> None:
    overflow = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
    for form in (
        data({"error": overflow}),
        data(overflow, "error"),
        b"error: " + json.dumps(overflow).encode() + b"\n\n",
    ):
        exchange = dialect.exchange(stream=True)
        with pytest.raises((openai.APIError, anthropic.APIError), match="Context size"):
            list(ask(exchange.relay(form)))


@every_sdk
@pytest.mark.parametrize(
    ("problem", "openai_error", "anthropic_error"),
    [
        (queue_full(waiting=1, slots=2, retry_after=3), openai.RateLimitError, anthropic.RateLimitError),
        (invalid_request("wrong", "n"), openai.BadRequestError, anthropic.BadRequestError),
        (invalid_api_key(), openai.AuthenticationError, anthropic.AuthenticationError),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
def test_an_http_error_is_raised_as_what_it_is(
    dialect: Dialect,
    ask: Ask,
    problem: Any,
    openai_error: type[openai.APIStatusError],
    anthropic_error: type[anthropic.APIStatusError],
) -> None:
    body = dialect.exchange(stream=True).error_body(problem)
    with pytest.raises((openai_error, anthropic_error), match=re.escape(problem.message)):
        list(ask(body, problem.status))
