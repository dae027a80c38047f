"""What the gateway learns of its server, and what it makes of it."""

from __future__ import annotations

import errno
import logging
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, UPSTREAM, call, chat, gateway, settings_for
from trio_admission.testing.fake_llama_server import End, FakeLlamaServer, Raw, Reply, Request
from trio_admission_web.app import create_app

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission_web.app import App


def answering(path: str, *replies: Reply | None) -> FakeLlamaServer:
    """A server of 4 slots that answers ``path`` with these, one after the other; the last one stays."""
    left = list(replies)

    async def reply(request: Request) -> Reply | None:
        if request.path != path:
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return FakeLlamaServer(total_slots=4, reply=reply)


async def slots(app: App) -> int:
    found = (await call(app, "/admission", method="GET")).json["backends"]["default"]["slots"]
    assert isinstance(found, int)
    return found


async def test_the_pool_has_the_slots_that_the_server_has(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer(total_slots=6)) as app:
        assert await slots(app) == 6


async def test_a_server_that_serves_is_asked_rarely_and_its_slots_only_while_it_works(
    autojump_clock: MockClock,
) -> None:
    server = FakeLlamaServer(words=1, interval=25.0)
    async with gateway(server) as app:
        await trio.sleep(3600)
        assert {each.path for each in server.requests} == {"/health", "/props"}
        assert len(server.requests) < 800
        await call(app, CHAT, chat())
    looks = [each.arrived for each in server.requests if each.path == "/slots"]
    assert len(looks) >= 2
    assert min(after - before for before, after in pairwise(looks)) >= 2


@pytest.mark.parametrize(("configured", "used"), [(2, 2), (9, 4)])
async def test_fewer_slots_may_be_used_but_never_more(
    autojump_clock: MockClock, configured: int, used: int
) -> None:
    async with gateway(FakeLlamaServer(total_slots=4), slots=configured) as app:
        assert await slots(app) == used


@pytest.mark.parametrize(
    "props",
    [
        Raw.answer(401, {"error": {"code": 401, "message": "Invalid API Key"}}),
        Raw.answer(404, {"error": {"code": 404, "message": "File Not Found"}}),
        Raw.answer(200, {}),
        Raw.answer(200, {"total_slots": 0}),
        Raw.answer(200, {"total_slots": -1}),
        Raw.answer(200, {"total_slots": "4"}),
        Raw.answer(200, {"total_slots": True}),
        Raw.answer(200, {"total_slots": None}),
        Raw.answer(200, [4]),
        Raw.answer(200, "<html>", content_type="text/html"),
        Raw.answer(307, b"", headers=[("Location", "http://elsewhere.test/props")]),
        Raw(End.SILENCE),
    ],
)
@pytest.mark.parametrize("configured", [None, 3])
async def test_without_a_sane_number_the_pool_stays_small(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    props: Raw,
    configured: int | None,
) -> None:
    server = answering("/props", props)
    async with gateway(server, slots=configured) as app:
        await trio.sleep(600)
        assert await slots(app) == (configured or 1)
        assert (await call(app, CHAT, chat())).status == 200
    said = [r for r in caplog.records if r.levelno >= logging.WARNING and "slots" in r.message]
    assert len(said) == 1  # and says so once


async def test_slots_are_learned_when_the_server_has_loaded_its_model(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=4, loading=True)
    async with gateway(server) as app:
        await trio.sleep(20)
        assert await slots(app) == 1
        assert (await call(app, "/ready", method="GET")).status == 503
        server.loading = False
        await trio.sleep(40)
        assert await slots(app) == 4
        ready = await call(app, "/ready", method="GET")
        assert (ready.status, ready.json) == (200, {"status": "ready", "backends": {"default": "ready"}})


async def test_a_restart_with_more_slots_is_used_at_once_by_those_who_wait(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=100.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(call, app, CHAT, chat())
        await wait_all_tasks_blocked()
        assert server.in_flight == 1
        server.restart(total_slots=4)
        await wait_all_tasks_blocked()
        assert server.in_flight == 4


@pytest.mark.parametrize(
    "health",
    [
        Raw.answer(200, "<html></html>", content_type="text/html"),
        Raw.answer(200, {}),
        Raw.answer(200, {"status": "loading model"}),
        Raw.answer(200, ["ok"]),
        Raw(5.0, *Raw.answer(200, {"status": "ok"}).steps),
        Raw.answer(404, {"status": "ok"}),
        Raw.answer(401, {"status": "ok"}),
        Raw.answer(302, b"", headers=[("Location", "/other")]),
        Raw.answer(503, {"error": {"message": "Loading model", "code": 503}}),
        Raw(End.RESET),
        Raw(b"nonsense\r\n\r\n", End.CLOSE),
    ],
)
async def test_only_a_healthy_server_makes_the_gateway_ready(autojump_clock: MockClock, health: Raw) -> None:
    async with gateway(answering("/health", health)) as app:
        for path, status in (("/ready", 503), ("/health", 200)):
            reply = await call(app, path, method="GET")
            assert (reply.status, reply.seconds <= 2.0) == (status, True)


async def test_an_unready_backend_says_when_to_come_again(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.crash()
        reply = await call(app, "/ready", method="GET")
    assert reply.error["code"] == "backend_unavailable"
    assert int(reply.headers["retry-after"]) > 0


async def test_a_server_that_never_was_there_is_told_by_its_address_and_is_not_gone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_host: str, _port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "secret")

    app = create_app(settings_for("http://llama.test:81/secret", api_key="secret"), network=refuse)
    async with app.test_app():
        await wait_all_tasks_blocked()
    [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.getMessage() == (
        "backend default at http://llama.test:81 is not there: /health cannot be asked (connection refused)"
    )


async def test_a_server_that_was_there_is_gone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeLlamaServer()
    async with gateway(server):
        server.crash()
        await trio.sleep(20)
    assert f"backend default at {UPSTREAM} is gone: /health cannot be asked" in caplog.text


@pytest.mark.parametrize(
    ("key", "says"), [(None, "wants a key"), ("other", "refuses the key that it is sent")]
)
async def test_a_server_whose_key_is_not_known_is_told_of_once_by_the_name_of_the_flag(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, key: str | None, says: str
) -> None:
    server = FakeLlamaServer(api_key="secret", total_slots=4)
    async with gateway(server, api_key=key) as app:
        await trio.sleep(60)
        ready = await call(app, "/ready", method="GET")
        shown = (await call(app, "/admission", method="GET")).json["backends"]["default"]
        [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
        server.api_key = None
        assert (await call(app, "/ready", method="GET")).status == 200
        assert await slots(app) == 4
    told = (record.getMessage(), ready.error["message"], shown["reason"])
    assert all(f"it {says}; --upstream-api-key" in each for each in told)
    assert (ready.status, ready.error["code"], shown["state"]) == (503, "backend_unavailable", "refusing")


async def test_that_props_alone_are_locked_by_a_proxy_refuses_nothing(autojump_clock: MockClock) -> None:
    async with gateway(answering("/props", Raw.answer(401, b"<html>"))) as app:
        assert (await call(app, "/ready", method="GET")).status == 200


@pytest.mark.parametrize(
    ("configured", "said"), [(None, "has 4 slots"), (2, "has 4 slots; it is sent 2 requests at once")]
)
async def test_the_log_does_not_sound_as_if_all_slots_were_busy(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, configured: int | None, said: str
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway(FakeLlamaServer(total_slots=4), slots=configured):
        pass
    [line] = [each.getMessage() for each in caplog.records if "slots" in each.getMessage()]
    assert line == f"backend default {said}"
