"""Slots and the line, on every route: A1 A3 A7 A9 A11 A12 A14 A16 B1 B3 B5 G1 K1 K5, in virtual time."""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, Reply, call, chat, connect, gateway
from tests.support.generation import ASKS, MESSAGES, ROUTES, STREAM, Ask
from tests.support.raw_client import RawClient
from tests.support.serving import descriptors, tasks, until
from tests.support.stage import stage
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import End, FakeLlamaServer, Raw, Script

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.support.stage import Stage
    from trio_admission.testing.fake_llama_server import Request
    from trio_admission_web.app import App

COUNTS = ("/input_tokens", "/count_tokens", "/tokenize")
NO_WAIT = AdmissionConfig(max_wait=0)


def server(slots: int = 1, **options: Any) -> FakeLlamaServer:
    return FakeLlamaServer(**{"total_slots": slots, "infill": True, "interval": 0.1, **options})


def held(app: App) -> int:
    return app.gateway.backend.pool.statistics().held


def is_at(both: Stage, *counts: int) -> bool:
    return both.counts == counts


async def reset(client: RawClient) -> None:
    await trio.lowlevel.checkpoint()
    client.reset()


def metric(text: str, name: str) -> list[float]:
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)]


@ROUTES
@STREAM
async def test_a1_clients_that_leave_in_the_middle_never_use_up_the_slots(
    autojump_clock: MockClock, ask: Ask, *, stream: bool
) -> None:
    llama = server(words=100)
    left: list[Reply] = []
    async with gateway(llama, admission=NO_WAIT) as app, trio.open_nursery() as nursery:

        async def leave() -> None:
            left.append(await call(app, ask.path, ask.body | {"stream": stream}, leave_after=0.35))

        for _ in range(50):
            nursery.start_soon(leave)
            await trio.sleep(0.35 + 0.3)
        llama.script(Script(tokens=1))
        assert (await call(app, ask.path, ask.body)).status == 200
    assert [each.status for each in left] == [200 if stream else 0] * 50
    assert (llama.total, llama.max_in_flight) == (51, 1)


@ROUTES
async def test_a1_a_slot_is_free_soon_after_its_client_has_left_by_fin_or_rst(ask: Ask) -> None:
    async with stage(server(words=10_000, interval=0.02), admission=NO_WAIT) as both:
        for leave in (RawClient.close, reset, RawClient.close, reset):
            async with both.server.client() as client:
                await client.request("POST", ask.path, ask.body | {"stream": True})
                answer = await client.read_head()
                assert answer.status == 200
                await client.read_events(answer, 3)
                await leave(client)
            await until(lambda: both.counts == (0, 0), seconds=1.0)


async def test_a1_many_who_leave_at_once_are_no_storm_of_looks(autojump_clock: MockClock) -> None:
    llama = server(16, words=100, interval=1.0)
    async with gateway(llama, admission=NO_WAIT) as app, trio.open_nursery() as nursery:
        start = trio.current_time()
        for number in range(16):
            nursery.start_soon(partial(call, app, CHAT, chat(stream=True), leave_after=1.5 + number / 100))
        await trio.sleep(2.5)
        assert held(app) == 0
    looks = [
        each.arrived - start for each in llama.requests if each.path == "/slots" and each.arrived > start
    ]
    assert len(looks) <= 8
    assert min(later - sooner for sooner, later in pairwise(looks)) >= 0.099


async def test_a1_a_slot_that_stays_busy_is_looked_at_rarely(
    autojump_clock: MockClock,
) -> None:
    llama = server(prefill=25.0)
    async with gateway(llama, admission=NO_WAIT) as app, trio.open_nursery() as nursery:
        start = trio.current_time()
        nursery.start_soon(partial(call, app, CHAT, chat(stream=True), leave_after=1.0))
        await trio.sleep(20)
        looks = [each.arrived - start for each in llama.requests if each.path == "/slots"]
        assert 5 <= sum(each > 5 for each in looks) <= 10  # two of them see to whether it is wedged
        assert held(app) == 1


@STREAM
async def test_a3_mistakes_never_use_up_the_slots(autojump_clock: MockClock, *, stream: bool) -> None:
    async def reply(request: Request) -> Raw | None:
        await trio.lowlevel.checkpoint()
        refused = {"code": 400, "message": "Unexpected message role.", "type": "invalid_request_error"}
        return Raw.answer(400, {"error": refused}) if b"user2" in request.body else None

    llama = server(words=1, reply=reply)
    user2 = [{"role": "user2", "content": "Hello"}]
    number = [{"role": "user", "content": 3}]
    table: tuple[tuple[dict[str, Any], int, int], ...] = (  # what is sent, its status, how often it goes up
        ({"messages": MESSAGES, "model": "unknown"}, 404, 0),
        ({}, 400, 0),
        ({"messages": None}, 400, 0),
        ({"messages": user2}, 400, 1),
        ({"messages": number}, 400, 1),
        ({"messages": MESSAGES, "stream": "yes"}, 400, 0),
        ({"messages": MESSAGES, "n": 0}, 400, 0),
        ({"messages": MESSAGES, "max_tokens": "many"}, 400, 0),
        ({"messages": MESSAGES, "max_tokens": -2}, 400, 1),
        ({"messages": MESSAGES, "max_tokens": -1}, 200, 1),  # as many as there may be, to llama-server
        ({"messages": MESSAGES}, 200, 1),
    )
    async with gateway(llama, admission=NO_WAIT, models=("fake-model", "other")) as app:
        for _ in range(20):
            for body, status, goes_up in table:
                before = llama.total
                got = await call(app, CHAT, {"model": "fake-model", "stream": stream, **body})
                assert (got.status, held(app), llama.total - before) == (status, 0, goes_up), body
    assert llama.max_in_flight == 1


async def test_a7_a_body_that_comes_slowly_holds_nothing(autojump_clock: MockClock) -> None:
    llama = server(words=1)
    async with gateway(llama, admission=NO_WAIT) as app, connect(app) as slow:
        raw = json.dumps(chat()).encode()
        await slow.send(raw[:5])
        await trio.sleep(2)
        assert held(app) == 0
        assert (await call(app, CHAT, chat())).status == 200
        await slow.send(raw[5:])
        await slow.send_complete()
        with pytest.raises(trio.EndOfChannel):
            while True:
                await slow.receive()
        assert slow.status_code == 200


@pytest.mark.parametrize("ask", [ask for ask in ASKS if ask.path != "/infill"], ids=str)  # that is guessed
@STREAM
async def test_a7_nothing_is_held_while_tokens_are_counted(
    autojump_clock: MockClock, ask: Ask, *, stream: bool
) -> None:
    async def reply(request: Request) -> None:
        await trio.sleep(2 if request.path.endswith(COUNTS) else 0)

    llama = server(words=10, n_ctx=2000, kv_unified=True, reply=reply)
    body = ask.body | {"stream": stream, "padding": "x" * 2000}  # so long that it has to be counted
    async with gateway(llama, kv_cache="unified", default_output_tokens=100) as app:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(call, app, ask.path, body)
            await trio.sleep(1.9)
            said = (await call(app, "/metrics", method="GET")).body.decode()
            assert [metric(said, f"trio_admission_{name}{{") for name in ("held", "waiting")] == [[0], [0]]
            assert len([each for each in llama.requests if each.path.endswith(COUNTS)]) == 2
            assert llama.total == 0
    first, second = [each.arrived - start for each in llama.generations]
    assert (first, second) == pytest.approx((2.0, 3.0), abs=0.05)  # back to back


async def test_a9_a14_all_routes_share_the_slots_and_none_is_left_out(autojump_clock: MockClock) -> None:
    llama = server(2, words=3)
    replies: list[Reply] = []
    async with gateway(llama) as app:

        async def one(ask: Ask, *, stream: bool) -> None:
            replies.append(await call(app, ask.path, ask.body | {"stream": stream}))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                for ask in ASKS:
                    for stream in (True, False):
                        nursery.start_soon(partial(one, ask, stream=stream))
    assert [each.status for each in replies] == [200] * 60
    assert llama.max_in_flight == 2
    assert {each.path for each in llama.generations} == {ask.path for ask in ASKS}


async def test_a9_a_hundred_at_once_never_overshoot(autojump_clock: MockClock) -> None:
    llama = server(3, words=2)
    async with gateway(llama) as app:
        for _ in range(3):
            barrier = trio.Event()
            replies: list[Reply] = []

            async def one(ask: Ask, barrier: trio.Event, replies: list[Reply], *, stream: bool) -> None:
                await barrier.wait()
                replies.append(await call(app, ask.path, ask.body | {"stream": stream}))

            async with trio.open_nursery() as nursery:
                for number in range(100):
                    ask, stream = ASKS[number % len(ASKS)], number % 5 < 2
                    nursery.start_soon(partial(one, ask, barrier, replies, stream=stream))
                await wait_all_tasks_blocked()
                barrier.set()
            # The line is 64 long by default: who finds it full is refused, nobody is let in beyond the slots.
            assert sorted(each.status for each in replies) == [200] * 67 + [429] * 33
            assert llama.max_in_flight == 3


async def test_a11_k5_what_is_too_much_waits_and_the_metrics_show_it(autojump_clock: MockClock) -> None:
    llama = server(4, words=10)
    seen: list[list[float]] = []
    replies: list[Reply] = []
    async with gateway(llama) as app:

        async def one() -> None:
            replies.append(await call(app, CHAT, chat(stream=True)))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(one)
            await wait_all_tasks_blocked()
            said = (await call(app, "/metrics", method="GET")).body.decode()
            seen = [metric(said, f"trio_admission_{name}{{") for name in ("held", "waiting")]
        after = app.gateway.backend.pool.statistics()
    assert seen == [[4], [6]]
    assert (after.held, after.waiting, after.parked) == (0, 0, 0)
    assert [each.status for each in replies] == [200] * 10
    assert sorted(round(each.seconds) for each in replies) == [1] * 4 + [2] * 4 + [3] * 2


async def test_k5_waits_first_bytes_and_outcomes_are_counted_apart(autojump_clock: MockClock) -> None:
    llama = server(words=10)  # a second each
    async with gateway(llama, admission=AdmissionConfig(keepalive_interval=0.3)) as app:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(call, app, CHAT, chat(stream=True))
                await wait_all_tasks_blocked()
            nursery.start_soon(partial(call, app, CHAT, chat(stream=True), leave_after=0.5))
            await wait_all_tasks_blocked()
            during = (await call(app, "/metrics", method="GET")).body.decode()
        after = (await call(app, "/metrics", method="GET")).body.decode()
    assert metric(during, "trio_admission_waiting{") == [4]
    assert metric(after, "trio_admission_waiting{") == [0]
    waits = "trio_admission_wait_seconds"
    assert metric(after, f"{waits}_count") == [4]
    assert metric(after, f"{waits}_sum") == pytest.approx([0 + 1 + 2 + 3], abs=0.1)
    first = 'trio_admission_first_byte_seconds_%s{route="/v1/chat/completions"}'
    assert metric(after, first % "count") == [4]
    assert metric(after, first % "sum") == pytest.approx([0.1 + 1.1 + 2.1 + 3.1], abs=0.1)
    assert metric(after, "trio_admission_keepalives_total{")[0] >= 15
    ended = 'trio_admission_requests_total{outcome="%s",route="/v1/chat/completions"}'
    assert metric(after, ended % "answered") == [4]
    assert metric(after, ended % "client_gone") == [1]


@pytest.mark.parametrize("stream", [True, False])
async def test_k5_a_comment_of_the_server_is_no_first_byte(
    autojump_clock: MockClock, *, stream: bool
) -> None:
    llama = server(words=1, prefill=100.0, ping_interval=30.0)
    async with gateway(llama) as app:
        reply = await call(app, CHAT, chat(stream=stream))
        said = (await call(app, "/metrics", method="GET")).body.decode()
    assert reply.status == 200
    assert (b":\n\n" in reply.body) == stream  # they are passed on all the same
    first = 'trio_admission_first_byte_seconds_sum{route="/v1/chat/completions"}'
    assert metric(said, first) == [pytest.approx(100.1)]


async def test_a12_light_requests_wait_for_nobody(autojump_clock: MockClock) -> None:
    llama = server(words=50)
    async with gateway(llama, admission=NO_WAIT) as app, trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, chat())
        await wait_all_tasks_blocked()
        light: tuple[tuple[str, str, bytes | dict[str, Any]], ...] = (
            ("GET", "/v1/models", b""),
            ("GET", "/v1/models/fake-model", b""),
            ("GET", "/health", b""),
            ("GET", "/ready", b""),
            ("GET", "/metrics", b""),
            ("GET", "/admission", b""),
            ("GET", "/props", b""),
            ("POST", "/v1/messages/count_tokens", {"messages": MESSAGES}),
            ("POST", "/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
            ("POST", "/v1/responses/input_tokens", {"input": "a"}),
            ("POST", "/tokenize", {"content": "a b"}),
            ("POST", "/detokenize", {"tokens": [0]}),
            ("POST", "/apply-template", {"messages": MESSAGES}),
            *(("OPTIONS", ask.path, b"") for ask in ASKS),
            ("OPTIONS", "/v1/embeddings", b""),
            ("HEAD", "/health", b""),
            ("HEAD", "/v1/models", b""),
        )
        for method, path, body in light:
            reply = await call(app, path, body, method=method)
            assert (reply.status, reply.seconds, held(app)) == (200, 0, 1), path
        for method in ("HEAD", "GET", "OPTIONS"):
            reply = await call(app, "/", method=method)  # there is no page
            assert (reply.status, reply.seconds, held(app)) == (404, 0, 1), method


@ROUTES
@STREAM
async def test_a16_the_wait_is_counted_from_the_arrival_and_the_answer_from_the_grant(
    autojump_clock: MockClock, ask: Ask, *, stream: bool
) -> None:
    llama = server()
    llama.script(Script(tokens=9), Script(tokens=50))
    async with gateway(llama, admission=AdmissionConfig(max_wait=1.0)) as app, trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, chat())
        await wait_all_tasks_blocked()
        replies: dict[float, Reply] = {}

        async def at(moment: float) -> None:
            await trio.sleep(moment)
            replies[moment] = await call(app, ask.path, ask.body | {"stream": stream})

        nursery.start_soon(at, 0.0)
        nursery.start_soon(at, 0.5)
        await trio.sleep(10)
    assert replies[0.0].status == 200
    assert replies[0.0].seconds == pytest.approx(5.9)
    late = replies[0.5]
    assert late.status == (200 if stream else 503)
    assert late.seconds == 1.0
    assert b"queue_timeout" in late.body


@STREAM
async def test_b1_who_leaves_the_line_never_reaches_the_backend(
    autojump_clock: MockClock, *, stream: bool
) -> None:
    llama = server(words=30)
    async with gateway(llama) as app, trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, chat(seed=0))
        await wait_all_tasks_blocked()
        for seed in range(1, 6):
            leave = 1.0 + seed / 10 if seed in {1, 2, 4} else None
            nursery.start_soon(partial(call, app, CHAT, chat(seed=seed, stream=stream), leave_after=leave))
            await wait_all_tasks_blocked()
        await trio.sleep(1.5)
        assert app.gateway.backend.pool.statistics().waiting == 2
    assert [json.loads(each.body)["seed"] for each in llama.generations] == [0, 3, 5]


@ROUTES
@STREAM
@pytest.mark.parametrize("after", [0.0, 0.05, 0.15, 0.25])
async def test_b5_the_backend_is_left_when_the_client_leaves(
    autojump_clock: MockClock, ask: Ask, after: float, *, stream: bool
) -> None:
    llama = server(words=100)
    async with gateway(llama) as app:
        await call(app, ask.path, ask.body | {"stream": stream}, leave_after=after)
        await wait_all_tasks_blocked()
        assert held(app) == 0
        said = (await call(app, "/metrics", method="GET")).body.decode()
    for each in llama.generations:
        assert each.connection.peer_closed is not None
        assert each.connection.peer_closed - each.arrived == pytest.approx(after, abs=0.001)
    assert metric(said, "trio_admission_held{") == [0]


PHASES = ("before the head", "prefill", "middle", "in an event", "end")
KINDS = [(ask, stream) for ask in ASKS for stream in (True, False)]
EMBEDDINGS = Ask("/v1/embeddings", {"input": ["a"]})


def scripted(phase: str, ask: Ask) -> Script | Raw:
    """What the server is to do for a client that leaves in a phase."""
    if phase == "in an event" and ask is EMBEDDINGS:
        return Raw.answer(200, b"{", content_length=10).then(End.SILENCE)
    if phase == "in an event":
        return Raw.stream(b": a comment\n\n" + b'data: {"half', End.SILENCE)
    if phase == "end":
        return Script(tokens=2)
    if ask is EMBEDDINGS:
        return Raw(End.SILENCE)
    return Script(prefill=0.15 if phase == "prefill" else None)


async def reach(phase: str, client: RawClient, ask: Ask, body: dict[str, Any]) -> None:
    """Make a request and see as much of its answer as comes in a phase."""
    await client.request("POST", ask.path, body)
    if phase == "end" and not body["stream"]:
        assert (await client.read_answer()).complete
    elif body["stream"] and phase != "before the head":
        answer = await client.read_head()
        while phase == "end" and not answer.body.endswith(ask.end):
            assert await client.read_more(answer)
        if phase in {"middle", "in an event"}:
            await client.read_events(answer, 3 if phase == "middle" else 1)


@pytest.mark.parametrize(
    ("ask", "stream"), [*KINDS, (EMBEDDINGS, False)], ids=lambda each: str(each).replace("/", " ").strip()
)
async def test_a1_b3_b5_leaving_by_fin_or_rst_in_any_phase_ends_everything(
    ask: Ask, caplog: pytest.LogCaptureFixture, *, stream: bool
) -> None:
    ways = [(phase, leave) for phase in PHASES for leave in (RawClient.close, reset)]

    async def reply(request: Request) -> Script | Raw | None:
        await trio.lowlevel.checkpoint()
        if request.path != ask.path:
            return None
        phase, _ = ways[json.loads(request.body)["seed"]]
        if phase == "before the head":
            await trio.sleep_forever()
        return scripted(phase, ask)

    llama = server(
        len(ways), words=10_000, interval=0.002, embeddings=True, slots_endpoint=False, reply=reply
    )
    async with stage(llama, admission=NO_WAIT) as both, AsyncExitStack() as stack:
        before = descriptors(), tasks()
        clients = [await stack.enter_async_context(both.server.client()) for _ in ways]
        async with trio.open_nursery() as nursery:
            for seed, (client, (phase, _)) in enumerate(zip(clients, ways, strict=True)):
                nursery.start_soon(reach, phase, client, ask, ask.body | {"stream": stream, "seed": seed})
        busy = 0 if ask is EMBEDDINGS else 4  # in prefill, and in the middle
        await until(lambda: llama.total == len(ways) and len(llama.busy_slots) == busy)
        for client, (_, leave) in zip(clients, ways, strict=True):
            await leave(client)
        await until(lambda: both.counts == (0, 0) and not both.app.gateway.passages)
        await until(lambda: not llama.open_connections)
        await until(lambda: descriptors() <= before[0] and tasks() <= before[1])
    for each in llama.generations:
        phase, _ = ways[json.loads(each.body)["seed"]]
        assert phase == "end" or each.connection.peer_closed is not None
    assert llama.total == len(ways)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@STREAM
async def test_b1_who_leaves_the_line_by_fin_or_rst_never_reaches_the_backend(*, stream: bool) -> None:
    llama = server(interval=0.005, slots_endpoint=False)
    llama.script(Script(tokens=10_000), Script(tokens=2), Script(tokens=2))
    async with stage(llama) as both, both.server.client() as holder, AsyncExitStack() as stack:
        await holder.request("POST", CHAT, chat(seed=0, stream=True))
        await until(lambda: both.counts == (1, 0))
        clients = [await stack.enter_async_context(both.server.client()) for _ in range(5)]
        for number, client in enumerate(clients, 1):
            await client.request("POST", CHAT, chat(seed=number, stream=stream))
            await until(partial(is_at, both, 1, number))
        for gone, waiting, leave in ((1, 4, RawClient.close), (2, 3, reset), (4, 2, RawClient.close)):
            await leave(clients[gone - 1])
            await until(partial(is_at, both, 1, waiting))
        await holder.close()
        for stays in (3, 5):
            assert (await clients[stays - 1].read_answer()).complete
    assert [json.loads(each.body)["seed"] for each in llama.generations] == [0, 3, 5]


async def test_b3_embeddings_are_left_too(autojump_clock: MockClock) -> None:
    llama = server(embeddings=True, prefill=10.0)
    async with gateway(llama) as app:
        await call(app, "/v1/embeddings", {"input": ["a"]}, leave_after=0.5)
    (left,) = llama.generations
    assert left.connection.peer_closed == left.arrived + 0.5


async def test_g1_newcomers_do_not_pass_those_who_wait(autojump_clock: MockClock) -> None:
    llama = server(words=1)
    async with gateway(llama) as app, trio.open_nursery() as nursery:

        async def again() -> None:
            for number in range(20):
                await call(app, CHAT, chat(seed=1000 + number))

        nursery.start_soon(again)
        await wait_all_tasks_blocked()
        for seed in range(30):
            nursery.start_soon(call, app, CHAT, chat(seed=seed))
            await wait_all_tasks_blocked()
    order = [json.loads(each.body)["seed"] for each in llama.generations]
    assert [seed for seed in order if seed < 1000] == list(range(30))
    assert order[:3] == [1000, 0, 1]
    assert order.index(1001) == 31
