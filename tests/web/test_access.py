"""Who may, over HTTP: keys open the gateway, and nobody sees or cancels what is another's."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, Reply, api_key, call, chat, connect, gateway, gateway_to, shown
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer
from trio_admission_web.routes import ADMITTED, MODELS, NOT_ADMITTED

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trio_admission_web.app import App

ADA, BEN, ROOT = api_key("ada"), api_key("ben"), api_key("root", admin=True)
OPERATIONS = ("/metrics", "/props", "/slots", "/admission", "/admission/requests/x")
EVERY = (*ADMITTED, *NOT_ADMITTED, *MODELS, *OPERATIONS, "/", "/v1/nothing", "/static/x")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        shown("eve"),
        {"Authorization": "ada"},
        {"Authorization": "Basic ada"},
        {"Api-Key": "ada"},
        {"Authorization": "Bearer ada", "X-Api-Key": "ben"},
    ],
)
async def test_without_a_known_key_every_address_is_closed_to_every_method(
    autojump_clock: MockClock, headers: dict[str, str]
) -> None:
    server = FakeLlamaServer()
    async with gateway(server, keys=(ADA, BEN)) as app:
        for path in EVERY:
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
                reply = await call(app, path + "?key=ada", b"{", method=method, headers=headers)
                assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
                if method != "HEAD":
                    dialect = "error" if path.startswith("/v1/messages") else None
                    assert (reply.error["code"], reply.json.get("type")) == ("invalid_api_key", dialect)
    assert {each.path for each in server.requests} == {"/health", "/props"}


async def test_a_request_without_a_key_is_refused_before_its_body_comes(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer(), keys=(ADA,)) as app, connect(app) as client:
        await client.send(b"{")  # and no more
        assert b"invalid_api_key" in await client.receive()
        assert (client.status_code, trio.current_time()) == (401, 0)
        await client.disconnect()


async def test_a_request_without_a_key_is_refused_as_such_while_the_line_is_full(
    autojump_clock: MockClock,
) -> None:
    server = FakeLlamaServer(total_slots=1, words=100, interval=1.0)
    async with (
        gateway(server, keys=(ADA,), admission=AdmissionConfig(max_waiting=1)) as app,
        trio.open_nursery() as nursery,
    ):
        for _ in range(2):
            nursery.start_soon(partial(call, app, CHAT, chat(), headers=shown("ada"), leave_after=3.0))
        await wait_all_tasks_blocked()
        assert (await call(app, CHAT, chat(), headers=shown("ada"))).status == 429
        assert (await call(app, CHAT, chat())).status == 401
        assert app.gateway.backend.pool.statistics().waiting == 1


async def test_health_and_preflights_need_no_key(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer(), keys=(ADA,)) as app:
        for path in ("/health", "/ready"):
            assert (await call(app, path, method="GET")).status == 200
        assert (await call(app, CHAT, method="OPTIONS")).status == 200


@pytest.mark.parametrize(
    "headers", [{"Authorization": "Bearer ada"}, {"Authorization": "bearer ada"}, {"X-Api-Key": "ada"}]
)
async def test_a_known_key_opens_the_gateway(autojump_clock: MockClock, headers: dict[str, str]) -> None:
    async with gateway(FakeLlamaServer(), keys=(ADA, BEN)) as app:
        assert (await call(app, CHAT, chat(), headers=headers)).status == 200
        assert (await call(app, "/v1/models", method="GET", headers=headers)).status == 200


async def test_what_an_admin_asks_is_open_to_admins_alone(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer(), keys=(ADA, ROOT)) as app:
        for path in ("/metrics", "/props", "/slots"):
            assert (await call(app, path, method="GET", headers=shown("root"))).status == 200
            for method in ("GET", "HEAD", "POST"):
                assert (await call(app, path, method=method, headers=shown("ada"))).status == 403


async def test_nobody_sees_or_cancels_what_is_anothers(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=9.0)
    team = api_key("tea", flow="ben")
    async with gateway(server, keys=(ADA, BEN, team, ROOT)) as app:
        replies: dict[str, Reply] = {}

        async def ask(name: str, secret: str) -> None:
            headers = {"X-Request-Id": name, **shown(secret)}
            replies[name] = await call(app, CHAT, chat(), headers=headers)

        async with trio.open_nursery() as nursery:
            for name, secret in (("a1", "ada"), ("a2", "ada"), ("b1", "ben")):
                nursery.start_soon(ask, name, secret)
                await wait_all_tasks_blocked()
            assert await view(app, "ada") == {"line": [("a2", "ada")]}
            assert await view(app, "ben") == await view(app, "tea") == {"line": [("b1", "ben")]}
            everything = await view(app, "root")
            assert everything["line"] == [("b1", "ben"), ("a2", "ada")]
            assert (everything["held"], everything["waiting"]) == (1, 2)

            assert await cancelled(app, "b1", by="ada") == await cancelled(app, "zz", by="ada") == 404
            assert await cancelled(app, "a1", by="ben") == 404
            assert await cancelled(app, "b1", by="tea") == 200
            assert await cancelled(app, "a2", by="root") == 200
    assert {name: reply.status for name, reply in replies.items()} == {"a1": 200, "a2": 499, "b1": 499}


async def view(app: App, secret: str) -> dict[str, Any]:
    shown_to = (await call(app, "/admission", method="GET", headers=shown(secret))).json
    backend: dict[str, Any] = shown_to["backends"]["default"]
    return {**backend, "line": [(each["id"], each["flow"]) for each in backend["line"]]}


async def cancelled(app: App, name: str, *, by: str) -> int:
    return (await call(app, f"/admission/requests/{name}", method="DELETE", headers=shown(by))).status


async def test_a_request_can_be_cancelled_while_its_body_is_on_its_way(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=0.1)
    headers = {"X-Request-Id": "it", **shown("ada")}
    async with gateway(server, keys=(ADA, BEN)) as app, connect(app, CHAT, headers=headers) as uploading:
        await uploading.send(b'{"messages": [')
        await wait_all_tasks_blocked()
        assert await cancelled(app, "it", by="ben") == 404
        assert await cancelled(app, "it", by="ada") == 200
        assert json.loads(await uploading.receive())["error"]["code"] == "cancelled"
        assert uploading.status_code == 499
        assert await cancelled(app, "it", by="ada") == 404
    assert server.total == 0


async def test_a_key_has_so_many_requests_here_and_no_more(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=4, words=1, interval=9.0)
    statuses: list[int] = []
    async with gateway(server, keys=(api_key("few", max_requests=2), ADA)) as app:

        async def ask(secret: str) -> None:
            reply = await call(app, CHAT, chat(), headers=shown(secret))
            statuses.append(reply.status)
            if reply.status == 429:
                assert (reply.error["code"], reply.error["limit"]) == ("flow_limit", 2)
                assert 1 <= int(reply.headers["retry-after"]) <= 60

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, "few")
            nursery.start_soon(ask, "ada")
        assert sorted(statuses) == [200] * 3 + [429] * 3
        assert server.total == 3
        statuses.clear()
        await ask("few")  # they have gone
        assert statuses == [200]


@pytest.mark.parametrize(("limit", "served"), [(0, 1), (2, 3)])
async def test_of_a_keys_requests_so_many_wait_and_no_more(
    autojump_clock: MockClock, limit: int, served: int
) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=9.0)
    replies: list[Reply] = []
    async with gateway(server, keys=(api_key("few", max_waiting=limit), ADA)) as app:

        async def ask(secret: str) -> None:
            replies.append(await call(app, CHAT, chat(), headers=shown(secret)))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, "few")
            await wait_all_tasks_blocked()
            nursery.start_soon(ask, "ada")
    refused = [reply for reply in replies if reply.status == 429]
    assert (len(refused), len(replies)) == (5 - served, 6)
    assert {reply.error["code"] for reply in refused} == {"flow_limit"}
    assert {(reply.error["waiting"], reply.error["limit"]) for reply in refused} == {(limit, limit)}


async def test_a_key_may_name_its_models_alone(autojump_clock: MockClock) -> None:
    keys = (api_key("few", models=frozenset({"small"})), ADA)
    big, small = FakeLlamaServer(), FakeLlamaServer()
    backends = ((big, {"name": "b", "models": ("big",)}), (small, {"name": "s", "models": ("small",)}))
    async with gateway_to(*backends, keys=keys) as app:
        for model, status in (("small", 200), ("big", 403), ("none", 403), ("default", 403), (None, 403)):
            for path in (CHAT, "/v1/chat/completions/input_tokens"):
                reply = await call(app, path, chat(model=model), headers=shown("few"))
                assert reply.status == status, (model, path)
        models = await call(app, "/v1/models", method="GET", headers=shown("few"))
        assert [each["id"] for each in models.json["data"]] == ["small"]
        assert (await call(app, CHAT, chat(model="none"), headers=shown("ada"))).status == 404
    assert (big.total, small.total) == (0, 1)


async def test_weight_and_priority_of_a_key_order_the_line(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=1, words=1, interval=1.0)
    keys = (ADA, api_key("heavy", weight=3.0), api_key("first", priority=1))
    order: list[str] = []
    async with gateway(server, keys=keys) as app:

        async def ask(secret: str) -> None:
            await call(app, CHAT, chat(), headers=shown(secret))
            order.append(secret)

        async with trio.open_nursery() as nursery:
            for secret in ("ada", *["ada"] * 8, *["heavy"] * 8, "first"):
                nursery.start_soon(ask, secret)
                await wait_all_tasks_blocked()
    assert order[:2] == ["ada", "first"]
    assert order[2:10].count("heavy") >= 6  # three of four


async def test_without_keys_a_request_from_outside_is_refused(autojump_clock: MockClock) -> None:
    # Hypercorn's own command may have bound any address.
    for settings, server_address, status in (
        ({}, ("192.0.2.1", 8000), 403),
        ({}, ("127.0.0.1", 8000), 200),
        ({}, ("/run/gateway.sock", None), 200),
        ({"insecure": True}, ("192.0.2.1", 8000), 200),
        ({"keys": (ADA,)}, ("192.0.2.1", 8000), 200),
    ):
        async with gateway(FakeLlamaServer(), **settings) as app:
            scope = {"server": server_address}
            response = await app.test_client().get("/admission", headers=shown("ada"), scope_base=scope)
            assert response.status_code == status
            assert json.loads(await response.get_data())
