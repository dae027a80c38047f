"""Backends that load, sleep, hang, go and come back: what becomes of the line, and what is said of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, UPSTREAM, Reply, call, chat, connect, gateway, settings_for
from trio_admission.testing.fake_llama_server import End, FakeLlamaServer, Raw, Request
from trio_admission_web.app import create_app

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission_web.app import App

MESSAGES = "/v1/messages"
WORDS = 4
SERVICE = 4.0  # seconds of one request


def server(**options: Any) -> FakeLlamaServer:
    return FakeLlamaServer(**{"total_slots": 1, "words": WORDS, "interval": SERVICE / WORDS, **options})


async def state(app: App) -> str:
    found = (await call(app, "/admission", method="GET")).json["backends"]["default"]["state"]
    assert isinstance(found, str)
    return found


class Asked:
    """Requests that run in a nursery, and their answers in the order in which these ended."""

    def __init__(self, app: App, nursery: trio.Nursery) -> None:
        self._app = app
        self._nursery = nursery
        self.ended: list[tuple[int, Reply]] = []

    async def begin(self, *numbers: int, stream: bool = True, path: str = CHAT) -> None:
        """Send one after the other."""
        for number in numbers:
            self._nursery.start_soon(self._ask, number, path, chat(stream=stream, max_tokens=100))
            await wait_all_tasks_blocked()

    async def _ask(self, number: int, path: str, body: dict[str, Any]) -> None:
        self.ended.append((number, await call(self._app, path, body)))


async def test_requests_wait_while_the_model_loads_and_are_told_so(autojump_clock: MockClock) -> None:
    llama = server(loading=True)
    async with gateway(llama) as app, trio.open_nursery() as nursery:
        asked = Asked(app, nursery)
        await asked.begin(1)
        await asked.begin(2, path=MESSAGES)
        await asked.begin(3, stream=False)
        await trio.sleep(20)
        assert await state(app) == "loading"
        assert llama.total == 0
        llama.loading = False
    assert [number for number, _ in asked.ended] == [1, 2, 3]
    chatted, messaged, whole = (reply for _, reply in asked.ended)
    assert b": queued position=1 backend=loading\n\n" in chatted.body
    assert b'"position":2,"backend":"loading"' in messaged.body
    assert [reply.status for reply in (chatted, messaged, whole)] == [200] * 3
    assert b"[DONE]" in chatted.body
    assert b"message_stop" in messaged.body
    assert whole.json["choices"][0]["finish_reason"] == "stop"


async def test_a_line_goes_on_in_its_old_order_when_the_server_is_back(autojump_clock: MockClock) -> None:
    llama = server()
    async with gateway(llama) as app, trio.open_nursery() as nursery:
        asked = Asked(app, nursery)
        await asked.begin(1, 2, 3, 4)
        await trio.sleep(1.5)  # the first one has had a word
        llama.crash()
        await wait_all_tasks_blocked()
        assert await state(app) == "gone"
        await asked.begin(5)  # newcomers line up too
        await trio.sleep(30)
        llama.restart()
    (cut, broken), *rest = asked.ended
    assert cut == 1
    assert b'"code":"bad_gateway"' in broken.body
    assert [number for number, _ in rest] == [2, 3, 4, 5]
    assert all(b'"finish_reason":"stop"' in reply.body for _, reply in rest)
    assert all(b" backend=gone\n\n" in reply.body for _, reply in rest)


async def test_a_request_without_a_byte_keeps_its_slot_and_is_sent_again(autojump_clock: MockClock) -> None:
    llama = server()
    llama.script(Raw(End.SILENCE))
    async with gateway(llama) as app:
        async with trio.open_nursery() as nursery:
            asked = Asked(app, nursery)
            await asked.begin(1, 2)
            await trio.sleep(5)
            llama.crash()
            await trio.sleep(20)
            llama.restart()
        assert llama.total == 3
    assert [number for number, _ in asked.ended] == [1, 2]
    assert all(b'"finish_reason":"stop"' in reply.body for _, reply in asked.ended)
    assert b": keepalive backend=gone\n\n" in asked.ended[0][1].body


async def test_a_server_that_loads_again_unnoticed_is_waited_for_and_asked_once_more(
    autojump_clock: MockClock,
) -> None:
    llama = server()
    async with gateway(llama) as app:
        async with trio.open_nursery() as nursery:
            asked = Asked(app, nursery)
            llama.loading = True
            await asked.begin(1, 2)
            await asked.begin(3, stream=False)
            assert (await call(app, "/ready", method="GET")).status == 503
            await trio.sleep(20)
            llama.loading = False
        posts = [json.loads(each.body).get("stream") for each in llama.requests if each.path == CHAT]
    assert [number for number, _ in asked.ended] == [1, 2, 3]
    assert len(posts) == 4  # nobody but the first was sent too early
    assert all(reply.status == 200 and b"error" not in reply.body for _, reply in asked.ended)
    assert b" backend=loading\n\n" in asked.ended[0][1].body


async def test_a_server_that_only_ever_loads_is_unavailable(autojump_clock: MockClock) -> None:
    loading = Raw.answer(
        503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    )
    llama = server()
    async with gateway(llama) as app:
        llama.script(loading, loading)
        reply = await call(app, CHAT, chat())
        assert llama.total == 2
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (
        503,
        "backend_unavailable",
        "2",
    )


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize"])
async def test_light_requests_to_a_server_that_loads_again_are_told_when_to_come_back(
    autojump_clock: MockClock, path: str
) -> None:
    llama = server()
    async with gateway(llama) as app:
        llama.loading = True
        reply = await call(app, path, {"content": "a"}, method="POST" if path == "/tokenize" else "GET")
        assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")
        assert reply.headers["retry-after"] == "2"
        await wait_all_tasks_blocked()
        assert await state(app) == "loading"


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_when_to_come_back_is_passed_on(autojump_clock: MockClock, path: str, status: int) -> None:
    busy = Raw.answer(status, {"error": {"message": "busy"}}, headers=[("Retry-After", "7")])

    async def reply(request: Request) -> Raw | None:
        return busy if request.path == path else None

    async with gateway(FakeLlamaServer(reply=reply)) as app:
        told = await call(app, path, chat())
    assert (told.status, told.error, told.headers["retry-after"]) == (status, {"message": "busy"}, "7")


async def test_a_server_that_comes_back_smaller_is_sent_no_more_than_it_takes(
    autojump_clock: MockClock,
) -> None:
    llama = server(total_slots=4)
    async with gateway(llama) as app, trio.open_nursery() as nursery:
        asked = Asked(app, nursery)
        await asked.begin(*range(10))
        assert llama.in_flight == 4
        await trio.sleep(1.5)
        llama.restart(total_slots=1)
        most = 0
        while len(asked.ended) < 10:
            await trio.sleep(0.5)
            most = max(most, llama.in_flight)
    assert most == 1
    assert sum(b'"finish_reason":"stop"' in reply.body for _, reply in asked.ended) == 6


async def test_who_is_in_the_line_is_told_when_the_server_stays_away(autojump_clock: MockClock) -> None:
    llama = server()
    llama.script(Raw(End.SILENCE))
    async with gateway(llama, away_limit=40.0) as app:
        async with trio.open_nursery() as nursery:
            asked = Asked(app, nursery)
            await asked.begin(1, 2)
            await asked.begin(3, stream=False)
            llama.crash()
        assert trio.current_time() == pytest.approx(40, abs=10)
        assert all(b"backend_unavailable" in reply.body for _, reply in asked.ended)
        _, whole = next(each for each in asked.ended if each[0] == 3)
        assert (whole.status, whole.headers["retry-after"]) == (503, "2")
        newcomer = await call(app, CHAT, chat(stream=True))
        assert (newcomer.status, newcomer.error["code"]) == (503, "backend_unavailable")
        assert newcomer.seconds == 0
        llama.restart()
        await trio.sleep(6)
        assert (await call(app, CHAT, chat())).status == 200


async def test_a_server_that_was_never_there_refuses_at_once(autojump_clock: MockClock) -> None:
    async def refuse(_host: str, _port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError

    app = create_app(settings_for(UPSTREAM), network=refuse)
    async with app.test_app():
        await wait_all_tasks_blocked()
        reply = await call(app, CHAT, chat(stream=True))
        assert (reply.status, reply.error["code"], reply.seconds) == (503, "backend_unavailable", 0)
        ready = await call(app, "/ready", method="GET")
        assert (ready.status, ready.error["code"]) == (503, "backend_unavailable")


async def test_a_sleeping_server_is_served_and_not_kept_awake(autojump_clock: MockClock) -> None:
    async def asleep(request: Request) -> Raw | None:
        return Raw.answer(200, {"total_slots": 1, "is_sleeping": True}) if request.path == "/props" else None

    llama = server(reply=asleep)
    async with gateway(llama) as app:
        assert await state(app) == "sleeping"
        assert (await call(app, "/ready", method="GET")).json["backends"] == {"default": "sleeping"}
        await trio.sleep(600)
        assert not [each for each in llama.requests if each.path == "/slots"]
        assert (await call(app, CHAT, chat())).status == 200


async def test_a_server_that_takes_requests_and_does_not_answer_is_wedged(autojump_clock: MockClock) -> None:
    stuck = False

    async def reply(request: Request) -> Raw | None:
        return Raw(End.SILENCE) if stuck and request.path == "/slots" else None

    llama = server(reply=reply, words=1, interval=40.0)
    async with gateway(llama, idle_limit=90.0) as app, trio.open_nursery() as nursery:
        asked = Asked(app, nursery)
        await asked.begin(1, 2)
        stuck = True  # it still answers /health, and decodes no more
        await trio.sleep(15)
        assert await state(app) == "wedged"
        await trio.sleep(20)
        stuck = False
        await trio.sleep(10)
        assert await state(app) == "ready"


async def test_other_servers_than_llama_server_are_served_too(autojump_clock: MockClock) -> None:
    async def reply(request: Request) -> Raw | None:
        return Raw.answer(404, {"detail": "Not Found"}) if request.path in {"/health", "/props"} else None

    async with gateway(server(reply=reply), slots=3) as app:
        assert await state(app) == "unknown"
        assert app.gateway.backend.pool.statistics().slots == 3
        assert (await call(app, CHAT, chat())).status == 200


async def test_a_client_may_leave_while_its_request_waits_for_the_server(autojump_clock: MockClock) -> None:
    llama = server(prefill=10.0)
    async with gateway(llama) as app:
        async with connect(app) as connection:
            await connection.send(b'{"messages": [], "stream": true}')
            await connection.send_complete()
            await trio.sleep(5)
            llama.crash()
            await trio.sleep(5)
            await connection.disconnect()
        await trio.sleep(1)
        assert not app.gateway.passages
        llama.restart()
        await trio.sleep(6)
        assert llama.total == 1


async def test_a_drain_does_not_wait_for_a_server_that_is_gone_beyond_its_deadline(
    autojump_clock: MockClock,
) -> None:
    llama = server()
    llama.script(Raw(End.SILENCE))
    async with gateway(llama) as app, trio.open_nursery() as nursery:
        asked = Asked(app, nursery)
        await asked.begin(1, 2)
        llama.crash()
        with trio.move_on_after(10):
            await app.gateway.drain()
        await wait_all_tasks_blocked()
        assert all(b'"code":"draining"' in reply.body for _, reply in asked.ended)
