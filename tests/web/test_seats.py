"""Which slot a request is sent to, and what becomes of the conversation that was there."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, call, gateway
from tests.support.tools import PLACES
from trio_admission.testing.fake_llama_server import (
    End,
    FakeLlamaServer,
    Raw,
    Reply,
    Request,
    Script,
    ToolCall,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from trio_admission_web.app import App

ISOLATED = {"kv_cache": "isolated"}
CALLING = Script(tool_calls=(ToolCall("look_up", ("{}",)),))
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
LONG = 400  # words, enough for a file


@dataclass
class Talk:
    """One conversation with the gateway, or the beginning of one."""

    app: App
    name: str
    words: int = 20
    messages: list[dict[str, Any]] = field(default_factory=list)
    ticket: str | None = None

    def __post_init__(self) -> None:
        text = " ".join(f"{self.name}{number}" for number in range(self.words))
        self.messages.append({"role": "user", "content": text})

    async def turn(self, **members: Any) -> dict[str, Any]:
        """Ask, and return what the server had to say of the cost; the next turn is prepared."""
        headers = {} if self.ticket is None else {"admission-resume": self.ticket}
        answer = await call(self.app, CHAT, {"messages": self.messages, **members}, headers=headers)
        assert answer.status == 200
        self.ticket = answer.headers.get("admission-resume")
        self.messages.append(answer.json["choices"][0]["message"])
        self.messages.append({"role": "user", "content": "Go on."})
        timings: dict[str, Any] = answer.json["timings"]
        return timings

    async def call_tool(self, server: FakeLlamaServer) -> dict[str, Any]:
        """Let the model call a tool of the client, which makes it hold a ticket."""
        server.script(CALLING)
        timings = await self.turn(tools=TOOLS)
        assert self.ticket is not None
        return timings

    async def bring(self) -> dict[str, Any]:
        """Come back with the tool's result."""
        return await self.turn(tools=TOOLS)


async def displaced(app: App, server: FakeLlamaServer) -> Talk:
    """A conversation that holds a ticket, and whose slot another one has had since."""
    talk = Talk(app, "ox", LONG)
    await talk.call_tool(server)
    await Talk(app, "elk").turn()
    return talk


def slots(server: FakeLlamaServer) -> list[int]:
    """Where each request was decoded."""
    return [slot for request in server.generations for slot in request.slots]


def pins(server: FakeLlamaServer) -> list[int | None]:
    """Which slot each request has named."""
    return [json.loads(request.body).get("id_slot") for request in server.generations]


def message(app: App) -> partial[Any]:
    """A request that cannot be pinned."""
    body = {"max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
    return partial(call, app, "/v1/messages", body)


async def test_each_conversation_stays_in_its_slot(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=3)
    async with gateway(server, **ISOLATED) as app:
        talks = [Talk(app, name) for name in ("ox", "elk", "hen")]
        for _ in range(3):
            for talk in talks:
                await talk.turn()
    assert pins(server) == slots(server) == [0, 1, 2] * 3


async def test_a_named_conversation_stays_in_its_slot_whatever_it_says(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=3)
    async with gateway(server, **ISOLATED) as app:
        for name in ("tea", "coffee", "tea"):
            body = {"prompt": f"{trio.current_time()}", "admission": {"conversation": name}}
            await call(app, "/v1/completions", body)
    assert slots(server) == [0, 1, 0]
    assert all("admission" not in json.loads(each.body) for each in server.generations)


@pytest.mark.parametrize("backend", [{}, {"kv_cache": "unified"}, {"kv_tokens": 100_000}])
async def test_a_server_that_is_not_known_to_have_isolated_slots_chooses_itself(
    autojump_clock: MockClock, backend: dict[str, Any]
) -> None:
    server = FakeLlamaServer(total_slots=3)
    async with gateway(server, **backend) as app:
        await Talk(app, "ox").turn(id_slot=1)
    assert pins(server) == [None]
    assert not [each for each in server.requests if each.path.startswith("/slots")]


async def test_nobody_is_pinned_while_the_server_is_about_to_seat_somebody(autojump_clock: MockClock) -> None:
    async def slowly(request: Request) -> Reply | None:
        if "messages" in request.path:
            await trio.sleep(3)
        return None

    server = FakeLlamaServer(total_slots=3, words=10, interval=1.0, reply=slowly)
    async with gateway(server, **ISOLATED) as app, trio.open_nursery() as nursery:
        await Talk(app, "ox").turn()
        nursery.start_soon(message(app))
        await wait_all_tasks_blocked()
        nursery.start_soon(Talk(app, "elk").turn)
        await trio.sleep(5)
        await Talk(app, "hen").turn()
    assert [pin is None for pin in pins(server)] == [False, True, True, False]
    assert not any(each.corrupted for each in server.generations)


async def test_one_that_the_server_seats_waits_for_those_who_are_on_their_way_to_a_slot(
    autojump_clock: MockClock,
) -> None:
    async def slowly(request: Request) -> Reply | None:
        if request.path == CHAT:
            await trio.sleep(3)
        return None

    server = FakeLlamaServer(total_slots=2, reply=slowly)
    async with gateway(server, **ISOLATED) as app, trio.open_nursery() as nursery:
        nursery.start_soon(Talk(app, "ox").turn)
        await trio.sleep(1)
        nursery.start_soon(message(app))
    pinned, seated = server.generations
    assert pinned.launched is not None
    assert seated.launched is not None
    assert seated.launched >= pinned.launched
    assert not pinned.corrupted


async def test_a_slot_is_looked_at_before_it_is_named_again_after_a_cancel(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeLlamaServer(total_slots=1, prefill=20.0)
    async with gateway(server, **ISOLATED) as app:
        await Talk(app, "ox").turn()
        server.slots_endpoint = False  # so nothing says when the server has noticed that the client left
        await call(app, CHAT, {"messages": Talk(app, "elk").messages}, leave_after=5)
        await Talk(app, "hen").turn()
        server.slots_endpoint = True
        await Talk(app, "cow").turn()
    assert pins(server) == [0, 0, None, 0]
    assert not any(each.corrupted for each in server.generations)
    assert [r.message for r in caplog.records].count(
        "backend default does not say which slots are idle: none is chosen"
    ) == 1


async def test_a_server_that_comes_back_with_fewer_slots_is_not_told_of_those_that_it_had(
    autojump_clock: MockClock,
) -> None:
    server = FakeLlamaServer(total_slots=4)
    async with gateway(server, **ISOLATED) as app:
        talks = [Talk(app, name) for name in ("ox", "elk", "hen", "cow")]
        for talk in talks:
            await talk.turn()
        server.restart(total_slots=2)
        await trio.sleep(20)
        for talk in talks:
            assert (await talk.turn())["cache_n"] < 20
    assert pins(server) == [0, 1, 2, 3, 0, 1, 0, 1]


@dataclass
class Disk:
    """Makes the files that the fake server only claims to write. ``actions`` is what it was told of slots."""

    directory: Path
    actions: list[str] = field(default_factory=list)
    instead: Reply | None = None

    async def reply(self, request: Request) -> Reply | None:
        await trio.lowlevel.checkpoint()
        if request.path.startswith("/slots/"):
            action = request.query.removeprefix("action=")
            self.actions.append(f"{action} {request.path[-1]}")
            if self.instead is not None:
                return self.instead
            if action == "save":
                (self.directory / json.loads(request.body)["filename"]).touch()
        return None

    def server(self, **options: Any) -> FakeLlamaServer:
        options = {"total_slots": 1, "slot_save": True, "reply": self.reply, **options}
        return FakeLlamaServer(**options)

    @property
    def backend(self) -> dict[str, Any]:
        return {"kv_cache": "isolated", "slot_save_path": str(self.directory), "max_parked": 9}

    @property
    def files(self) -> list[str]:
        return sorted(each.name for each in self.directory.iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


async def test_what_somebody_comes_back_to_is_saved_and_restored(
    autojump_clock: MockClock, disk: Disk
) -> None:
    server = disk.server()
    async with gateway(server, **disk.backend) as app:
        talk = Talk(app, "ox", LONG)
        left = await talk.call_tool(server)
        await Talk(app, "elk").turn()
        assert len(disk.files) == 1
        back = await talk.bring()
        assert back["cache_n"] >= left["prompt_n"]
        assert disk.files == []
    assert disk.actions == ["save 0", "restore 0"]


async def test_a_parked_conversation_is_saved_and_restored(autojump_clock: MockClock, disk: Disk) -> None:
    server = disk.server()
    async with gateway(server, tools=PLACES, **disk.backend) as app, trio.open_nursery() as nursery:
        server.script(Script(tool_calls=(ToolCall("nap", ('{"seconds": 50}',)),)))
        members = {"admission": {"tools": ["nap"]}}
        answers: list[dict[str, Any]] = []

        async def ask() -> None:
            answers.append(await Talk(app, "ox", LONG).turn(**members))

        nursery.start_soon(ask)
        await trio.sleep(10)
        await Talk(app, "elk").turn()
        assert len(disk.files) == 1
    assert answers[0]["cache_n"] >= LONG
    assert disk.actions == ["save 0", "restore 0"]
    assert disk.files == []


async def test_a_file_goes_with_the_client_that_was_parked(autojump_clock: MockClock, disk: Disk) -> None:
    server = disk.server()
    async with gateway(server, tools=PLACES, **disk.backend) as app, trio.open_nursery() as nursery:
        server.script(Script(tool_calls=(ToolCall("nap", ('{"seconds": 50}',)),)))
        body = {"messages": Talk(app, "ox", LONG).messages, "admission": {"tools": ["nap"]}}
        nursery.start_soon(partial(call, app, CHAT, body, leave_after=20))
        await trio.sleep(10)
        await Talk(app, "elk").turn()
        assert len(disk.files) == 1
        await trio.sleep(15)
        assert disk.files == []
    assert disk.actions == ["save 0"]


async def test_it_is_restored_into_whichever_slot_is_free(autojump_clock: MockClock, disk: Disk) -> None:
    server = disk.server(total_slots=2)
    async with gateway(server, **disk.backend) as app, trio.open_nursery() as nursery:
        talk = Talk(app, "ox", LONG)
        left = await talk.call_tool(server)
        server.script(Script(interval=0.1), Script(interval=10.0))
        for name in ("elk", "hen"):
            nursery.start_soon(Talk(app, name).turn)
            await wait_all_tasks_blocked()
        await trio.sleep(10)
        assert (await talk.bring())["cache_n"] >= left["prompt_n"]
    assert disk.actions == ["save 0", "restore 1"]


@pytest.mark.parametrize("what", ["short", "unawaited", "late"])
async def test_nothing_is_saved_that_is_not_worth_it(
    autojump_clock: MockClock, disk: Disk, what: str
) -> None:
    server = disk.server()
    async with gateway(server, **disk.backend, resume_ttl=60.0) as app:
        talk = Talk(app, "ox", 100 if what == "short" else LONG)
        await (talk.turn() if what == "unawaited" else talk.call_tool(server))
        if what == "late":
            await trio.sleep(61)
        await Talk(app, "elk").turn()
    assert disk.actions == []


async def test_a_file_goes_when_its_ticket_has_expired(autojump_clock: MockClock, disk: Disk) -> None:
    server = disk.server()
    async with gateway(server, **disk.backend, resume_ttl=60.0) as app:
        talk = await displaced(app, server)
        assert disk.files
        await trio.sleep(80)
        assert not disk.files
        await talk.bring()
    assert disk.actions == ["save 0"]


async def test_the_oldest_file_goes_when_there_are_too_many(autojump_clock: MockClock, disk: Disk) -> None:
    server = disk.server()
    limit = int(2.5 * LONG * 23_040)  # the fake's bytes for a token
    async with gateway(server, **disk.backend, slot_files_limit=limit) as app:
        talks = [Talk(app, name, LONG) for name in ("ox", "elk", "hen")]
        for talk in talks:
            await talk.call_tool(server)
        assert len(disk.files) == 2
        await Talk(app, "cow").turn()
        assert len(disk.files) == 2
        cached = [(await talk.bring())["cache_n"] for talk in talks]
        assert [each >= LONG for each in cached] == [False, True, True]
    assert not disk.files


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (Raw.answer(501, {"error": {"code": 501}}), "it answers 501 when it shall save one"),
        (Raw.answer(200, {"n_saved": 500, "n_written": 1}), "it does not save them to"),
    ],
)
async def test_a_server_that_cannot_save_is_not_asked_again(
    autojump_clock: MockClock, disk: Disk, caplog: pytest.LogCaptureFixture, instead: Raw, reason: str
) -> None:
    server = disk.server()
    disk.instead = instead
    async with gateway(server, **disk.backend) as app:
        for _ in range(2):
            talk = await displaced(app, server)
            await talk.bring()
    assert disk.actions == ["save 0"]
    [warning] = [each.message for each in caplog.records if "slots are no longer saved" in each.message]
    assert reason in warning


async def test_what_is_not_what_it_should_be_is_not_kept(autojump_clock: MockClock, disk: Disk) -> None:
    server = disk.server()
    async with gateway(server, **disk.backend) as app:
        talk = Talk(app, "ox", LONG)
        await talk.call_tool(server)
        server.restart()  # and nobody has noticed it
        await Talk(app, "elk").turn()
        assert not disk.files
        await talk.bring()
    assert disk.actions == ["save 0"]


async def test_a_failed_restore_costs_a_prefill_and_nothing_else(
    autojump_clock: MockClock, disk: Disk
) -> None:
    server = disk.server()
    async with gateway(server, **disk.backend) as app:
        talk = await displaced(app, server)
        server.saved.clear()
        assert (await talk.bring())["cache_n"] < 20
    assert disk.actions == ["save 0", "restore 0"]
    assert not disk.files


async def test_a_restore_that_the_model_cannot_use_is_the_last(
    autojump_clock: MockClock, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a sliding window: the server says that it has restored, and computes everything again."""
    server = disk.server()

    async def forgetful(request: Request) -> Reply | None:
        reply = await disk.reply(request)
        if "restore" in request.query:
            [slot] = server._site.engine.slots
            slot.kv.clear()
            return Raw.answer(200, {"n_restored": LONG, "n_read": 1, "timings": {"restore_ms": 1.0}})
        return reply

    server.reply = forgetful
    async with gateway(server, **disk.backend) as app:
        for _ in range(2):
            talk = await displaced(app, server)
            await talk.bring()
    assert disk.actions == ["save 0", "restore 0"]
    assert len([each for each in caplog.records if "slots are no longer saved" in each.message]) == 1


async def test_only_files_of_this_backend_are_cleared_at_the_start_and_at_the_end(
    autojump_clock: MockClock, disk: Disk
) -> None:
    server = disk.server()
    async with gateway(server, **disk.backend) as app:
        await Talk(app, "ox", LONG).call_tool(server)
        await Talk(app, "elk").turn()
        [ours] = disk.files
    assert not disk.files
    left = [ours[:-5] + "9.bin", "trio-admission-other-1.bin", "mine.bin"]
    for name in left:
        (disk.directory / name).touch()
    async with gateway(disk.server(), **disk.backend):
        assert disk.files == sorted(left[1:])


async def test_a_server_that_was_away_is_looked_at_before_a_slot_is_named(autojump_clock: MockClock) -> None:
    def looks() -> int:
        return sum(each.path == "/slots" for each in server.requests)

    server = FakeLlamaServer(total_slots=2)
    async with gateway(server, **ISOLATED) as app:
        talk = Talk(app, "ox")
        await talk.turn()
        await talk.turn()
        assert looks() == 1
        server.crash()
        await trio.sleep(20)
        server.restart()
        await trio.sleep(20)
        await talk.turn()
        assert looks() == 2
    assert pins(server) == [0, 0, 0]


async def test_a_request_that_is_sent_again_is_placed_again(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=2, prefill=5.0)
    async with gateway(server, **ISOLATED) as app, trio.open_nursery() as nursery:
        talk = Talk(app, "ox")
        await talk.turn()
        server.script(Raw(End.SILENCE))
        nursery.start_soon(partial(talk.turn, stream=False))
        await trio.sleep(2)
        server.restart()
    assert pins(server) == [0, 0, 0]
    assert [each.path for each in server.requests if each.path in {"/slots", CHAT}][-2:] == ["/slots", CHAT]


async def test_a_file_outlives_the_server(autojump_clock: MockClock, disk: Disk) -> None:
    server = disk.server()
    async with gateway(server, **disk.backend) as app:
        talk = Talk(app, "ox", LONG)
        left = await talk.call_tool(server)
        await Talk(app, "elk").turn()
        server.crash()
        await trio.sleep(20)
        server.restart()
        await trio.sleep(20)
        assert (await talk.bring())["cache_n"] >= left["prompt_n"]
    assert disk.actions == ["save 0", "restore 0"]


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_and_goes_nobody_is_spoilt(
    autojump_clock: MockClock, disk: Disk, seed: int
) -> None:
    """With prefills that outlast the patience for a cancelled one, and requests that the server seats."""
    chance = random.Random(seed)
    server = disk.server(total_slots=3)
    async with gateway(server, **disk.backend, resume_ttl=30.0) as app, trio.open_nursery() as nursery:

        async def converse(number: int) -> None:
            talk = Talk(app, f"ox{number}-", chance.choice([20, LONG]))
            for _ in range(chance.randint(1, 4)):
                await trio.sleep(chance.uniform(0, 30))
                prefill = chance.choice([0.0, 0.0, 2.0, 45.0])
                kind = chance.choice(["turn", "turn", "tool", "leave", "seated", "two"])
                tools = (ToolCall("look_up", ("{}",)),) if kind == "tool" else ()
                server.script(Script(prefill=prefill, tool_calls=tools))
                if kind == "leave":
                    body = {"messages": talk.messages}
                    await call(app, CHAT, body, leave_after=chance.uniform(0, 20))
                elif kind == "seated":
                    await message(app)()
                else:
                    await talk.turn(tools=TOOLS, n=2 if kind == "two" else 1)

        for number in range(25):
            nursery.start_soon(converse, number)
    assert len(server.generations) > 40
    assert len({pin is None for pin in pins(server)}) == 2
    assert not any(each.corrupted for each in server.generations)
    assert not disk.files
