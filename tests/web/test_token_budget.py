"""What requests are charged of a shared KV cache, and which prompts are refused before they take a place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, Reply, call, chat, gateway
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Raw

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission_web.app import App

COUNTS = "/v1/chat/completions/input_tokens"


def words(count: int, **members: Any) -> dict[str, Any]:
    """A chat whose prompt is that many words, each of which is a token to the fake server."""
    return {"messages": [{"role": "user", "content": "word " * count}], **members}


def kv_held(app: App) -> int:
    return app.gateway.backend.pool.statistics().kv_held


def sent(server: FakeLlamaServer, path: str = CHAT) -> list[dict[str, Any]]:
    """The bodies that came to an address."""
    return [json.loads(each.body) for each in server.requests if each.path == path]


@pytest.mark.parametrize("kv_cache", [None, "isolated"])
async def test_without_a_shared_cache_nothing_is_charged_or_limited(
    autojump_clock: MockClock, kv_cache: str | None
) -> None:
    server = FakeLlamaServer(n_ctx=4096)
    async with gateway(server, kv_cache=kv_cache) as app:
        await call(app, CHAT, words(100))
        assert app.gateway.backend.pool.statistics().kv_tokens is None
    [body] = sent(server)
    assert "max_tokens" not in body
    assert not sent(server, COUNTS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kv_cache", [None, "isolated", "unified"])
async def test_a_prompt_that_no_slot_can_hold_is_refused_as_the_server_would(
    autojump_clock: MockClock, kv_cache: str | None, *, stream: bool
) -> None:
    server = FakeLlamaServer(total_slots=1, n_ctx=1000)
    async with gateway(server, kv_cache=kv_cache) as app:
        events: list[object] = []
        app.gateway.backend.pool.add_instrument(events.append)
        refused = await call(app, CHAT, words(1200, stream=stream))
        assert not events  # it has not even taken a place
        assert (await call(app, CHAT, words(100, max_tokens=5))).status == 200
    error = refused.error
    assert refused.status == 400
    assert (error["code"], error["type"]) == (400, "exceed_context_size_error")
    assert (error["n_prompt_tokens"] >= 1200, error["n_ctx"]) == (True, 1000)
    assert len(sent(server)) == 1


async def test_the_charge_is_the_prompt_and_what_may_be_generated(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(n_ctx=8000, kv_unified=True, words=1, interval=10.0)
    async with gateway(server, kv_cache="unified") as app, trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, words(900, max_tokens=300))
        await trio.sleep(1)
        [body] = sent(server, COUNTS)
        counted = (await call(app, COUNTS, body)).json["input_tokens"]
        assert counted >= 900
        assert app.gateway.backend.pool.statistics().kv_tokens == 8000  # as the server says
        assert kv_held(app) == counted + 300
    assert sent(server)[0]["max_tokens"] == 300


async def test_who_states_no_limit_is_sent_the_limit_that_was_charged(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=2, n_ctx=8000, kv_unified=True, words=1, interval=10.0)
    async with gateway(server, kv_cache="unified") as app, trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, words(900, max_completion_tokens=-1))
        await trio.sleep(1)
        [body] = sent(server)
        assert kv_held(app) == 4000  # a slot's share of the context
        assert "max_completion_tokens" not in body
        assert 3000 < body["max_tokens"] < 3100


async def test_the_default_limit_can_be_configured(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(n_ctx=8000, kv_unified=True)
    async with gateway(server, kv_cache="unified", default_output_tokens=77) as app:
        await call(app, CHAT, words(900))
    assert sent(server)[0]["max_tokens"] == 77


async def test_short_requests_are_not_counted_by_the_server(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=4, n_ctx=8000, kv_unified=True, words=1, interval=10.0)
    async with gateway(server, kv_cache="unified") as app, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(call, app, CHAT, chat())
        await trio.sleep(1)
        assert server.in_flight == 4  # all of them fit beside each other
        assert kv_held(app) == 8000
    assert not sent(server, COUNTS)


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/completions", {"prompt": "word " * 900}, "max_tokens"),
        ("/completion", {"prompt": "word " * 900}, "n_predict"),
        ("/v1/responses", {"input": "word " * 900}, "max_output_tokens"),
        ("/v1/messages", {"messages": words(900)["messages"]}, "max_tokens"),
    ],
)
async def test_every_dialect_is_counted_and_limited(
    autojump_clock: MockClock, path: str, body: dict[str, Any], limit: str
) -> None:
    server = FakeLlamaServer(total_slots=2, n_ctx=8000, kv_unified=True, words=1, interval=10.0)
    async with gateway(server, kv_cache="unified") as app, trio.open_nursery() as nursery:
        nursery.start_soon(call, app, path, body)
        await trio.sleep(1)
        assert 3990 <= kv_held(app) <= 4000
        [upstream] = sent(server, path)
        assert 3000 < upstream[limit] < 3110


async def test_who_does_not_fit_beside_the_others_waits(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=4, n_ctx=4000, kv_unified=True, words=1, interval=10.0)
    async with gateway(server, kv_cache="unified") as app:
        replies: list[Reply] = []

        async def ask(max_tokens: int) -> None:
            replies.append(await call(app, CHAT, words(800, max_tokens=max_tokens)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, 1000)
            await wait_all_tasks_blocked()
            assert (server.in_flight, app.gateway.backend.pool.statistics().waiting) == (2, 1)
            nursery.start_soon(ask, 9000)  # more than there is: it runs alone
        assert [each.status for each in replies] == [200] * 4


async def test_what_the_server_cannot_count_is_estimated_and_marked(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def reply(request: Any) -> Raw | None:
        return Raw.answer(404, {"error": "no"}) if request.path == COUNTS else None

    server = FakeLlamaServer(n_ctx=4000, kv_unified=True, reply=reply)
    async with gateway(server, kv_cache="unified") as app:
        assert (await call(app, CHAT, words(900, max_tokens=10))).status == 200
    [facts] = [r.facts for r in caplog.records if hasattr(r, "facts") and "kv_tokens" in r.facts]
    assert facts["kv_estimated"] is True
    assert 1500 < facts["kv_tokens"] < 2000  # 4,500 bytes of prompt


async def test_the_operator_can_do_without_the_budget(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(n_ctx=4000, kv_unified=True)
    async with gateway(server, kv_cache="unified", admission=AdmissionConfig(kv_budget=False)) as app:
        await call(app, CHAT, words(900))
        assert app.gateway.backend.pool.statistics().kv_tokens is None
    assert "max_tokens" not in sent(server)[0]
