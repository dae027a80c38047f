"""Who has come is let in, however much there is to do."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
import trio
from trio.testing import assert_no_checkpoints

from tests.support.serving import add_views, serving, tasks
from trio_admission_web.serving.app import ServingApp
from trio_admission_web.serving.listener import AT_ONCE, EagerListener

CLIENTS = 50


def connect(stack: ExitStack, address: tuple[str, int], count: int = CLIENTS) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(count)]


async def accept_all(address: tuple[str, int]) -> int:
    """Connect many clients, and return in how many rounds the server has let them in."""
    rounds, before = 0, tasks()
    with ExitStack() as stack:
        connect(stack, address)
        while tasks() < before + CLIENTS:
            await trio.lowlevel.checkpoint()
            rounds += 1
    return rounds


async def test_many_who_have_come_are_let_in_together() -> None:
    app = ServingApp("app")
    add_views(app)
    async with serving(app) as server:
        assert await accept_all(server.address) < CLIENTS / 2


async def test_those_who_were_accepted_together_are_given_out_without_a_pause() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as own, ExitStack() as stack:
        listener = EagerListener(trio.socket.from_stdlib_socket(own.dup()))
        clients = connect(stack, own.getsockname(), AT_ONCE + 1)
        streams = [await listener.accept()]
        with assert_no_checkpoints():
            streams += [await listener.accept() for _ in range(AT_ONCE - 1)]
        streams.append(await listener.accept())
        peers = {stream.socket.getpeername() for stream in streams}
        assert peers == {client.getsockname() for client in clients}
        for stream in streams:
            await stream.aclose()
        await listener.aclose()


async def test_a_closed_listener_says_so() -> None:
    listener = EagerListener(trio.socket.from_stdlib_socket(socket.create_server(("127.0.0.1", 0))))
    await listener.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()
