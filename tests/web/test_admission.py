"""What a client sees of the line, and what the backend sees of the clients, in exact virtual time."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, Reply, call, chat, connect, gateway
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import Cut, End, FakeLlamaServer, Raw, Script

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission_web.app import App

ALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"


def events(reply: Reply) -> list[bytes]:
    """The events of a reply without comments, each with its blank line."""
    whole = reply.body.split(b"\n\n")[:-1]
    return [event + b"\n\n" for event in whole if not event.startswith(b":")]


def text(reply: Reply) -> str:
    """What the model says in a stream."""
    chunks = [json.loads(event[6:]) for event in events(reply) if event != DONE]
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])


async def occupy(app: App, nursery: trio.Nursery, **members: Any) -> None:
    """Start a request that gets a slot."""
    nursery.start_soon(call, app, CHAT, chat(stream=True, **members))
    await wait_all_tasks_blocked()


async def counts(app: App) -> dict[str, Any]:
    found = (await call(app, "/admission", method="GET")).json["backends"]["default"]
    assert isinstance(found, dict)
    return found


# ---- waiting


async def test_a_waiting_stream_is_told_its_place_until_it_is_served(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=2, interval=6.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery)  # until 12 s
        reply = await call(app, CHAT, chat(stream=True))
    assert reply.status == 200
    assert [(at, part) for at, part in reply.parts if part.startswith(b":")] == [
        (0.1, b": queued position=1\n\n"),  # the grace
        (5.1, b": queued position=1\n\n"),
        (10.1, b": queued position=1\n\n"),
        (15.1, ALIVE),  # it has its slot, and the first word comes at 18 s
        (23.0, ALIVE),
    ]
    assert text(reply) == "r2w0 r2w1"
    assert reply.seconds == 24.0


async def test_a_place_in_line_moves_up_and_comes_with_an_estimate(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=8.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery)
        await occupy(app, nursery)
        reply = await call(app, CHAT, chat(stream=True))
    queued = [(at, part) for at, part in reply.parts if part.startswith(b": queued")]
    assert queued == [
        (0.1, b": queued position=2\n\n"),
        (5.1, b": queued position=2\n\n"),
        (10.1, b": queued position=1 estimated_wait=8.0\n\n"),
        (15.1, b": queued position=1 estimated_wait=8.0\n\n"),
    ]


async def test_requests_are_served_in_the_order_of_their_arrival(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        for number in range(6):
            await occupy(app, nursery, seed=number)
        assert (await counts(app))["waiting"] == 5
    assert [json.loads(each.body)["seed"] for each in server.generations] == list(range(6))


async def test_the_server_never_gets_more_requests_than_it_has_slots(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=3, words=1)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(call, app, CHAT, chat(stream=True))
            nursery.start_soon(call, app, CHAT, chat())
    assert (server.max_in_flight, server.total) == (3, 40)


async def test_a_short_wait_is_not_seen(autojump_clock: MockClock) -> None:
    refusal = Raw.answer(400, {"error": {"code": 400, "message": "no", "type": "invalid_request_error"}})
    server = FakeLlamaServer(total_slots=1)
    async with gateway(server) as app:
        server.script(Script(tokens=1, interval=0.09), refusal)
        async with trio.open_nursery() as nursery:
            await occupy(app, nursery)
            reply = await call(app, CHAT, chat(stream=True))
    assert (reply.status, reply.error["message"], reply.seconds) == (400, "no", 0.09)


async def test_keepalives_fill_prefill_and_gaps_but_never_an_event(autojump_clock: MockClock) -> None:
    half, other_half = b'data: {"choices":[{"index":0,', b'"delta":{"content":"x"}}]}\n\n'
    stream = Raw.stream(12.0, half, 12.0, other_half, 4.0, other_half[:0] + DONE, End.FINISH)
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(stream)
        reply = await call(app, CHAT, chat(stream=True))
    assert reply.parts == [
        (5.0, ALIVE),
        (10.0, ALIVE),
        (15.0, ALIVE),
        (20.0, ALIVE),
        (24.0, half + other_half),
        (28.0, DONE),
    ]


async def test_a_server_that_sends_no_head_gets_its_stream_opened_by_a_keepalive(
    autojump_clock: MockClock,
) -> None:
    late = Raw(7.0, *Raw.stream(DONE, End.FINISH).steps)
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(late)
        reply = await call(app, CHAT, chat(stream=True))
    assert (reply.status, reply.parts) == (200, [(5.0, ALIVE), (7.0, DONE)])


async def test_the_keepalive_interval_is_a_setting(autojump_clock: MockClock) -> None:
    admission = AdmissionConfig(keepalive_interval=0.2)
    server = FakeLlamaServer(prefill=1.1, words=0)
    async with gateway(server, admission=admission) as app:
        reply = await call(app, CHAT, chat(stream=True))
    times = [at for at, part in reply.parts if part == ALIVE]
    assert times == [0.2, 0.4, 0.6, 0.8, 1.0]


# ---- bytes


async def test_a_stream_passes_byte_for_byte_in_both_directions(autojump_clock: MockClock) -> None:
    body = b'{ "stream" :true,"messages":[ ],"\\u0061": 1.0e2, "top_k":null}\r\n'
    said = [
        b":\n\n",
        'data: {"choices":[{"index":0,"delta":{"content":"\u00e4\U0001f600"}}]}\r\n\r\n'.encode(),
        b"event: x\nid: 7\ndata: {}\ndata: 1\n\n",
        b"data: \xff\xfe\n\n",
        DONE,
    ]
    cut = b"".join(said)
    pieces = [cut[at : at + 7] for at in range(0, len(cut), 7)]
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(Raw.stream(*pieces, End.FINISH))
        reply = await call(app, CHAT, body)
        assert server.generations[0].body == body
    assert reply.body == cut


async def test_a_request_without_a_stream_is_asked_for_as_one_and_answered_in_one_piece(
    autojump_clock: MockClock,
) -> None:
    body = b'{"messages":[],  "stream":false ,"n_probs" : 0}'
    server = FakeLlamaServer(words=3, interval=1.0)
    async with gateway(server) as app:
        reply = await call(app, CHAT, body)
        sent = server.generations[0].body
    assert sent == (b'{"messages":[],  "stream":true ,"n_probs" : 0,"stream_options":{"include_usage":true}}')
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json["choices"][0]["message"]["content"] == "r1w0 r1w1 r1w2"
    assert reply.json["usage"]["completion_tokens"] == 3
    assert [at for at, _ in reply.parts] == [3.0]


async def test_the_head_of_a_stream_forbids_buffering(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        reply = await call(app, CHAT, chat(stream=True), headers={"Accept-Encoding": "gzip, br"})
        assert server.generations[0].header("Accept-Encoding") == "identity"
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache, no-transform"
    assert reply.headers["x-accel-buffering"] == "no"
    assert not {"content-length", "content-encoding"} & set(reply.headers)


async def test_the_query_and_harmless_headers_go_along(autojump_clock: MockClock) -> None:
    headers = {"Anthropic-Version": "2023-06-01", "X-Request-Id": "mine-1"}
    server = FakeLlamaServer()
    async with gateway(server) as app:
        reply = await call(app, f"{CHAT}?beta=true&x=%2F", chat(), headers=headers)
        request = server.generations[0]
    assert request.target == f"{CHAT}?beta=true&x=%2F"
    assert request.header("anthropic-version") == "2023-06-01"
    assert request.header("x-request-id") == reply.headers["x-request-id"] == "mine-1"


# ---- refusals


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_line_refuses_at_once_with_counts(autojump_clock: MockClock, *, stream: bool) -> None:
    admission = AdmissionConfig(max_waiting=1)
    server = FakeLlamaServer(total_slots=1, words=2, interval=1.0)
    async with gateway(server, admission=admission) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery)
        await occupy(app, nursery)
        reply = await call(app, CHAT, chat(stream=stream))
        assert reply.seconds == 0
    assert (reply.status, reply.headers["content-type"]) == (429, "application/json")
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    facts = {key: reply.error[key] for key in ("type", "code", "waiting", "slots")}
    assert facts == {"type": "rate_limit_error", "code": "queue_full", "waiting": 1, "slots": 1}
    assert reply.json["request_id"] == reply.headers["x-request-id"]
    assert server.total == 2


async def test_waiting_too_long_is_an_http_error_without_a_stream(autojump_clock: MockClock) -> None:
    admission = AdmissionConfig(max_wait=3.0)
    server = FakeLlamaServer(total_slots=1, words=1, interval=9.0)
    async with gateway(server, admission=admission) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery)
        reply = await call(app, CHAT, chat())
    assert (reply.status, reply.error["code"], reply.seconds) == (503, "queue_timeout", 3.0)
    assert 1 <= int(reply.headers["retry-after"]) <= 60


async def test_waiting_too_long_ends_a_stream_in_its_dialect(autojump_clock: MockClock) -> None:
    admission = AdmissionConfig(max_wait=3.0)
    server = FakeLlamaServer(total_slots=1, words=1, interval=9.0)
    async with gateway(server, admission=admission) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery)
        reply = await call(app, CHAT, chat(stream=True))
    error, done = events(reply)
    assert (reply.status, reply.seconds, done) == (200, 3.0, DONE)
    assert json.loads(error[6:])["error"]["code"] == "queue_timeout"
    assert server.total == 1


async def test_no_wait_at_all_is_known_on_arrival(autojump_clock: MockClock) -> None:
    admission = AdmissionConfig(max_wait=0)
    server = FakeLlamaServer(total_slots=1, words=1, interval=9.0)
    async with gateway(server, admission=admission) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery)
        reply = await call(app, CHAT, chat(stream=True))
    assert (reply.status, reply.error["code"], reply.seconds) == (503, "queue_timeout", 0)


async def test_a_request_for_several_answers_takes_as_many_slots(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=3, words=1, interval=2.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery, n=2)
        await occupy(app, nursery, n=2)
        facts = await counts(app)
        assert (facts["held"], facts["waiting"]) == (2, 1)
    assert server.max_in_flight == 1


async def test_a_bad_request_takes_nothing(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1)
    async with gateway(server) as app:
        for body in (b"{", b"[]", b'{"messages":1}', b'{"messages":[],"stream":"yes"}', b"\xff"):
            reply = await call(app, CHAT, body)
            assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert server.total == 0


async def test_a_draining_gateway_serves_its_line_and_nobody_new(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=4.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery)
        await occupy(app, nursery)
        start = trio.current_time()
        nursery.start_soon(app.gateway.drain)
        await wait_all_tasks_blocked()
        reply = await call(app, CHAT, chat(stream=True))
        assert (reply.status, reply.error["code"]) == (503, "draining")
        assert int(reply.headers["retry-after"]) > 0
        assert (await call(app, "/ready", method="GET")).status == 503
        await app.gateway.drain()
        assert trio.current_time() - start == 8
    assert server.total == 2


async def test_a_drain_waits_for_a_body_that_is_still_coming(autojump_clock: MockClock) -> None:
    raw = json.dumps(chat()).encode()
    async with gateway(FakeLlamaServer()) as app, connect(app) as late, connect(app) as never:
        await late.send(raw[:5])
        await never.send(raw[:5])
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def drain() -> None:
                with trio.move_on_after(10):
                    await app.gateway.drain()

            await trio.sleep(5)
            assert (await call(app, CHAT, chat())).error["code"] == "draining"
            await late.send(raw[5:])
            await late.send_complete()
            answer = await late.as_response()
            assert answer.status_code == 200
        assert trio.current_time() >= 10
        answer = await never.as_response()
        assert answer.status_code == 503
        assert (await answer.get_json())["error"]["code"] == "draining"


async def test_whoever_is_left_when_a_drain_runs_out_of_time_is_told_so(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=100, interval=1.0)
    replies: list[Reply] = []

    async def keep(stream: bool) -> None:
        replies.append(await call(app, CHAT, chat(stream=stream)))

    async with gateway(server) as app, trio.open_nursery() as nursery:
        nursery.start_soon(keep, True)
        await wait_all_tasks_blocked()
        nursery.start_soon(keep, False)
        await wait_all_tasks_blocked()
        with trio.move_on_after(5.5):
            await app.gateway.drain()
    streamed, waiting = sorted(replies, key=lambda reply: reply.status)
    assert (streamed.seconds, waiting.seconds) == (5.5, 5.5)
    assert b'"draining"' in events(streamed)[-2]
    assert (waiting.status, waiting.error["code"]) == (503, "draining")


# ---- leaving


async def test_a_client_that_leaves_the_line_never_reaches_the_backend(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=10.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        await occupy(app, nursery, seed=1)
        for stream in (False, True):
            await call(app, CHAT, chat(stream=stream), leave_after=3.0)
            await wait_all_tasks_blocked()
            assert (await counts(app))["waiting"] == 0
        last = await call(app, CHAT, chat(seed=2))
    assert last.seconds == 14.0
    assert [json.loads(each.body)["seed"] for each in server.generations] == [1, 2]


async def leave_and_be_followed(server: FakeLlamaServer, leave_after: float, *, stream: bool) -> float:
    """One client leaves the only slot, and another, who waits for it, gets a token; return when it began."""
    async with gateway(server) as app, trio.open_nursery() as nursery:
        start = trio.current_time()
        nursery.start_soon(partial(call, app, CHAT, chat(stream=stream), leave_after=leave_after))
        await wait_all_tasks_blocked()
        server.script(Script(tokens=1))
        last = await call(app, CHAT, chat(seed=2))
        assert last.status == 200
    return start


@pytest.mark.parametrize("stream", [False, True])
async def test_the_slot_of_a_client_that_left_is_handed_on_when_the_server_has_let_go(
    autojump_clock: MockClock, *, stream: bool
) -> None:
    server = FakeLlamaServer(total_slots=1, words=100, interval=1.0)
    start = await leave_and_be_followed(server, 3.5, stream=stream)
    left, followed = server.generations[0], server.generations[1]
    assert left.connection.peer_closed == start + 3.5
    assert left.released == start + 4.0  # at its next token
    looks = [each.arrived - start for each in server.requests if each.path == "/slots"]
    assert looks == pytest.approx([3.55, 3.65, 3.85, 4.25])
    assert followed.arrived == pytest.approx(start + 4.25)
    assert server.max_in_flight == 1


async def test_a_slot_that_is_let_go_at_the_next_token_is_handed_on_at_once(
    autojump_clock: MockClock,
) -> None:
    server = FakeLlamaServer(total_slots=1, words=100, interval=0.1)
    start = await leave_and_be_followed(server, 1.07, stream=True)
    assert server.generations[1].arrived == pytest.approx(start + 1.12)
    assert server.max_in_flight == 1


async def test_a_prompt_that_cannot_be_interrupted_keeps_its_slot_and_no_other(
    autojump_clock: MockClock,
) -> None:
    server = FakeLlamaServer(total_slots=2, words=1, prefill=18.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        start = trio.current_time()
        for seed, leave in ((1, 1.0), (2, 19.5)):
            nursery.start_soon(partial(call, app, CHAT, chat(seed=seed), leave_after=leave))
            await wait_all_tasks_blocked()
        await trio.sleep(2)
        server.script(Script(tokens=1, prefill=0), Script(tokens=1, prefill=0))
        await call(app, CHAT, chat(seed=3))
    third = server.generations[2]
    assert server.generations[0].released == pytest.approx(start + 18.0)
    assert third.arrived - start == pytest.approx(18.01, abs=0.2)  # the other's, which ends by itself
    assert server.max_in_flight == 2


@pytest.mark.parametrize("way", ["off", "away", "hidden"])
async def test_a_server_that_does_not_say_what_is_busy_is_not_waited_for(
    autojump_clock: MockClock, way: str
) -> None:
    server = FakeLlamaServer(total_slots=1, words=100, interval=1.0)
    async with gateway(server, admission=AdmissionConfig()) as app:
        server.slots_endpoint = way != "off"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: call(app, CHAT, chat(), leave_after=3.5))
            await trio.sleep(3.2)
            if way == "hidden":
                server.api_key = "unknown"
            elif way == "away":
                server.crash()
        await trio.sleep(0.2)
        assert (await counts(app))["held"] == 0


async def test_without_a_line_no_slot_is_waited_for(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=4, words=30, interval=0.1)
    async with (
        gateway(server, admission=AdmissionConfig(enabled=False)) as app,
        trio.open_nursery() as nursery,
    ):
        await occupy(app, nursery)
        await call(app, CHAT, chat(stream=True), leave_after=1.0)
        assert trio.current_time() - server.generations[1].arrived == pytest.approx(1.0)
    assert all(each.path != "/slots" for each in server.requests)


async def test_a_slot_is_not_waited_for_longer_than_30_seconds(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, prefill=100.0)
    async with gateway(server) as app:
        await call(app, CHAT, chat(), leave_after=1.0)  # which returns when all is over
        assert trio.current_time() - server.generations[0].arrived == pytest.approx(31.0)
        await trio.sleep(70)


async def test_who_is_cancelled_by_id_is_told_before_the_server_has_let_go(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=100, interval=1.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        replies: list[Reply] = []

        async def ask() -> None:
            replies.append(await call(app, CHAT, chat(stream=True), headers={"X-Request-Id": "a"}))

        nursery.start_soon(ask)
        await trio.sleep(3.5)
        await call(app, "/admission/requests/a", method="DELETE")
        await wait_all_tasks_blocked()
        assert (await counts(app))["held"] == 1
    at, told = replies[0].parts[-1]
    assert (at, told.count(b'"cancelled"')) == (3.5, 1)


async def test_the_end_of_the_gateway_waits_for_no_server_to_let_go(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, prefill=20.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, chat(stream=True))
        await wait_all_tasks_blocked()
        with trio.move_on_after(2):
            await app.gateway.drain()
        await wait_all_tasks_blocked()
        assert not app.gateway.passages
        await trio.sleep(20)


async def test_a_client_that_leaves_during_prefill_is_told_to_the_server(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, prefill=60.0)
    async with gateway(server) as app:
        start = trio.current_time()
        await call(app, CHAT, chat(), leave_after=2.0)
        await wait_all_tasks_blocked()
        assert server.generations[0].connection.peer_closed == start + 2.0
        assert (await counts(app))["held"] == 0
        await trio.sleep(60)  # the server cannot interrupt its batch


async def test_a_slow_reader_does_not_hold_the_slot(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=2000, interval=0.001)
    async with gateway(server) as app, connect(app) as reader:
        await reader.send(json.dumps(chat(stream=True)).encode())
        await reader.send_complete()
        await trio.sleep(3)  # it has read nothing, the generation is over
        assert (await counts(app))["held"] == 0
        assert server.generations[0].released is not None
        await reader.disconnect()


async def test_a_reader_that_takes_nothing_loses_its_stream(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_admission_web.logs")
    endless = Script(tokens=["x" * 2**20] * 100, interval=0.1)
    server = FakeLlamaServer(total_slots=1)
    async with gateway(server, stall_deadline=7.0) as app:
        server.script(endless)
        start = trio.current_time()
        async with connect(app) as reader:
            await reader.send(json.dumps(chat(stream=True)).encode())
            await reader.send_complete()
            await trio.sleep(20)
            assert (await counts(app))["held"] == 0
        closed = server.generations[0].connection.peer_closed
        assert closed is not None
        assert 7.0 < closed - start < 8.0
    assert any("reader stalled" in record.message for record in caplog.records)


# ---- cancelling by id


async def test_a_request_is_cancelled_by_its_id_in_line(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=9.0)
    async with gateway(server) as app:
        replies: dict[str, Reply] = {}

        async def keep(name: str, stream: bool) -> None:
            replies[name] = await call(app, CHAT, chat(stream=stream), headers={"X-Request-Id": name})

        async with trio.open_nursery() as nursery:
            await occupy(app, nursery)
            for name, stream in (("whole", False), ("streamed", True)):
                nursery.start_soon(keep, name, stream)
                await wait_all_tasks_blocked()
            await trio.sleep(1)
            line = (await counts(app))["line"]
            assert [(each["id"], each["position"], each["waited"]) for each in line] == [
                ("whole", 1, 1.0),
                ("streamed", 2, 1.0),
            ]
            for name in ("whole", "streamed"):
                done = await call(app, f"/admission/requests/{name}", method="DELETE")
                assert done.json == {"id": name, "cancelled": 1}
            assert (await call(app, "/admission/requests/whole", method="DELETE")).status == 404
    assert (replies["whole"].status, replies["whole"].error["code"]) == (499, "cancelled")
    assert replies["whole"].seconds == replies["streamed"].seconds == 1.0
    error, ending = events(replies["streamed"])
    assert (json.loads(error[6:])["error"]["code"], ending) == ("cancelled", DONE)
    assert server.total == 1


async def test_a_request_is_cancelled_by_its_id_while_it_generates(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=100, interval=1.0)
    async with gateway(server) as app:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await trio.sleep(3.5)
                await call(app, "/admission/requests/it", method="DELETE")

            nursery.start_soon(cancel)
            reply = await call(app, CHAT, chat(stream=True), headers={"X-Request-Id": "it"})
    assert reply.seconds == 3.5
    assert b'"cancelled"' in events(reply)[-2]
    assert events(reply)[-1] == DONE
    assert server.generations[0].connection.peer_closed == start + 3.5


# ---- failures of the backend


@pytest.mark.parametrize("stream", [False, True])
async def test_the_backends_own_refusal_passes_untouched(autojump_clock: MockClock, *, stream: bool) -> None:
    body = b'{ "error" : {"code":400,"message":"too long","type":"exceed_context_size_error","n_ctx":1}}'
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(Raw.answer(400, body, content_type="application/json; charset=utf-8"))
        reply = await call(app, CHAT, chat(stream=stream))
    assert (reply.status, reply.body) == (400, body)
    assert reply.headers["content-type"] == "application/json; charset=utf-8"


async def test_the_backends_refusal_of_a_stream_that_has_begun_is_told_inside_it(
    autojump_clock: MockClock,
) -> None:
    refusal = Raw.answer(400, {"error": {"code": 400, "message": "too long", "type": "exceed", "n_ctx": 1}})
    server = FakeLlamaServer(total_slots=1, words=1, interval=2.0)
    async with gateway(server) as app:
        server.script(Script(), refusal)
        async with trio.open_nursery() as nursery:
            await occupy(app, nursery)
            reply = await call(app, CHAT, chat(stream=True))
    error, done = events(reply)
    assert (reply.status, done) == (200, DONE)
    told = json.loads(error[6:])["error"]
    assert (told["message"], told["code"], told["n_ctx"]) == ("too long", "exceed", 1)


LOST = {
    "reset": Raw(End.RESET),
    "closed": Raw(End.CLOSE),
}
BROKEN = {
    "no HTTP": Raw(b"SSH-2.0-OpenSSH_9.6\r\n", End.CLOSE),
    "half a status": Raw(b"HTTP/1.1 200", 0.1, End.RESET),
    "a hint": Raw(b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.1, End.RESET),
    "half a head": Raw(b"HTTP/1.1 200 OK\r\nContent-Ty", End.CLOSE),
    "no event": Raw.stream(End.CLOSE),
    "no event, reset": Raw.stream(0.1, End.RESET),
    "cut json": Raw.answer(200, b"{}", content_length=9).then(End.CLOSE),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reply_", LOST.values(), ids=LOST.keys())
async def test_a_connection_lost_before_a_byte_is_tried_once_more(
    autojump_clock: MockClock, reply_: Raw, *, stream: bool
) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(reply_)
        reply = await call(app, CHAT, chat(stream=stream))
        assert server.total == 2
    assert reply.status == 200
    assert (b"[DONE]" in reply.body) == stream
    assert b"error" not in reply.body


@pytest.mark.parametrize("reply_", LOST.values(), ids=LOST.keys())
async def test_a_connection_lost_twice_is_a_bad_gateway(autojump_clock: MockClock, reply_: Raw) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(reply_, reply_)
        reply = await call(app, CHAT, chat())
        assert server.total == 2
    assert (reply.status, reply.error["code"]) == (502, "bad_gateway")
    assert "llama.test" not in reply.body.decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reply_", BROKEN.values(), ids=BROKEN.keys())
async def test_nothing_is_sent_again_of_which_a_byte_was_answered(
    autojump_clock: MockClock, reply_: Raw, *, stream: bool
) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(reply_)
        reply = await call(app, CHAT, chat(stream=stream))
        assert server.total == 1
        assert (await call(app, CHAT, chat(stream=stream))).status == 200
    assert b'"bad_gateway"' in reply.body
    assert stream or reply.status == 502


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "reply_",
    [
        Raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", End.CLOSE),
        Raw.answer(200, b"<html></html>", content_type="text/html"),
        Raw.answer(200, b""),
        Raw.answer(204, b""),
        Raw.answer(307, b"", headers=[("Location", "http://elsewhere.test/")]),
    ],
    ids=["garbage", "html", "empty", "204", "redirect"],
)
async def test_what_is_no_answer_is_a_bad_gateway(
    autojump_clock: MockClock, reply_: Raw, *, stream: bool
) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(reply_)
        reply = await call(app, CHAT, chat(stream=stream))
        assert server.total == 1
    assert (reply.status, reply.error["code"]) == (502, "bad_gateway")
    assert "llama.test" not in reply.body.decode()


async def test_json_from_a_server_that_does_not_stream_is_passed_on(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(Raw.answer(200, b'{"choices": []}', content_type="application/json"))
        reply = await call(app, CHAT, chat())
    assert (reply.status, reply.body) == (200, b'{"choices": []}')


@pytest.mark.parametrize("how", [End.RESET, End.CLOSE, End.FINISH, End.ERROR])
async def test_an_answer_that_breaks_off_never_looks_complete(autojump_clock: MockClock, how: End) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.script(Script(cut=Cut(2, how)), Script(cut=Cut(2, how)))
        streamed = await call(app, CHAT, chat(stream=True))
        whole = await call(app, CHAT, chat())
    *_, error, done = events(streamed)
    code = "server_error" if how is End.ERROR else "bad_gateway"
    assert (json.loads(error[6:])["error"].get("code") in {code, 500}, done) == (True, DONE)
    assert b'finish_reason":"stop' not in streamed.body
    assert whole.status == (500 if how is End.ERROR else 502)


async def test_a_server_that_falls_silent_is_given_up(autojump_clock: MockClock) -> None:
    limits = {"first_byte_limit": 60.0, "idle_limit": 20.0}
    server = FakeLlamaServer(ping_interval=None)
    async with gateway(server, **limits) as app:
        server.script(
            Raw(End.SILENCE), Raw(End.SILENCE), Raw.stream(End.SILENCE), Script(cut=Cut(1, End.SILENCE))
        )
        silent = await call(app, CHAT, chat())
        opened = await call(app, CHAT, chat(stream=True))
        no_data = await call(app, CHAT, chat(stream=True))
        cut = await call(app, CHAT, chat(stream=True))
    assert (silent.status, silent.error["code"], silent.seconds) == (504, "upstream_timeout", 60.0)
    for reply, seconds in ((opened, 60.0), (no_data, 60.0), (cut, 20.01)):
        assert (reply.status, reply.seconds) == (200, seconds)
        assert b'"upstream_timeout"' in events(reply)[-2]
        assert reply.parts[0][0] <= 5.0


async def test_after_a_failure_the_next_in_line_is_served(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1)
    async with gateway(server) as app:
        server.script(Script(cut=Cut(1, End.RESET), interval=1.0))
        async with trio.open_nursery() as nursery:
            await occupy(app, nursery)
            reply = await call(app, CHAT, chat())
    assert reply.status == 200
