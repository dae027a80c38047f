"""However the turns of tools end, every stream ends once, and nothing is left behind."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.support.gateway import CHAT, call, chat
from tests.support.turns import MESSAGES, approvals, asking, decide, one_slot, state
from trio_admission.testing import check
from trio_admission.testing.fake_llama_server import Script, ToolCall

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission_web.app import App

CALLS = (
    *(ToolCall("find", [text]) for text in ('{"what":"x"}', '{"what":3}', "{")),
    *(ToolCall("nap", [f'{{"seconds":{seconds}}}']) for seconds in (0, 1, 500)),
    *(ToolCall(name, ["{}"]) for name in ("fail", "leave", "unheard_of")),
)
DECISIONS: tuple[dict[str, Any], ...] = (
    {"decision": "allow"},
    {"decision": "deny", "reason": "No."},
    {"decision": "allow", "arguments": {"what": "z"}},
    {"decision": "allow", "arguments": 5},
    {"decision": "perhaps"},
)
CLIENTS = 10


def script(dice: random.Random) -> Script:
    """One round: some words, some calls, or both."""
    calls = dice.sample(CALLS, dice.choice([0, 1, 1, 2, 3]))
    return Script(tokens=dice.choice([1, 3]), tool_calls=calls, interval=0.5)


async def converse(app: App, dice: random.Random, name: str) -> None:
    """Ask for something in some way; who does not leave gets one ending."""
    await trio.sleep(dice.uniform(0, 10))
    path, stream = dice.choice([CHAT, CHAT, MESSAGES]), dice.random() < 0.7
    approval = dice.choice(["auto", "always", "never"])
    body = asking("find", "nap", "fail", "leave", approval=approval, stream=stream, max_tokens=50)
    if dice.random() < 0.2:
        body = chat(stream=stream, max_tokens=50)
    leave_after = dice.choice([None, None, None, dice.uniform(0, 15)])
    reply = await call(app, path, body, headers={"X-Request-Id": name}, leave_after=leave_after)
    if leave_after is not None:
        return
    assert reply.status in {200, 499}
    if stream and reply.status == 200:
        ends = [b"data: [DONE]"] if path == CHAT else [b"event: message_stop", b"event: error"]
        assert sum(map(reply.body.count, ends)) == 1


async def judge(app: App, dice: random.Random) -> None:
    """Decide what is open, as somebody who sometimes errs and sometimes takes time."""
    while True:
        await trio.sleep(dice.choice([0.5, dice.uniform(0, 2)]))
        for question in await approvals(app):
            if dice.random() < 0.6:
                await decide(app, question["id"], **dice.choice(DECISIONS))
        check(app.gateway.backend.pool)


async def cancel(app: App, dice: random.Random) -> None:
    while True:
        await trio.sleep(dice.uniform(0, 4))
        await call(app, f"/admission/requests/{dice.randrange(2 * CLIENTS)}", method="DELETE")


@pytest.mark.parametrize("seed", range(12))
async def test_every_conversation_ends_once_and_leaves_nothing(autojump_clock: MockClock, seed: int) -> None:
    dice = random.Random(seed)
    limits = {"max_parked": dice.choice([0, 1, 2, 10]), "approval_ttl": dice.choice([2, 5, 20])}
    async with one_slot(*(script(dice) for _ in range(8 * CLIENTS)), **limits) as (app, _):
        async with trio.open_nursery() as others:
            for disturb in (judge, judge, cancel):
                others.start_soon(disturb, app, dice)
            async with trio.open_nursery() as clients:
                for number in range(CLIENTS):
                    clients.start_soon(converse, app, dice, str(number))
            others.cancel_scope.cancel()
        assert state(app) == (0, 0, 0, 0)
        assert await approvals(app) == []
