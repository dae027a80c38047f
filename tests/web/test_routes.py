"""Addresses, methods, ids and errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, api_key, call, chat, connect, gateway, shown
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Raw, Request
from trio_admission_web.routes import ADMITTED, MODELS, NOT_ADMITTED

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_the_models_pass_through_while_all_slots_are_busy(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=100, interval=1.0)
    async with gateway(server) as app, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: call(app, CHAT, chat(), leave_after=5.0))
        await wait_all_tasks_blocked()
        listed = await call(app, "/v1/models?x=1", method="GET")
        assert (listed.status, listed.seconds) == (200, 0)
        assert listed.json["data"][0]["id"] == "fake-model"
        assert server.requests[-1].target == "/v1/models?x=1"
        for path in ("/health", "/ready", "/admission"):
            light = await call(app, path, method="GET")
            assert (light.status, light.seconds) == (200, 0)


@pytest.mark.parametrize("name", ["org/model-7b:q4_k_m", "a", "a b", "org/m/x"])
async def test_one_model_is_found_by_its_id(autojump_clock: MockClock, name: str) -> None:
    async with gateway(FakeLlamaServer(model=name)) as app:
        listed = await call(app, "/v1/models", method="GET")
        for path in MODELS:
            found = await call(app, f"{path}/{name}", method="GET")
            assert (found.status, found.json) == (200, listed.json["data"][0])
        missing = await call(app, f"/v1/models/{name}x", method="GET")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_one_model_of_a_backend_that_refuses_or_is_away(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(model="m")
    async with gateway(server) as app:
        server.api_key = "up"
        assert (await call(app, "/v1/models/m", method="GET")).status == 401
        server.crash()
        assert (await call(app, "/v1/models/m", method="GET")).status == 502


async def test_one_of_the_models_that_are_configured(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer(), models=("a/b", "c")) as app:
        assert (await call(app, "/v1/models/a/b", method="GET")).json["id"] == "a/b"
        assert (await call(app, "/v1/models/fake-model", method="GET")).status == 404


PAGE = {"Origin": "https://chat.example"}
ASKING = PAGE | {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}


@pytest.mark.parametrize("origins", [("https://chat.example",), ("*",)])
async def test_pages_of_other_origins_may_ask_where_the_settings_say_so(
    autojump_clock: MockClock, origins: tuple[str, ...]
) -> None:
    server = FakeLlamaServer()
    keys = (api_key("k"),)
    async with gateway(server, allowed_origins=origins, keys=keys) as app:
        asked = await call(app, CHAT, method="OPTIONS", headers=ASKING)
        assert (asked.status, asked.body) == (204, b"")
        assert asked.headers["access-control-allow-origin"] == "https://chat.example"
        assert asked.headers["access-control-allow-methods"] == "OPTIONS, POST"
        assert asked.headers["access-control-allow-headers"] == "authorization, content-type"
        for body, status in ((chat(stream=True), 200), (chat(), 200), (b"{", 400)):
            reply = await call(app, CHAT, body, headers=PAGE | shown("k"))
            assert (reply.status, reply.headers["vary"]) == (status, "Origin")
            assert reply.headers["access-control-allow-origin"] == "https://chat.example"
            assert "x-request-id" in reply.headers["access-control-expose-headers"]
        refused = await call(app, CHAT, chat(), headers=PAGE)
        assert (refused.status, "access-control-allow-origin" in refused.headers) == (401, True)
    assert all(each.header("Origin") is None for each in server.requests)


@pytest.mark.parametrize("origins", [(), ("https://other.example",)])
async def test_pages_of_other_origins_may_not_otherwise(
    autojump_clock: MockClock, origins: tuple[str, ...]
) -> None:
    async with gateway(FakeLlamaServer(), allowed_origins=origins) as app:
        for method, body in (("OPTIONS", b""), ("POST", chat())):
            reply = await call(app, CHAT, body, method=method, headers=ASKING)
            assert reply.status == 200
            assert not any(name.startswith("access-control") for name in reply.headers)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"content": "x"}), (CHAT, chat())])
async def test_what_the_backend_says_passes_untouched(
    autojump_clock: MockClock, path: str, body: dict[str, object], status: int
) -> None:
    """A5, also for a 401, unless the backend is known to refuse whatever it is asked."""

    async def reply_(request: Request) -> Raw | None:
        return Raw.answer(status, b"{ its own words }") if request.path == path else None

    async with gateway(FakeLlamaServer(reply=reply_)) as app:
        reply = await call(app, path, body)
    assert (reply.status, reply.body) == (status, b"{ its own words }")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer up-SECRET"}])
async def test_that_the_backend_wants_a_key_is_not_said_of_the_clients(
    autojump_clock: MockClock, headers: dict[str, str]
) -> None:
    async with gateway(FakeLlamaServer(api_key="up-SECRET")) as app:
        replies = [
            await call(app, "/v1/models", method="GET", headers=headers),
            await call(app, "/tokenize", {"content": "x"}, headers=headers),
            *[await call(app, CHAT, chat(stream=stream), headers=headers) for stream in (True, False)],
        ]
    assert {(reply.status, reply.error["code"]) for reply in replies} == {(502, "bad_gateway")}
    assert all("--upstream-api-key" in reply.error["message"] for reply in replies)
    assert all("not yours" in reply.error["message"] for reply in replies)


async def test_a_light_request_tells_of_a_backend_that_is_away(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        server.crash()
        lost = await call(app, "/v1/models", method="GET")
        await trio.sleep(11)  # it has been looked at
        away = [
            await call(app, path, b"{}" if method == "POST" else b"", method=method)
            for method, path in (("GET", "/v1/models"), ("GET", "/props"), ("POST", "/tokenize"))
        ]
    assert (lost.status, lost.error["code"]) == (502, "bad_gateway")
    assert [(each.status, each.error["code"]) for each in away] == [(503, "backend_unavailable")] * 3
    assert all(int(each.headers["retry-after"]) >= 1 for each in away)


async def test_a_light_request_does_not_wait_for_a_model_that_loads(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer(loading=True)) as app:
        reply = await call(app, "/v1/models", method="GET")
    assert (reply.status, reply.error["code"], reply.seconds) == (503, "backend_unavailable", 0.0)


@pytest.mark.parametrize(
    "path", ["/", "/v1/chat/completions/", "/v1/nothing", "/admission/requests/", "/../health"]
)
async def test_every_other_address_is_not_found_in_json(autojump_clock: MockClock, path: str) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        for method in ("GET", "POST", "DELETE"):
            reply = await call(app, path, method=method)
            assert (reply.status, reply.headers["content-type"]) == (404, "application/json")
            assert reply.error["type"] == "not_found_error"
            assert reply.json["request_id"] == reply.headers["x-request-id"]
    assert {each.path for each in server.requests} == {"/health", "/props"}


async def test_whoever_opens_the_printed_address_is_told_where_to_go(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer()) as app:
        told = (await call(app, "/", method="GET")).error["message"]
        assert "/v1/chat/completions" in told
        assert "/admission" in told
        assert (await call(app, "/admission", method="GET")).status == 200


async def test_errors_are_written_in_the_dialect_of_the_address(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer()) as app:
        for path in ADMITTED:
            reply = await call(app, path, b"{")
            assert (reply.status, reply.error["code"]) == (400, "invalid_request")
            assert reply.json.get("type") == ("error" if path == "/v1/messages" else None)


async def test_a_wrong_method_is_told_the_right_ones(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer()) as app:
        for path in ADMITTED:
            reply = await call(app, path, method="GET")
            assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
            assert set(reply.headers["allow"].split(", ")) == {"POST", "OPTIONS"}
        for path in NOT_ADMITTED:
            reply = await call(app, path, method="PUT")
            assert (reply.status, "POST" in reply.headers["allow"]) == (405, True)


async def test_head_and_options_are_answered_without_the_backend(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        assert (await call(app, "/health", method="HEAD")).status == 200
        options = await call(app, CHAT, method="OPTIONS")
        assert (options.status, options.body) == (200, b"")
        assert set(options.headers["allow"].split(", ")) == {"POST", "OPTIONS"}
    assert server.total == 0


@pytest.mark.parametrize("given", ["a", "req_1.2:3-4", "x" * 128])
async def test_a_sane_request_id_is_kept(autojump_clock: MockClock, given: str) -> None:
    async with gateway(FakeLlamaServer()) as app:
        reply = await call(app, "/health", method="GET", headers={"X-Request-Id": given})
    assert reply.headers["x-request-id"] == given


@pytest.mark.parametrize(
    "given", ["", "x" * 129, "a\tb", "a b", "%0d%0aX: y", '"} {"level"', "\x1b[31m", "\xe4"]
)
async def test_any_other_request_id_is_replaced(autojump_clock: MockClock, given: str) -> None:
    async with gateway(FakeLlamaServer()) as app:
        first, second = [
            await call(app, "/health", method="GET", headers={"X-Request-Id": given}) for _ in range(2)
        ]
    assert re.fullmatch(r"[0-9a-f]{32}", first.headers["x-request-id"])
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_a_body_that_is_too_large_is_refused(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server, max_body=1000) as app:
        reply = await call(app, CHAT, b" " * 1001)
        assert (reply.status, reply.error["code"], reply.error["limit"]) == (413, "request_too_large", 1000)
        assert (await call(app, CHAT, chat(padding="x" * 800))).status == 200
    assert server.total == 1


@pytest.mark.parametrize("coding", ["gzip", "x-unknown", "identity, gzip"])
async def test_a_body_that_is_said_to_be_packed_is_refused(autojump_clock: MockClock, coding: str) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        for path in (*ADMITTED, *NOT_ADMITTED, "/admission/approvals/x"):
            reply = await call(app, path, chat(), headers={"Content-Encoding": coding})
            assert (reply.status, reply.error["code"]) == (400, "invalid_request"), path
            assert "Content-Encoding" in reply.error["message"]
            assert reply.json.get("type") == ("error" if path.startswith("/v1/messages") else None)
        assert not [each for each in server.requests if each.method == "POST"]
        for nothing in ("identity", "Identity", ""):
            assert (await call(app, CHAT, chat(), headers={"Content-Encoding": nothing})).status == 200


async def test_a_body_that_does_not_come_in_time_is_refused(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server, body_deadline=4.0) as app, connect(app) as client:
        start = trio.current_time()
        await client.send(b"{")
        assert b'"request_timeout"' in await client.receive()
        assert (client.status_code, trio.current_time() - start) == (408, 4.0)
        await client.disconnect()
    assert server.total == 0


async def test_a_large_body_arrives_as_it_was_sent(autojump_clock: MockClock) -> None:
    picture = "data:image/png;base64," + "A" * (17 * 2**20)
    body = chat(images=[picture])
    server = FakeLlamaServer()
    async with gateway(server) as app:
        assert (await call(app, CHAT, {**body, "stream": True})).status == 200
        assert len(server.generations[0].body) > 17 * 2**20


async def test_the_content_type_of_a_request_does_not_matter(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        for given in ("text/plain", "APPLICATION/JSON", "application/json; charset=utf-16"):
            assert (await call(app, CHAT, chat(), headers={"Content-Type": given})).status == 200
        assert (await call(app, CHAT, chat())).status == 200
    assert [each.header("content-type") for each in server.generations] == [
        "text/plain",
        "APPLICATION/JSON",
        "application/json; charset=utf-16",
        "application/json",
    ]


async def test_a_fault_of_the_gateway_is_an_error_like_any_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(FakeLlamaServer()) as app:
        monkeypatch.setattr(app.gateway.backend.upstream, "open", None)
        reply = await call(app, CHAT, chat())
        streamed = await call(app, CHAT, chat(stream=True))
    for each in (reply, streamed):
        assert (each.status, each.error["code"]) == (500, "internal_error")
    assert "a fault of the gateway" in caplog.text


async def test_secrets_of_neither_side_reach_the_other(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {
        "Authorization": "Bearer gw-SECRET1",
        "X-Api-Key": "gw-SECRET2",
        "Api-Key": "gw-SECRET3",
        "Cookie": "session=gw-SECRET4",
        "Proxy-Authorization": "Basic gw-SECRET5",
    }
    caplog.set_level(0)
    server = FakeLlamaServer(api_key="up-SECRET")
    async with gateway(server, api_key="up-SECRET") as app:
        echo = {"error": {"code": 400, "message": "no", "sent": {"authorization": "Bearer up-SECRET"}}}
        server.script(Raw.answer(400, echo))
        replies = [await call(app, CHAT, chat(), headers=headers) for _ in range(2)]
        replies += [
            await call(app, path, method="GET", headers=headers) for path in ("/v1/models", "/admission")
        ]
    assert [each.status for each in replies] == [400, 200, 200, 200]
    assert all(each.header("authorization") == "Bearer up-SECRET" for each in server.requests)
    assert not any(b"gw-SECRET" in each.head for each in server.requests)
    assert "SECRET" not in caplog.text
    assert not any(b"SECRET" in each.body or "SECRET" in str(each.headers) for each in replies)
    assert replies[0].json["error"]["sent"] == {"authorization": "Bearer [key]"}
