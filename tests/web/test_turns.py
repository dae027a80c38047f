"""Tools that the gateway runs: who has the slot meanwhile, what the client sees, and how it may end early."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.support.gateway import CHAT, UPSTREAM, Reply, call, call_into, chat, connect, gateway
from tests.support.tools import PLACES
from tests.support.turns import (
    ANSWERS,
    CALLS,
    FIND,
    MESSAGES,
    approvals,
    asking,
    decide,
    one_slot,
    state,
    text,
    told,
)
from trio_admission.testing.fake_llama_server import End, FakeLlamaServer, Raw, Script, ToolCall
from trio_admission_web.keys import ApiKey, new_key
from trio_admission_web.settings import BackendSettings

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission_web.app import App


async def test_the_slot_serves_others_until_the_approval_and_the_approved_one_is_next(
    autojump_clock: MockClock,
) -> None:
    async with one_slot(CALLS) as (app, server), trio.open_nursery() as nursery:
        a, b, c = Reply(), Reply(), Reply()

        async def ask(into: Reply, after: float, body: dict[str, Any]) -> None:
            await trio.sleep(after)
            await call_into(into, app, CHAT, body)

        nursery.start_soon(ask, a, 0, asking("find", seed=1))  # calls at 2 s
        nursery.start_soon(ask, b, 3, chat(stream=True, seed=2))  # runs from 3 s to 5 s
        nursery.start_soon(ask, c, 4.5, chat(stream=True, seed=3))  # waits
        await trio.sleep(2.5)
        assert state(app) == (0, 0, 1, 0)
        await trio.sleep(1.5)
        assert state(app) == (1, 0, 1, 0)
        assert (await decide(app)).json["decision"] == "allow"  # at 4 s
    started = [(json.loads(each.body)["seed"], each.launched) for each in server.generations]
    assert started == [(1, 0), (2, 3), (1, 5), (3, 7)]
    [asked, decided, began, ended, returning, resumed] = told(a)
    assert [at for at, _ in told(a)] == [2, 4, 4, 4, 4, 5]
    assert asked[1] == {
        "type": "approval_required", "call": asked[1]["call"], "tool": "find", "id": asked[1]["id"],
        "arguments": {"what": "x"}, "expires_at": asked[1]["expires_at"],
    }  # fmt: skip
    assert (decided[1]["type"], decided[1]["decision"]) == ("approval_decided", "allow")
    assert (began[1]["type"], began[1]["arguments"]) == ("tool_started", {"what": "x"})
    assert (ended[1]["type"], ended[1]["ok"], ended[1]["result"]) == ("tool_result", True, "found x")
    assert (returning[1]["type"], returning[1]["position"]) == ("returning", 1)
    assert resumed[1] == {"type": "resumed"}
    assert (text(a), a.seconds, a.body.count(b"[DONE]")) == ("r3w0 r3w1", 7, 1)
    assert (b.seconds, c.seconds) == (2, 4.5)


async def test_who_is_approved_is_always_the_next_whoever_comes_meanwhile(autojump_clock: MockClock) -> None:
    """Five wait for people, and newcomers never end: one comes in each tick in which the slot frees."""
    calls = [Script(tokens=0, tool_calls=[FIND], interval=0.5)] * 5
    approved_at = {0: 10.7, 1: 13.3, 2: 14.5, 3: 17.9, 4: 21.5}  # the slot frees at 12, 14, ... seconds
    async with one_slot(*calls, max_parked=5) as (app, server), trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(call, app, CHAT, asking("find", user=str(number)))
            await trio.sleep(1)
        await trio.sleep_until(10)
        assert state(app) == (0, 0, 5, 0)
        questions = [each["id"] for each in await approvals(app)]

        async def newcomers() -> None:
            for _ in range(20):
                nursery.start_soon(call, app, CHAT, chat(stream=True, user="new"))
                await trio.sleep(1)  # each takes 2 s, so the line grows

        nursery.start_soon(newcomers)
        for number, name in enumerate(questions):
            await trio.sleep_until(approved_at[number])
            assert (await decide(app, name)).status == 200
    served = [(json.loads(each.body)["user"], each.launched) for each in server.generations[5:]]
    assert served[:12] == [
        ("new", 10), ("0", 12), ("1", 14), ("2", 16), ("3", 18), ("new", 20), ("4", 22), ("new", 24),
        ("new", 26), ("new", 28), ("new", 30), ("new", 32),
    ]  # fmt: skip


async def test_the_model_is_told_the_result(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, server):
        await call(app, CHAT, asking("find", approval="never"))
    first, second = (json.loads(each.body) for each in server.generations)
    assert "admission" not in first
    assert [each["function"]["name"] for each in first["tools"]] == ["find"]
    assert second["messages"][-1]["content"] == "found x"


async def test_an_answer_in_one_piece_takes_the_same_rounds(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, _), trio.open_nursery() as nursery:

        async def allow() -> None:
            await trio.sleep(10)
            await decide(app)

        nursery.start_soon(allow)
        reply = await call(app, CHAT, asking("find", stream=False))
    [choice] = reply.json["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Here it is"}
    assert (choice["finish_reason"], reply.seconds) == ("stop", 12)
    assert b"admission" not in reply.body


async def test_messages_take_the_same_rounds(autojump_clock: MockClock) -> None:
    body = asking("find", approval="never", max_tokens=50)
    async with one_slot(CALLS, ANSWERS, CALLS, ANSWERS) as (app, server):
        streamed = await call(app, MESSAGES, body)
        whole = await call(app, MESSAGES, body | {"stream": False})
    assert [facts["type"] for _, facts in told(streamed)] == ["tool_started", "tool_result", "resumed"]
    assert streamed.body.count(b"event: message_start") == streamed.body.count(b"event: message_stop") == 1
    assert whole.json["content"] == [{"type": "text", "text": "Here it is"}]
    assert json.loads(server.generations[1].body)["messages"][-1]["content"][0]["content"] == "found x"


async def test_a_client_without_wishes_sees_none_of_it(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS) as (app, _):
        reply = await call(app, CHAT, chat(stream=True))
    assert b'"finish_reason":"tool_calls"' in reply.body
    assert b"admission" not in reply.body


async def test_signs_of_life_go_on_while_a_person_thinks(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS, approval_ttl=21) as (app, _):
        reply = await call(app, CHAT, asking("find"))
    assert [at for at, part in reply.parts if part == b": keepalive\n\n"] == [7, 12, 17, 22]


async def test_a_question_that_expires_is_a_denial_and_the_model_goes_on(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, server):
        reply = await call(app, CHAT, asking("find"))
        assert await approvals(app) == []
    assert [facts.get("decision") for _, facts in told(reply)][1] == "expired"
    assert (text(reply), reply.seconds) == ("Here it is", 3604)
    assert "not run" in json.loads(server.generations[1].body)["messages"][-1]["content"]


async def test_a_denial_and_its_reason_are_told_to_the_model(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find"))
        await trio.sleep(3)
        await decide(app, decision="deny", reason="Not today.")
    result = json.loads(server.generations[1].body)["messages"][-1]["content"]
    assert result == "Error: The user did not allow this call. The reason: Not today."


async def test_edited_arguments_are_what_runs(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find"))
        await trio.sleep(3)
        wrong = await decide(app, decision="allow", arguments={"what": 3})
        assert (wrong.status, wrong.error["param"]) == (400, "arguments")
        await decide(app, decision="allow", arguments={"what": "y"})
    assert json.loads(server.generations[1].body)["messages"][-1]["content"].endswith("\nfound y")


async def test_several_calls_are_decided_one_by_one_and_run_at_once(autojump_clock: MockClock) -> None:
    nap = ToolCall("nap", ['{"seconds":5}'])
    async with (
        one_slot(Script(tokens=0, tool_calls=[nap, FIND, nap], interval=1.0), ANSWERS) as (app, server),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(call, app, CHAT, asking("find", "nap"))
        await trio.sleep(6)
        [question] = await approvals(app)
        await decide(app, question["id"])
    messages = json.loads(server.generations[1].body)["messages"]
    assert [each["content"] for each in messages[2:]] == ["slept", "found x", "slept"]
    assert server.generations[1].launched == 9  # the calls came at 4 s


@pytest.mark.parametrize(
    ("tool", "result"),
    [
        (ToolCall("fail", ["{}"]), "Error: It is broken."),
        (ToolCall("find", ["{}"]), "Error: arguments.what is missing."),
        (ToolCall("nap", ['{"seconds":1000}']), "Error: nap gave no result within 100 s."),
    ],
)
async def test_a_call_that_fails_has_a_result_too(
    autojump_clock: MockClock, tool: ToolCall, result: str
) -> None:
    async with one_slot(Script(tokens=0, tool_calls=[tool]), ANSWERS) as (app, server):
        reply = await call(app, CHAT, asking("find", "nap", "fail"))
    assert text(reply) == "Here it is"
    assert json.loads(server.generations[1].body)["messages"][-1]["content"] == result


async def test_a_tool_knows_for_which_request_it_runs() -> None:
    calls = [ToolCall(name, ["{}"]) for name in ("whose", "whose_in_thread")]
    quick = [Script(tokens=0, tool_calls=calls, interval=0.001), Script(tokens=1, interval=0.001)]
    async with one_slot(*quick) as (app, server):
        body = asking("whose", "whose_in_thread")
        await call(app, CHAT, body, headers={"X-Request-Id": "mother"})
    messages = json.loads(server.generations[1].body)["messages"]
    assert [each["content"] for each in messages[2:]] == ["mother", "mother"]


# ---- ending early


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_parked_is_gone_at_once(
    autojump_clock: MockClock, *, stream: bool
) -> None:
    async with one_slot(CALLS) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: call(app, CHAT, asking("find", stream=stream), leave_after=3.5))
        await trio.sleep(3)
        [question] = await approvals(app)
        nursery.start_soon(call, app, CHAT, chat(stream=True))  # holds the slot from 3 s to 5 s
        await trio.sleep(0.75)
        assert state(app) == (1, 0, 0, 0)
        assert (await decide(app, question["id"])).status == 404
    assert server.total == 2


async def test_a_client_that_leaves_on_the_way_back_takes_no_slot(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: call(app, CHAT, asking("find"), leave_after=4))
        await trio.sleep(3)
        nursery.start_soon(call, app, CHAT, chat(stream=True))
        await trio.sleep(0.5)
        await decide(app)
        assert state(app) == (1, 0, 0, 1)
        await trio.sleep(1)
        assert state(app) == (1, 0, 0, 0)
    assert server.total == 2


async def test_a_parked_request_can_be_cancelled_by_its_id(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS) as (app, _), trio.open_nursery() as nursery:
        reply = Reply()
        named = {"X-Request-Id": "a"}
        nursery.start_soon(partial(call_into, reply, app, CHAT, asking("find"), headers=named))
        await trio.sleep(3)
        [question] = await approvals(app)
        assert question["request"] == "a"
        assert (await call(app, "/admission/requests/a", method="DELETE")).status == 200
        assert (await decide(app, question["id"])).status == 404
    assert reply.seconds == 3
    assert b'"code":"cancelled"' in reply.body
    assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_a_backend_that_is_gone_for_good_after_an_approval_is_told_in_the_stream(
    autojump_clock: MockClock,
) -> None:
    async with one_slot(CALLS) as (app, server), trio.open_nursery() as nursery:
        reply = Reply()
        nursery.start_soon(call_into, reply, app, CHAT, asking("find"))
        await trio.sleep(3)
        server.crash()
        await decide(app)
    assert b'"code":"backend_unavailable"' in reply.body
    assert reply.body.count(b"[DONE]") == 1


async def test_a_drain_that_has_no_time_for_people_tells_the_parked(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS) as (app, _), trio.open_nursery() as nursery:
        reply = Reply()
        nursery.start_soon(call_into, reply, app, CHAT, asking("find"))
        await trio.sleep(3)
        with trio.move_on_after(30):
            await app.gateway.drain()
    assert reply.seconds == 33
    assert b'"code":"draining"' in reply.body


async def test_a_drain_waits_for_the_parked(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, _), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find"))
        await trio.sleep(3)
        nursery.start_soon(app.gateway.drain)
        await trio.sleep(3)
        await decide(app)
        await app.gateway.drain()
        assert trio.current_time() == 8


# ---- keys


async def test_only_the_flow_that_asked_decides(autojump_clock: MockClock) -> None:
    secrets = {name: new_key() for name in ("ann", "bob", "eve")}
    keys = tuple(ApiKey(name=name, hash=digest, admin=name == "eve") for name, (_, digest) in secrets.items())
    bearer = {name: {"Authorization": f"Bearer {secret}"} for name, (secret, _) in secrets.items()}
    async with one_slot(CALLS, ANSWERS, keys=keys) as (app, _), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: call(app, CHAT, asking("find"), headers=bearer["ann"]))
        await trio.sleep(3)
        path = "/admission/approvals"
        seen = {
            name: (await call(app, path, method="GET", headers=sent)).json["approvals"]
            for name, sent in bearer.items()
        }
        assert [len(seen[name]) for name in ("ann", "bob", "eve")] == [1, 0, 1]
        assert seen["eve"][0]["flow"] == "ann"
        path += f"/{seen['ann'][0]['id']}"
        allow = {"decision": "allow"}
        asked_by = [{}, *(bearer[name] for name in ("bob", "eve", "ann", "ann"))]
        statuses = [(await call(app, path, allow, headers=sent)).status for sent in asked_by]
        assert statuses == [401, 403, 403, 200, 404]


# ---- the budget


@pytest.mark.parametrize(("slots", "warned"), [(34, 0), (35, 1)])
async def test_a_default_that_lets_nobody_park_is_said(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, slots: int, warned: int
) -> None:
    async with gateway(FakeLlamaServer(total_slots=slots)):
        pass
    assert (
        len([
            each
            for each in caplog.messages
            if "nobody is parked" in each and "TRIO_ADMISSION_MAX_PARKED" in each
        ])
        == warned
    )


async def test_without_a_park_the_slot_is_kept_and_the_next_approval_asks_again(
    autojump_clock: MockClock,
) -> None:
    async with one_slot(CALLS, CALLS, CALLS, max_parked=1) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find", seed=1))
        await trio.sleep(3)
        nursery.start_soon(call, app, CHAT, asking("find", seed=2))  # calls at 5 s, and may not be parked
        await trio.sleep(3)
        assert state(app) == (1, 0, 1, 0)
        first, second = await approvals(app)
        await decide(app, first["id"])
        assert state(app) == (1, 0, 0, 1)  # it waits for the slot that the other keeps
        await decide(app, second["id"])  # it goes on from 6 s to 8 s, and calls again
        await trio.sleep(3)
        assert state(app) == (1, 0, 1, 0)
        assert [(each["tool"], each["id"] != second["id"]) for each in await approvals(app)] == [
            ("find", True)
        ]
        await decide(app)
    started = [(json.loads(each.body)["seed"], each.launched) for each in server.generations]
    assert started == [(1, 0), (2, 3), (2, 6), (1, 8), (2, 10)]


# ---- what it costs


def growing(words: int) -> Script:
    """A call of ``find`` whose arguments and result have that many words each, one token to the server."""
    return Script(
        tokens=0, tool_calls=[ToolCall("find", [json.dumps({"what": "word " * words})])], interval=1.0
    )


async def test_a_conversation_that_has_grown_is_charged_what_it_takes_now(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=2, n_ctx=8000, kv_unified=True, words=2, interval=1.0)
    async with gateway(server, tools=PLACES, kv_cache="unified") as app, trio.open_nursery() as nursery:
        server.script(growing(500))
        body = asking("find", messages=[{"role": "user", "content": "word " * 900}], max_tokens=300)
        nursery.start_soon(call, app, CHAT, body)
        pool = app.gateway.backend.pool
        await trio.sleep(1)
        first = pool.statistics().kv_held
        assert 1200 < first < 1400
        await trio.sleep(2)
        assert (state(app), pool.statistics().kv_held) == ((0, 0, 1, 0), 0)
        await decide(app)
        await trio.sleep(1)
        assert first + 1000 < pool.statistics().kv_held < first + 1200


async def test_a_conversation_that_no_slot_can_hold_any_more_is_told_as_the_server_would(
    autojump_clock: MockClock,
) -> None:
    server = FakeLlamaServer(total_slots=1, n_ctx=2000, words=2, interval=1.0)
    async with gateway(server, tools=PLACES) as app:
        server.script(growing(1000))
        reply = await call(app, CHAT, asking("find", approval="never"))
        assert state(app) == (0, 0, 0, 0)
    assert [facts["type"] for _, facts in told(reply)] == ["tool_started", "tool_result"]
    assert b"exceeds the available context size (2000 tokens)" in reply.body
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert server.total == 1


# ---- what is wrong


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, asking("nothing"), "admission.tools"),
        (CHAT, asking("find", n=2), "n"),
        (CHAT, chat(admission=[]), "admission"),
        ("/v1/completions", {"prompt": "x", "admission": {"tools": ["find"]}}, "admission"),
    ],
)
async def test_a_request_for_tools_that_cannot_be_had_is_refused(
    autojump_clock: MockClock, path: str, body: dict[str, Any], param: str
) -> None:
    async with one_slot() as (app, server):
        reply = await call(app, path, body)
    assert (reply.status, reply.error["param"], server.total) == (400, param, 0)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b'{"decision":"yes"}'])
async def test_a_malformed_decision_is_refused_and_an_unknown_one_not_found(
    autojump_clock: MockClock, body: bytes
) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, _), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find"))
        await trio.sleep(3)
        [question] = await approvals(app)
        assert (await call(app, f"/admission/approvals/{question['id']}", body)).status == 400
        assert (await decide(app, "x" * 24)).status == 404
        assert (await decide(app)).status == 200
        assert (await decide(app, question["id"])).status == 404


# ---- tickets


async def ask_client_tool(app: App, *, stream: bool = True, path: str = CHAT) -> Reply:
    tool = {"type": "function", "name": "mine", "function": {"name": "mine"}, "input_schema": {}}
    return await call(app, path, chat(stream=stream, tools=[tool], max_tokens=50))


MINE = Script(tokens=0, tool_calls=[ToolCall("mine", ["{}"])], interval=1.0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_who_brings_a_ticket_back_is_next(
    autojump_clock: MockClock, path: str, *, stream: bool
) -> None:
    async with one_slot(MINE) as (app, server), trio.open_nursery() as nursery:
        token = (await ask_client_tool(app, stream=stream, path=path)).headers["admission-resume"]
        assert token
        for number in range(2):
            nursery.start_soon(call, app, CHAT, chat(stream=True, seed=number))
            await trio.sleep(0.1)
        for _ in range(2):  # the second time it is a newcomer
            nursery.start_soon(
                lambda: call(app, CHAT, chat(stream=True, seed=7), headers={"admission-resume": token})
            )
            await trio.sleep(0.1)
        waiting = app.gateway.backend.pool.statistics()
        assert (waiting.waiting, waiting.returning) == (2, 1)
    assert [json.loads(each.body).get("seed") for each in server.generations[1:]] == [0, 7, 1, 7]


async def test_a_ticket_expires(autojump_clock: MockClock) -> None:
    async with one_slot(MINE) as (app, _), trio.open_nursery() as nursery:
        token = (await ask_client_tool(app)).headers["admission-resume"]
        await trio.sleep(301)
        nursery.start_soon(call, app, CHAT, chat(stream=True))
        await trio.sleep(0.1)
        nursery.start_soon(lambda: call(app, CHAT, chat(stream=True), headers={"admission-resume": token}))
        await trio.sleep(0.1)
        assert state(app) == (1, 1, 0, 0)


async def test_a_promise_that_came_to_nothing_is_worth_nothing(autojump_clock: MockClock) -> None:
    async with one_slot() as (app, _), trio.open_nursery() as nursery:
        streamed = await ask_client_tool(app)
        assert "admission-resume" not in (await ask_client_tool(app, stream=False)).headers
        nursery.start_soon(call, app, CHAT, chat(stream=True))
        await trio.sleep(0.1)
        for token in (streamed.headers["admission-resume"], "wrong"):
            nursery.start_soon(
                lambda t: call(app, CHAT, chat(stream=True), headers={"admission-resume": t}), token
            )
        await trio.sleep(0.1)
        assert state(app) == (1, 2, 0, 0)


async def test_an_answer_that_was_cut_gives_no_ticket(autojump_clock: MockClock) -> None:
    ends_in_calls = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    async with one_slot() as (app, server), trio.open_nursery() as nursery:
        server.script(Raw.stream(ends_in_calls, End.FINISH))
        cut = await ask_client_tool(app)
        assert b'"code":"bad_gateway"' in cut.body
        nursery.start_soon(call, app, CHAT, chat(stream=True))
        await trio.sleep(0.1)
        token = cut.headers["admission-resume"]
        nursery.start_soon(lambda: call(app, CHAT, chat(stream=True), headers={"admission-resume": token}))
        await trio.sleep(0.1)
        assert state(app) == (1, 1, 0, 0)


async def test_a_ticket_leads_to_the_backend_that_gave_it(autojump_clock: MockClock) -> None:
    backends = tuple(BackendSettings(name=name, url=UPSTREAM) for name in ("a", "b"))
    async with one_slot(MINE, backends=backends) as (app, _), trio.open_nursery() as nursery:
        token = (await ask_client_tool(app)).headers["admission-resume"]
        first = app.gateway.backend
        nursery.start_soon(call, app, CHAT, chat(stream=True))
        await trio.sleep(0.1)
        assert first.pool.statistics().held == 1
        nursery.start_soon(lambda: call(app, CHAT, chat(stream=True), headers={"admission-resume": token}))
        await trio.sleep(0.1)
        assert first.pool.statistics().returning == 1


# ---- sub-agents


async def test_a_child_of_a_request_that_keeps_its_slot_borrows_it(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, max_parked=0) as (app, _), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: call(app, CHAT, asking("find"), headers={"X-Request-Id": "mother"}))
        await trio.sleep(3)
        assert state(app) == (1, 0, 0, 0)
        child = await call(app, CHAT, chat(stream=True), headers={"admission-parent": "mother"})
        assert (child.status, child.seconds) == (200, 2)
        with trio.move_on_after(5):
            async with connect(app, CHAT, headers={"admission-parent": "stranger"}) as connection:
                await connection.send(json.dumps(chat(stream=True)).encode())
                await connection.send_complete()
                assert b": queued" in await connection.receive()
                await connection.disconnect()
        await decide(app)
