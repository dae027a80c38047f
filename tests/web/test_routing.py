"""Several backends: which of them gets a request, and what is told of all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, Reply, call, chat, gateway, gateway_to
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import End, FakeLlamaServer, Raw

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission_web.app import App


def two(a: dict[str, Any], b: dict[str, Any], **server: Any) -> tuple[Any, Any]:
    """Two servers, called a and b."""
    return (
        (FakeLlamaServer(**server), {"name": "a", **a}),
        (FakeLlamaServer(**server), {"name": "b", **b}),
    )


@pytest.mark.parametrize(
    ("model", "path"),
    [("m1", "a"), ("m2", "b"), ("alias", "b"), (None, "a"), ("default", "a"), ("", "a"), ("m3", None)],
)
async def test_a_model_leads_to_the_backend_that_serves_it(
    autojump_clock: MockClock, model: str | None, path: str | None
) -> None:
    a, b = two({"models": ("m1",)}, {"models": ("m2",), "aliases": ("alias",)})
    async with gateway_to(a, b) as app:
        reply = await call(app, CHAT, chat(model=model))
        if path is None:
            assert (reply.status, reply.error["code"], reply.error["param"]) == (
                404,
                "model_not_found",
                "model",
            )
        light = await call(app, "/tokenize", {"content": "x", "model": model})
        assert light.status == reply.status
    assert {"a": a[0].total, "b": b[0].total} == {"a": int(path == "a"), "b": int(path == "b")}


async def test_with_one_model_every_name_means_it(autojump_clock: MockClock) -> None:
    a, b = two({"models": ("m",)}, {"models": ("m",)}, total_slots=1, words=1, interval=5.0)
    async with gateway_to(a, b) as app, trio.open_nursery() as nursery:
        for name in ("gpt-4o", "m"):
            nursery.start_soon(call, app, CHAT, chat(model=name))
            await wait_all_tasks_blocked()
    assert (a[0].total, b[0].total) == (1, 1)


async def test_a_backend_without_models_takes_the_names_that_no_other_has(autojump_clock: MockClock) -> None:
    a, b = two({"models": ("m1", "m2")}, {})
    async with gateway_to(a, b) as app:
        for name in ("m1", "m2", "m3", "m4"):
            assert (await call(app, CHAT, chat(model=name))).status == 200
    assert (a[0].total, b[0].total) == (2, 2)


async def test_a_request_goes_where_the_wait_is_the_shortest(autojump_clock: MockClock) -> None:
    a, b = two({"models": ("m",)}, {"models": ("m",)}, total_slots=1, words=1)
    a[0].interval, b[0].interval = 2.0, 10.0
    async with gateway_to(a, b) as app:
        for _ in range(2):  # both are measured
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(call, app, CHAT, chat())
                    await wait_all_tasks_blocked()
        assert (a[0].total, b[0].total) == (2, 2)
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(call, app, CHAT, chat())
                await wait_all_tasks_blocked()
    assert (a[0].total, b[0].total) == (7, 3)  # four places of 2 s are a shorter wait than one of 10 s


async def test_a_backend_that_hangs_and_a_full_line_are_its_own_affair(autojump_clock: MockClock) -> None:
    a, b = two({"models": ("m1",)}, {"models": ("m2",)}, total_slots=1, words=1, interval=1.0)
    a[0].interval = 1e6
    admission = AdmissionConfig(max_waiting=2)
    async with gateway_to(a, b, admission=admission) as app, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(partial(call, app, CHAT, chat(model="m1"), leave_after=60.0))
            await wait_all_tasks_blocked()
        assert (await call(app, CHAT, chat(model="m1"))).status == 429
        for _ in range(3):
            reply = await call(app, CHAT, chat(model="m2"))
            assert (reply.status, reply.seconds) == (200, 1.0)
        assert await counts(app) == {"a": (1, 2), "b": (0, 0)}


async def counts(app: App) -> dict[str, tuple[int, int]]:
    shown = (await call(app, "/admission", method="GET")).json["backends"]
    return {name: (each["held"], len(each["line"])) for name, each in shown.items()}


async def test_the_models_of_all_are_listed_once(autojump_clock: MockClock) -> None:
    a, b = two({"models": ("m1", "m2")}, {"models": ("m2", "m3"), "aliases": ("x",)})
    c = (FakeLlamaServer(), {"name": "c"})
    away = (FakeLlamaServer(), {"name": "d"})
    async with gateway_to(a, b, c, away) as app:
        away[0].crash()
        for path in ("/v1/models", "/models"):
            listed = (await call(app, path, method="GET")).json
            assert listed["object"] == "list"
            assert [each["id"] for each in listed["data"]] == ["m1", "m2", "m3", "fake-model"]


async def test_readiness_says_which_backends_are_ready(autojump_clock: MockClock) -> None:
    a, b = two({}, {})
    async with gateway_to(a, b) as app:
        b[0].loading = True
        ready = await call(app, "/ready", method="GET")
        assert (ready.status, ready.json["backends"]) == (200, {"a": "ready", "b": "loading"})
        a[0].loading = True
        assert (await call(app, "/ready", method="GET")).error["code"] == "backend_unavailable"


async def test_a_backend_shows_its_own_pages_by_name(autojump_clock: MockClock) -> None:
    a, b = two({}, {})
    b[0].total_slots = 7
    async with gateway_to(a, b) as app:
        first = await call(app, "/props", method="GET")
        other = await call(app, "/props?backend=b", method="GET")
        assert (first.json["total_slots"], other.json["total_slots"]) == (a[0].total_slots, 7)
        assert (await call(app, "/slots?backend=b", method="GET")).status == 200
        assert (await call(app, "/slots?backend=c", method="GET")).status == 404
        assert (await call(app, "/props", method="POST")).status == 405


async def test_each_backend_has_the_slots_that_it_has(autojump_clock: MockClock) -> None:
    a, b = (FakeLlamaServer(total_slots=2), {"name": "a"}), (FakeLlamaServer(total_slots=5), {"name": "b"})
    async with gateway_to(a, b) as app:
        assert [each.pool.statistics().slots for each in app.gateway.backends.values()] == [2, 5]


async def test_a_pool_counts_the_tokens_that_are_configured(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer(), kv_tokens=4096) as app:
        assert app.gateway.backend.pool.statistics().kv_tokens == 4096


async def test_requests_of_one_tick_do_not_all_choose_the_same_backend(autojump_clock: MockClock) -> None:
    a, b = two({"models": ("m",)}, {"models": ("m",)}, total_slots=2, words=1, interval=5.0)
    async with gateway_to(a, b) as app:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(call, app, CHAT, chat())
        assert trio.current_time() == 5  # nobody has waited
    assert (a[0].total, b[0].total) == (2, 2)


async def test_a_backend_that_is_away_is_chosen_last(autojump_clock: MockClock) -> None:
    a, b = two({"models": ("m",)}, {"models": ("m",)}, total_slots=1, words=1, interval=5.0)
    async with gateway_to(a, b) as app:
        a[0].crash()
        await trio.sleep(11)  # which the next look tells
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call, app, CHAT, chat())
                await wait_all_tasks_blocked()
    assert (a[0].total, b[0].total) == (0, 3)


async def test_of_two_idle_backends_the_one_that_knows_the_conversation_goes_on(
    autojump_clock: MockClock,
) -> None:
    isolated = {"models": ("m",), "kv_cache": "isolated"}
    a, b = two(isolated, isolated, total_slots=2, words=1, interval=5.0)
    async with gateway_to(a, b) as app:
        messages: list[dict[str, str]] = []

        async def turn() -> None:
            messages.append({"role": "user", "content": f"turn {len(messages)}"})
            await call(app, CHAT, {"messages": messages})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, app, CHAT, chat())
            await wait_all_tasks_blocked()
            nursery.start_soon(turn)
        assert (a[0].total, b[0].total) == (1, 1)
        for _ in range(3):
            await turn()
    assert (a[0].total, b[0].total) == (1, 4)


@pytest.mark.parametrize("stream", [False, True])
async def test_who_waits_for_a_backend_that_goes_moves_to_one_that_serves(
    autojump_clock: MockClock, *, stream: bool
) -> None:
    a, b = two({"models": ("m",)}, {"models": ("m",)}, total_slots=1, prefill=10.0, words=1, interval=1.0)
    a[0].script(Raw(End.SILENCE))
    replies: list[Reply] = []
    async with gateway_to(a, b) as app:

        async def ask() -> None:
            replies.append(await call(app, CHAT, chat(stream=stream)))

        async with trio.open_nursery() as nursery:
            for _ in range(6):  # one runs and two wait on each
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
            await trio.sleep(5)
            a[0].crash()
            await trio.sleep(1)
            shown = (await call(app, "/admission", method="GET")).json["backends"]
            assert (shown["a"]["state"], shown["a"]["held"], shown["a"]["line"]) == ("gone", 0, [])
            assert (shown["b"]["held"], len(shown["b"]["line"])) == (1, 5)
    assert [reply.status for reply in replies] == [200] * 6
    assert not [reply for reply in replies if b"error" in reply.body]
    assert (a[0].total, b[0].total) == (1, 6)


@pytest.mark.parametrize("seed", range(4))
async def test_who_moves_keeps_the_order(autojump_clock: MockClock, seed: int) -> None:
    a, b = two({"models": ("m",)}, {"models": ("m",)}, total_slots=1, prefill=3.0, words=1, interval=1.0)
    a[0].script(Raw(End.SILENCE))
    ended: list[int] = []
    async with gateway_to(a, b) as app:

        async def ask(number: int) -> None:
            await call(app, CHAT, chat(max_tokens=20, seed=seed))
            ended.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(12):  # the even ones go to a
                nursery.start_soon(ask, number)
                await wait_all_tasks_blocked()
            await trio.sleep(1)
            a[0].crash()
    assert ended == [1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10]


async def test_nobody_moves_into_a_line_that_is_full(autojump_clock: MockClock) -> None:
    a, b = two({"models": ("m",)}, {"models": ("m",)}, total_slots=1, prefill=10.0, words=1)
    a[0].script(Raw(End.SILENCE))
    async with gateway_to(a, b, admission=AdmissionConfig(max_waiting=2)) as app:
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(call, app, CHAT, chat())
                await wait_all_tasks_blocked()
            a[0].crash()
            await trio.sleep(1)
            assert await counts(app) == {"a": (1, 2), "b": (1, 2)}
            a[0].restart()
        assert trio.current_time() < 60


async def test_who_waits_no_longer_than_so_long_does_not_begin_anew_elsewhere(
    autojump_clock: MockClock,
) -> None:
    a, b = two({"models": ("m",)}, {"models": ("m",)}, total_slots=1, words=1, interval=100.0)
    a[0].script(Raw(End.SILENCE))
    b[0].script(Raw(End.SILENCE))
    async with gateway_to(a, b, admission=AdmissionConfig(max_wait=20.0)) as app:
        replies: list[Reply] = []

        async def ask() -> None:
            replies.append(await call(app, CHAT, chat()))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
            await trio.sleep(15)
            a[0].crash()
            b[0].crash()
            await trio.sleep(1)
            b[0].restart()
        refused = [reply for reply in replies if reply.status == 503]
        assert {(reply.error["code"], round(reply.seconds)) for reply in refused} == {("queue_timeout", 20)}


async def test_a_backend_that_refuses_the_gateways_key_is_asked_last(autojump_clock: MockClock) -> None:
    locked = (FakeLlamaServer(api_key="secret"), {"name": "a"})
    open_ = (FakeLlamaServer(words=1), {"name": "b"})
    async with gateway_to(locked, open_) as app:
        replies = [await call(app, CHAT, chat()) for _ in range(3)]
    assert [reply.status for reply in replies] == [200] * 3
