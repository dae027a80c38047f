from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trio_admission_web.problems import ProblemError, bad_gateway
from trio_admission_web.wire.unstreamed import Embeddings, NativeEmbeddings, Rerank

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_admission_web.wire.exchange import Exchange


@pytest.mark.parametrize(
    ("make", "body", "slots"),
    [
        (Embeddings, {"input": "a"}, 1),
        (Embeddings, {"input": [1, 2]}, 1),
        (Embeddings, {"input": ["a", "b", "c"], "encoding_format": "base64"}, 3),
        (Embeddings, {"content": ["a", "b"]}, 2),
        (NativeEmbeddings, {"content": ["a", "b"]}, 2),
        (Rerank, {"query": "a", "documents": ["b", "c"]}, 2),
        (Rerank, {"query": "a", "texts": ["b", "c", "d"]}, 3),
        (Rerank, {}, 1),
    ],
)
def test_each_input_costs_a_slot(make: Callable[[bytes], Exchange], body: dict[str, Any], slots: int) -> None:
    raw = json.dumps(body | {"model": "m", "stream": True}).encode()
    exchange = make(raw)
    assert (exchange.slots, exchange.model, exchange.stream, exchange.output_limit) == (slots, "m", False, 0)
    assert exchange.upstream_body is raw


def test_an_event_stream_is_not_an_answer() -> None:
    exchange = Embeddings(b'{"input":"a"}')
    assert exchange.relay(b"data: [DONE]\n\n") == b""
    with pytest.raises(ProblemError) as caught:
        exchange.answer()
    assert caught.value.problem == bad_gateway()


def test_nothing_is_sent_ahead_of_the_answer() -> None:
    exchange = Rerank(b"{}")
    assert exchange.keepalive(1, 2.0) == b""
    assert exchange.error_event(bad_gateway()) == b""
    assert json.loads(exchange.error_body(bad_gateway())) == bad_gateway().openai()


def test_the_addresses_are_the_servers() -> None:
    assert [made.path for made in (Embeddings, NativeEmbeddings, Rerank)] == [
        "/v1/embeddings",
        "/embedding",
        "/v1/rerank",
    ]
