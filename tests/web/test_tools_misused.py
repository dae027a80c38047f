"""What careless tools, confused models and hostile clients do to the tools' turns."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.lowlevel

from tests.support.gateway import CHAT, Reply, call, call_into, chat
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
from trio_admission.testing.fake_llama_server import Script, ToolCall

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission.testing.fake_llama_server import FakeLlamaServer


def calling(*calls: ToolCall) -> Script:
    return Script(tokens=0, tool_calls=list(calls), interval=1.0)


def results(server: FakeLlamaServer, generation: int = 1) -> list[str]:
    """What the model has been told of its calls."""
    messages = json.loads(server.generations[generation].body)["messages"]
    return [each["content"] for each in messages if each["role"] == "tool"]


# ---- tools


@pytest.mark.parametrize("name", ["leave", "leave_in_thread"])
async def test_a_tool_that_exits_ends_its_call_alone(name: str) -> None:
    quick = Script(tokens=0, tool_calls=[ToolCall(name, ["{}"])], interval=0.001)
    async with one_slot(quick, Script(tokens=["Well"], interval=0.001)) as (app, server):
        assert text(await call(app, CHAT, asking(name))) == "Well"
    assert results(server) == [f"Error: {name} failed."]


async def test_a_result_without_end_is_cut_and_is_text_that_the_backend_can_read(
    autojump_clock: MockClock,
) -> None:
    async with one_slot(calling(ToolCall("spill", ["{}"])), ANSWERS) as (app, server):
        reply = await call(app, CHAT, asking("spill"))
    [result] = results(server)
    assert (len(result), result[:3]) == (64 * 2**10, "?xx")
    assert len(told(reply)[1][1]["result"]) == 2000
    assert text(reply) == "Here it is"


# ---- models


@pytest.mark.parametrize(
    "arguments",
    ['{"anything":NaN}', '{"anything":1e999}', '{"anything":"\\ud800"}', '{"anything":', "[" * 9999],
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_arguments_that_no_backend_reads_are_a_failed_call(
    autojump_clock: MockClock, path: str, arguments: str
) -> None:
    async with one_slot(calling(ToolCall("spill", [arguments])), ANSWERS) as (app, server):
        reply = await call(app, path, asking("spill", max_tokens=50))
    assert b"arguments must be an object" in server.generations[1].body
    called = json.loads(server.generations[1].body)["messages"][1]
    assert json.dumps(arguments)[1:-1] not in json.dumps(called)
    assert b"is" in reply.body
    assert told(reply)[0][1]["ok"] is False


async def test_text_of_every_alphabet_goes_round(autojump_clock: MockClock) -> None:
    words = 'Zürich \u0000 "日本" \U0001f600\u2028'
    found = ToolCall("find", [json.dumps({"what": words}, ensure_ascii=False)])
    async with one_slot(calling(found), ANSWERS) as (app, server), trio.open_nursery() as nursery:
        reply = Reply()
        nursery.start_soon(call_into, reply, app, CHAT, asking("find"))
        await trio.sleep(3)
        assert (await approvals(app))[0]["arguments"] == {"what": words}
        await decide(app)
    assert told(reply)[2][1]["arguments"] == {"what": words}
    assert results(server) == [f"found {words}"]


async def test_of_calls_made_together_one_is_denied(autojump_clock: MockClock) -> None:
    other = ToolCall("find", ['{"what":"y"}'])
    async with one_slot(calling(FIND, other), ANSWERS) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find"))
        await trio.sleep(4)
        questions = {each["arguments"]["what"]: each["id"] for each in await approvals(app)}
        await decide(app, questions["y"], decision="allow")
        assert state(app) == (0, 0, 1, 0)
        await decide(app, questions["x"], decision="deny")
    assert results(server) == ["Error: The user did not allow this call.", "found y"]


# ---- clients


@pytest.mark.parametrize("tools", [5, {"a": 1}, "find", True, 0])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_tools_that_are_none_are_the_clients_mistake(
    autojump_clock: MockClock, path: str, tools: object
) -> None:
    async with one_slot() as (app, server):
        reply = await call(app, path, asking("find", tools=tools, max_tokens=50))
    assert (reply.status, reply.error["message"], server.total) == (400, "'tools' must be a list.", 0)


@pytest.mark.parametrize("tool", [5, {"function": 5}, {"name": 5}, {"function": {"name": ["find"]}}])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_tool_without_a_name_is_the_backends_business(
    autojump_clock: MockClock, path: str, tool: object
) -> None:
    async with one_slot() as (app, server):
        await call(app, path, asking("find", tools=[tool], max_tokens=50))
    assert json.loads(server.generations[0].body)["tools"][0] == tool


async def test_of_two_decisions_at_once_one_counts(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, _), trio.open_nursery() as nursery:
        reply = Reply()
        nursery.start_soon(call_into, reply, app, CHAT, asking("find"))
        await trio.sleep(3)
        [question] = await approvals(app)
        answers: dict[str, int] = {}

        async def answer(decision: str) -> None:
            answers[decision] = (await decide(app, question["id"], decision=decision)).status

        async with trio.open_nursery() as people:
            people.start_soon(answer, "allow")
            people.start_soon(answer, "deny")
        assert sorted(answers.values()) == [200, 404]
    counted = next(decision for decision, status in answers.items() if status == 200)
    assert [each["decision"] for _, each in told(reply) if "decision" in each] == [counted]


async def test_who_decides_in_the_moment_of_expiry_is_late(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS, approval_ttl=8) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find"))
        await trio.sleep(3)
        [question] = await approvals(app)
        await trio.sleep_until(10)
        assert (await decide(app, question["id"])).status == 404
    assert "Nobody answered" in results(server)[0]


@pytest.mark.parametrize("arguments", [[], "x", {"what": None}, {"what": "x", "more": 1}, {}, 1, True])
async def test_edited_arguments_that_do_not_fit_leave_the_question_open(
    autojump_clock: MockClock, arguments: object
) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find"))
        await trio.sleep(3)
        reply = await decide(app, decision="allow", arguments=arguments)
        assert (reply.status, reply.error["param"]) == (400, "arguments")
        await decide(app)
    assert results(server) == ["found x"]


async def test_edited_arguments_that_are_huge_do_not_drown_the_model(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS, ANSWERS) as (app, server), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, CHAT, asking("find"))
        await trio.sleep(3)
        assert (await decide(app, decision="allow", arguments={"what": 10**6 * "y"})).status == 200
    [result] = results(server)
    assert result.startswith("(The user changed the arguments to ")
    assert len(result) == 64 * 2**10


@pytest.mark.parametrize("name", ["%00", "..%2f..%2fetc", "%F0%9F%98%80", "x" * 5000, "a/b"])
@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE"])
async def test_addresses_of_no_question_are_told_so(
    autojump_clock: MockClock, name: str, method: str
) -> None:
    async with one_slot() as (app, _):
        reply = await call(app, f"/admission/approvals/{name}", {"decision": "allow"}, method=method)
    assert reply.status in {404, 405}
    assert reply.error["type"]


async def test_a_returning_request_can_be_cancelled_by_its_id(autojump_clock: MockClock) -> None:
    async with one_slot(CALLS) as (app, server), trio.open_nursery() as nursery:
        reply = Reply()
        named = {"X-Request-Id": "a"}
        nursery.start_soon(partial(call_into, reply, app, CHAT, asking("find"), headers=named))
        await trio.sleep(3)
        nursery.start_soon(call, app, CHAT, chat(stream=True))  # from 3 s to 5 s
        await trio.sleep(0.5)
        await decide(app)
        assert state(app) == (1, 0, 0, 1)
        assert (await call(app, "/admission/requests/a", method="DELETE")).status == 200
        await trio.lowlevel.checkpoint()
        assert state(app) == (1, 0, 0, 0)
    assert reply.seconds == 3.5
    assert b'"code":"cancelled"' in reply.body
    assert server.total == 2


async def test_a_request_that_is_cancelled_while_its_tool_runs_ends_the_tool(
    autojump_clock: MockClock,
) -> None:
    naps = calling(ToolCall("nap", ['{"seconds":50}']))
    async with one_slot(naps) as (app, _), trio.open_nursery() as nursery:
        reply = Reply()
        named = {"X-Request-Id": "a"}
        nursery.start_soon(partial(call_into, reply, app, CHAT, asking("nap"), headers=named))
        await trio.sleep(4)
        assert state(app) == (0, 0, 1, 0)
        assert (await call(app, "/admission/requests/a", method="DELETE")).status == 200
    assert reply.seconds == 4
    assert b'"code":"cancelled"' in reply.body
