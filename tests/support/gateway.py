"""The gateway in this process, in front of a fake server in memory, on whatever clock the test has."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import trio
from trio.testing import wait_all_tasks_blocked

from trio_admission_web.app import App, create_app
from trio_admission_web.keys import ApiKey, hash_key
from trio_admission_web.options import BACKEND
from trio_admission_web.settings import BackendSettings, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from trio_admission.testing.fake_llama_server import FakeLlamaServer
    from trio_admission_web.serving.testing import ServingTestConnection
    from trio_admission_web.upstream import Network

UPSTREAM = "http://llama.test"
CHAT = "/v1/chat/completions"


def settings_for(url: str, **settings: Any) -> Settings:
    """Settings with one backend; those that are a backend's are given to it."""
    of_backend = {option.name for option in BACKEND} & settings.keys()
    backend = BackendSettings(url=url, **{name: settings.pop(name) for name in of_backend})
    return Settings(**{"backends": (backend,), **settings})


def api_key(secret: str, **limits: Any) -> ApiKey:
    """An API key that is called and shown as ``secret``."""
    return ApiKey(**{"name": secret, "hash": hash_key(secret), **limits})


def shown(secret: str) -> dict[str, str]:
    """The header that shows a key."""
    return {"Authorization": f"Bearer {secret}"}


def network_of(servers: Mapping[str, FakeLlamaServer]) -> Network:
    """Connections in memory to several servers, each under its own host."""

    async def connect(host: str, _port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return servers[host].connect()

    return connect


@asynccontextmanager
async def gateway_to(
    *backends: tuple[FakeLlamaServer, dict[str, Any]], **settings: Any
) -> AsyncIterator[App]:
    """Run several servers and the gateway in front of them; afterwards nothing may be held or waiting."""
    servers = {f"{of['name']}.test": server for server, of in backends}
    told = tuple(BackendSettings(**{"url": f"http://{of['name']}.test", **of}) for _, of in backends)
    app = create_app(Settings(backends=told, **settings), network=network_of(servers))
    async with AsyncExitStack() as stack:
        for server in servers.values():
            await stack.enter_async_context(server)
        async with app.test_app():
            await wait_all_tasks_blocked()
            yield app
            await _emptied(app)
            for backend in app.gateway.backends.values():
                counts = backend.pool.statistics()
                assert (counts.held, counts.waiting) == (0, 0)
            assert not app.gateway.passages


@asynccontextmanager
async def gateway(server: FakeLlamaServer, **settings: Any) -> AsyncIterator[App]:
    """Run ``server`` and the gateway in front of it; afterwards nothing may be held, waiting or in flight."""
    app = create_app(settings_for(UPSTREAM, **settings), network=network_of({"llama.test": server}))
    async with server, app.test_app():
        await wait_all_tasks_blocked()  # it has asked for its slots
        yield app
        await _emptied(app)
        counts = app.gateway.backend.pool.statistics()
        assert (counts.held, counts.waiting, len(app.gateway.passages)) == (0, 0, 0)
        with trio.fail_after(2):  # a server that cannot be asked for its slots notices at its next token
            while server.in_flight:  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.01)


async def _emptied(app: App) -> None:
    """Wait for those whose slot the server has not given up yet."""
    with trio.move_on_after(35):
        await wait_all_tasks_blocked()
        while app.gateway.passages:  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.5)


@dataclass
class Reply:
    """What came back, and when: seconds since the request was sent."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(part for _, part in self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


def chat(*, stream: bool = False, **members: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"messages": [{"role": "user", "content": "Hello"}], "stream": stream, **members}


def connect(
    app: App, path: str = CHAT, *, method: str = "POST", headers: Mapping[str, str] | None = None
) -> ServingTestConnection:
    """A request that is sent, read and left step by step; an async context manager."""
    return cast(
        "ServingTestConnection", app.test_client().request(path, method=method, headers=dict(headers or {}))
    )


async def call(
    app: App,
    path: str = CHAT,
    body: bytes | dict[str, Any] = b"",
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    leave_after: float | None = None,
) -> Reply:
    """Send a request and read its whole answer; with ``leave_after`` go away after so many seconds."""
    reply, start = Reply(), trio.current_time()
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with connect(app, path, method=method, headers=headers) as connection:
        with trio.move_on_after(float("inf") if leave_after is None else leave_after):
            await connection.send(raw)
            await connection.send_complete()
            try:
                while True:
                    part = await connection.receive()
                    if part:
                        reply.parts.append((round(trio.current_time() - start, 6), part))
            except trio.EndOfChannel:
                pass
        reply.seconds = round(trio.current_time() - start, 6)
        reply.status = connection.status_code or 0
        reply.headers = dict(connection.headers or {})
        if leave_after is not None:
            await connection.disconnect()
    return reply


async def call_into(reply: Reply, app: App, path: str, body: dict[str, Any], **options: Any) -> None:
    """Do as `call` does; the answer is in ``reply`` when this has returned."""
    vars(reply).update(vars(await call(app, path, body, **options)))
