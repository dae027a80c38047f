"""SIGTERM under load: everybody gets a whole answer or a clear refusal, and the end comes in bounded time."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import trio

from tests.support.command import running
from tests.support.gateway import CHAT, chat
from tests.support.raw_client import RawClient
from tests.support.serving import post, until
from tests.support.tools import PLACES
from tests.support.verdict import verdict, visit
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Request, Script, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SERVE = ("trio_admission_web", "serve", "--port", "0", "--upstream")
LEEWAY = 10  # seconds: the last words, the end of the process, and a busy machine
CALLS = Script(tokens=0, tool_calls=[ToolCall("find", ['{"what": "x"}'])])


async def counts(url: str) -> tuple[int, int, int]:
    """Held, waiting, parked, as the gateway says."""
    async with RawClient.connected(url) as client:
        backend = (await client.ask("GET", "/admission")).json["backends"]["default"]
    return backend["held"], backend["waiting"], backend["parked"]


async def become(url: str, *expected: int) -> None:
    with trio.fail_after(30):
        while await counts(url) != expected:  # noqa: ASYNC110 - another process is waited for
            await trio.sleep(0.02)


async def test_at_the_deadline_everybody_is_told_and_nobody_holds_up_the_end() -> None:
    llama = FakeLlamaServer(total_slots=2, words=10**4, interval=0.02)
    async with llama, llama.listening() as upstream, AsyncExitStack() as stack:
        llama.script(CALLS, Script(tokens=["x" * 2**20] * 1000, interval=0.001))
        flags = ("--shutdown-deadline", "1", "--tools", ",".join(PLACES))
        async with running(*SERVE, upstream, *flags) as command:

            async def come(body: dict[str, Any]) -> RawClient:
                client = await stack.enter_async_context(RawClient.connected(command.url))
                await client.request("POST", CHAT, body)
                return client

            parked = await come(chat(stream=True, admission={"tools": ["find"]}))
            await become(command.url, 0, 0, 1)
            stalled = await come(chat(stream=True))
            await become(command.url, 1, 0, 1)
            streams = [await come(chat(stream=True))]
            await become(command.url, 2, 0, 1)
            streams.append(await come(chat(stream=True)))
            plain = await come(chat())
            await become(command.url, 2, 2, 1)
            halves = []
            for half in (b"POST /v1/ch", post(CHAT, "content-length: 9") + b"{"):
                client = await stack.enter_async_context(RawClient.connected(command.url))
                await client.send(half)
                halves.append(client)

            command.process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            told = {"plain": verdict(await plain.read_answer(), stream=False)}
            told["uploading"] = verdict(await halves[1].read_answer(), stream=False)
            for name, client in (("parked", parked), ("running", streams[0]), ("queued", streams[1])):
                told[name] = verdict(await client.read_answer(), stream=True)
            await command.process.wait()
            assert time.monotonic() - begun < 1 + LEEWAY
        assert told == dict.fromkeys(("plain", "uploading", "parked", "running", "queued"), "draining")
        assert command.process.returncode == 0
        assert b"Traceback" not in command.said
        assert verdict(await stalled.read_answer(), stream=True) == "cut"
        await until(lambda: not llama.open_connections, 20)


async def test_a_second_signal_ends_it_at_once() -> None:
    llama = FakeLlamaServer(total_slots=1, words=10**4, interval=0.02)
    async with llama, llama.listening() as upstream, AsyncExitStack() as stack:
        async with running(*SERVE, upstream) as command:
            clients = [await stack.enter_async_context(RawClient.connected(command.url)) for _ in range(4)]
            uploads, left, runs, waits = clients
            await uploads.send(post(CHAT, "content-length: 9") + b"{")
            await left.request("POST", CHAT, chat(stream=True))
            await become(command.url, 1, 0, 0)
            await left.close()
            await become(command.url, 0, 0, 0)
            await runs.request("POST", CHAT, chat(stream=True))
            await become(command.url, 1, 0, 0)
            await waits.request("POST", CHAT, chat())
            await become(command.url, 1, 1, 0)
            command.process.send_signal(signal.SIGTERM)
            await until(lambda: refuses(command.url), 20)
            command.process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            await command.process.wait()
            assert time.monotonic() - begun < LEEWAY
        assert command.process.returncode == 0
        assert b"Traceback" not in command.said
        ends = Counter(re.findall(r'"outcome": "(\w+)"', command.said.decode()))
        assert (ends["client_gone"], ends["stopped"]) == (1, 3)


def refuses(url: str) -> bool:
    """Whether new requests are refused; blocks for a moment."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(post(CHAT, "content-length: 0", "connection: close"))
        return b" 503 " in client.recv(4096)


async def test_under_load_every_client_gets_its_whole_answer_or_a_clear_refusal() -> None:
    became: list[str] = []
    async with FakeLlamaServer(total_slots=4, words=4, interval=0.05) as llama, llama.listening() as upstream:
        async with running(*SERVE, upstream) as command, trio.open_nursery() as nursery:

            async def come(number: int) -> None:
                await trio.sleep(number / 20)
                became.append(await visit(command.url, stream=number % 2 == 0))

            for number in range(40):
                nursery.start_soon(come, number)
            await until(lambda: "answered" in became, 20)
            command.process.send_signal(signal.SIGTERM)
        assert command.process.returncode == 0
    assert "answered" in became
    assert set(became) <= {"answered", "draining", "refused"}


async def test_connections_that_nobody_has_accepted_when_it_stops_are_refused_and_not_reset() -> None:
    release = trio.Event()

    async def hold(request: Request) -> None:
        if request.path == CHAT:
            await release.wait()

    async with FakeLlamaServer(reply=hold) as llama, llama.listening() as upstream, AsyncExitStack() as stack:
        async with running(*SERVE, upstream) as command:
            last = await stack.enter_async_context(RawClient.connected(command.url))
            await last.request("POST", CHAT, chat())
            await become(command.url, 1, 0, 0)
            command.process.send_signal(signal.SIGTERM)
            await until(lambda: refuses(command.url), 20)

            command.process.send_signal(signal.SIGSTOP)  # whoever comes now stays in the backlog
            clients: list[RawClient] = []
            for _ in range(200):
                clients.append(await stack.enter_async_context(RawClient.connected(command.url)))
                await clients[-1].request("POST", CHAT, chat())
            release.set()
            await until(lambda: not llama.in_flight, 20)  # the last answer is complete: listening may end
            command.process.send_signal(signal.SIGCONT)
            for client in clients:
                answer = await client.read_answer()
                assert (answer.status, verdict(answer, stream=False)) == (503, "draining")
                assert int(answer.header("Retry-After") or 0) > 0
            assert verdict(await last.read_answer(), stream=False) == "answered"
        assert command.process.returncode == 0


async def test_a_restart_behind_a_socket_that_was_handed_over_refuses_no_connection() -> None:
    became: list[str] = []
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with FakeLlamaServer(words=4, interval=0.02) as llama, llama.listening() as upstream:

            async def serve(then: Callable[[], Awaitable[None]]) -> None:
                async with running(*SERVE, upstream, listener=listener) as command:
                    assert command.url == url
                    await then()
                    command.process.send_signal(signal.SIGTERM)
                assert command.process.returncode == 0

            async def keep_coming(number: int) -> None:
                while not done.is_set():
                    became.append(await visit(url, stream=number % 2 == 0))
                    await trio.sleep(0.02)

            async def load() -> None:
                for number in range(10):
                    nursery.start_soon(keep_coming, number)
                await until(lambda: became.count("answered") >= 20, 20)

            async def more() -> None:
                seen = became.count("answered")
                await until(lambda: became.count("answered") >= seen + 20, 20)
                done.set()
                await until(lambda: len(nursery.child_tasks) == 0, 20)

            done = trio.Event()
            async with trio.open_nursery() as nursery:
                await serve(load)
                await serve(more)
    assert set(became) <= {"answered", "draining"}
