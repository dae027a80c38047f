"""What one client sends harms nobody else."""

from __future__ import annotations

import binascii
import logging
from typing import Any

import pytest
import trio
from h11 import LocalProtocolError
from hypercorn.logging import Logger
from quart_trio import QuartTrio

from tests.support.serving import add_views, descriptors, get, serving, tasks, until
from trio_admission_web.serving.app import ServingApp

WEBSOCKET = b"trailing".join((
    get(
        "/",
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    b"",
))
H2C = get("/", "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAA")
upgrades = pytest.mark.parametrize("upgrade", [WEBSOCKET, H2C], ids=["websocket", "h2c"])


class FullDisk(Logger):
    """An access log that cannot be written. Hypercorn writes it in the task that reads from the client."""

    async def access(self, *_: Any) -> None:
        """Fail."""
        raise RuntimeError("no space left")


@upgrades
async def test_an_upgrade_is_ignored_and_the_request_answered(upgrade: bytes) -> None:
    app = ServingApp("app")
    add_views(app)
    async with serving(app) as server:
        assert await server.status(upgrade) == 200
        assert await server.status(get()) == 200


@upgrades
async def test_stock_hypercorn_dies_of_the_same_upgrade(stock: None, upgrade: bytes) -> None:
    app = QuartTrio("app")
    add_views(app)
    with pytest.raises(BaseExceptionGroup) as died:
        async with serving(app) as server, server.client(upgrade) as client:
            await client.read_to_end()
            await trio.sleep_forever()
    assert died.value.subgroup((LocalProtocolError, binascii.Error))


async def test_a_failing_connection_is_logged_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    app = ServingApp("app")
    add_views(app)
    async with serving(app, logger_class=FullDisk) as server:
        before = descriptors(), tasks()
        async with server.client(get("/events")) as client:
            await client.read_until(b"data: x")
        await until(lambda: (descriptors(), tasks()) == before)
        async with server.client(get("/silent")):
            await until(lambda: tasks() > before[1])
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert {record.getMessage() for record in failures} == {"A connection failed and was dropped"}
    assert all(record.exc_info and "no space left" in str(record.exc_info) for record in failures)


async def test_stock_hypercorn_dies_of_the_same_failure(stock: None) -> None:
    app = QuartTrio("app")
    add_views(app)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="no space left"), flatten_subgroups=True):
        async with serving(app, logger_class=FullDisk) as server:
            async with server.client(get("/events")) as client:
                await client.read_until(b"data: x")
            await trio.sleep_forever()


@pytest.mark.parametrize("target", ["?x", "http://[x/"])
async def test_a_target_that_quart_cannot_take_apart_is_a_bad_request(target: str) -> None:
    app = ServingApp("app")
    async with serving(app) as server:
        assert await server.status(get(target)) == 400
