from __future__ import annotations

import json

import pytest

from trio_admission_web.wire.account import read_accounts
from trio_admission_web.wire.chat import Chat
from trio_admission_web.wire.exchange import Account

TIMINGS = {"prompt_n": 7, "predicted_n": 3}


def event(**members: object) -> bytes:
    return b"data: " + json.dumps(members, separators=(",", ":")).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        (event(choices=[{"index": 0, "finish_reason": "stop"}], timings=TIMINGS), (7, 3)),
        (event(choices=[], usage={}, timings=TIMINGS), (7, 3)),
        (event(stop=True, timings=TIMINGS), (7, 3)),
        (event(choices=[], timings=TIMINGS) * 2, (14, 6)),
        (event(choices=[{"index": 0, "finish_reason": None}], timings=TIMINGS), (0, 0)),
        (event(stop=False, timings=TIMINGS), (0, 0)),
        (event(choices=[{"delta": {"content": '"timings"'}}]), (0, 0)),
        (event(choices=[], timings=None), (0, 0)),
        (event(choices=[], timings={"prompt_n": "x", "predicted_n": 1}), (0, 0)),
        (event(choices=[], timings={"prompt_n": -7, "predicted_n": 1e999}), (0, 0)),
        (b'data: {"timings"\n\ndata: [DONE]\n\n', (0, 0)),
    ],
)
def test_tokens_count_where_a_choice_is_accounted_for(events: bytes, tokens: tuple[int, int]) -> None:
    accounts = read_accounts(events)
    assert (sum(each.prompt for each in accounts), sum(each.generated for each in accounts)) == tokens


@pytest.mark.parametrize("stream", [True, False])
def test_an_exchange_tells_its_tokens_stream_or_not(*, stream: bool) -> None:
    exchange = Chat(json.dumps({"messages": [], "stream": stream}).encode())
    end = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], timings=TIMINGS)
    for data in (end[:9], end[9:], b"data: [DONE]\n\n"):
        exchange.relay(data)
    assert exchange.tokens == (7, 3)
    assert exchange.account == Account(7, 3)


def test_the_account_says_what_was_still_known_and_how_long_the_rest_took() -> None:
    timings = TIMINGS | {"cache_n": 90, "prompt_ms": 12.5}
    assert read_accounts(event(choices=[], timings=timings)) == [Account(7, 3, 90, 12.5)]
