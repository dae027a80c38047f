"""Requests for tools of the gateway, in front of one slot on a virtual clock, and the people who decide."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.support.gateway import Reply, call, chat, gateway
from tests.support.tools import PLACES
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script, ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio_admission_web.app import App

FIND = ToolCall("find", ['{"what":', '"x"}'])
CALLS = Script(tokens=0, tool_calls=[FIND], interval=1.0)
ANSWERS = Script(tokens=["Here", " it is"], interval=1.0)
MESSAGES = "/v1/messages"


@asynccontextmanager
async def one_slot(*scripts: Script, **settings: Any) -> AsyncIterator[tuple[App, FakeLlamaServer]]:
    """A gateway in front of one slot, on which two words take 2 s."""
    server = FakeLlamaServer(total_slots=1, words=2, interval=1.0)
    async with gateway(server, **{"tools": PLACES, **settings}) as app:
        server.script(*scripts)
        yield app, server


def asking(*tools: str, approval: str = "auto", **members: Any) -> dict[str, Any]:
    """The body of a request for tools of the gateway."""
    return chat(admission={"tools": list(tools), "approval": approval}, **{"stream": True, **members})


def told(reply: Reply) -> list[tuple[float, dict[str, Any]]]:
    """What the client was told of its tools, and when."""
    found = []
    for at, part in reply.parts:
        for event in part.split(b"\n\n"):
            data = event.partition(b"data: ")[2]
            if b'"admission"' in data:
                found.append((at, json.loads(data)["admission"]))
    return found


def text(reply: Reply) -> str:
    """What the model says in a chat's stream."""
    data = [event[6:] for event in reply.body.split(b"\n\n") if event.startswith(b"data: {")]
    parts = [part for each in data for part in json.loads(each)["choices"]]
    return "".join(part["delta"].get("content") or "" for part in parts)


async def approvals(app: App) -> list[dict[str, Any]]:
    found = (await call(app, "/admission/approvals", method="GET")).json["approvals"]
    assert isinstance(found, list)
    return found


async def decide(app: App, name: str | None = None, **body: Any) -> Reply:
    """Answer a question, the first one without a name."""
    name = name or (await approvals(app))[0]["id"]
    return await call(app, f"/admission/approvals/{name}", body or {"decision": "allow"})


def state(app: App) -> tuple[int, int, int, int]:
    """Held, waiting, parked, returning."""
    now = app.gateway.backend.pool.statistics()
    return now.held, now.waiting, now.parked, now.returning
