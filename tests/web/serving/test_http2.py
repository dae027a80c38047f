"""HTTP/2: how it is reached, and that what is wrong with one request harms no other."""

from __future__ import annotations

import socket
from contextlib import suppress
from itertools import count, repeat
from typing import TYPE_CHECKING

import pytest
import trio
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from quart import Response, request
from trio.testing import wait_all_tasks_blocked

from tests.support.http2_client import http2_to
from tests.support.serving import add_views, descriptors, get, serving, tasks, until
from tests.support.tls import make_trust
from trio_admission_web.serving import http2, http2_connection, transport
from trio_admission_web.serving.app import ServingApp
from trio_admission_web.serving.http2_connection import MAX_STREAMS, NUISANCES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from tests.support.http2_client import Connection, Stream

HEAD = [(":method", "GET"), (":scheme", "http"), (":authority", "x"), (":path", "/")]


def serving_app() -> ServingApp:
    app = ServingApp("app")
    add_views(app)

    @app.get("/seen")
    async def seen() -> dict[str, object]:
        return {
            "version": request.scope["http_version"],
            "host": request.host,
            "headers": [[name.decode(), value.decode()] for name, value in request.scope["headers"]],
            "extensions": request.scope["extensions"],
        }

    @app.get("/echo/<word>")
    async def echo(word: str) -> tuple[str, dict[str, str]]:
        return "", {"X-Echo": 100 * f"{word}."}

    @app.get("/breaks")
    async def breaks() -> Response:
        async def body() -> AsyncIterator[bytes]:
            yield b"data: x\n\n"
            raise LookupError("on purpose")

        return Response(body(), mimetype="text/event-stream")

    return app


# ---- how it is reached


async def test_it_is_agreed_on_in_tls(tmp_path: Path) -> None:
    chain, key, trusting = make_trust(tmp_path)
    async with serving(serving_app(), certfile=chain, keyfile=key) as server:
        for offered, agreed in ((["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1")):
            trusting.set_alpn_protocols(offered)
            stream = await trio.open_ssl_over_tcp_stream(*server.address, ssl_context=trusting)
            async with stream:
                await stream.do_handshake()
                assert stream.selected_alpn_protocol() == agreed
        trusting.set_alpn_protocols(["h2"])
        async with http2_to(server.url, tls=trusting) as client:
            assert (await client.ask("GET", "/")).body == b"here"
            assert (await client.ask("GET", "/large")).complete


@pytest.mark.parametrize("cut", [1, 10, 18, 20, 24, 30])
async def test_it_is_spoken_with_whoever_begins_with_it(cut: int) -> None:
    async with serving(serving_app()) as server, await trio.open_tcp_stream(*server.address) as stream:
        async with http2_to(server.url) as client:
            assert (await client.ask("GET", "/")).body == b"here"
        client.h2.clear_outbound_data_buffer()
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame().serialize()
        await stream.send_all(preface[:cut])
        await wait_all_tasks_blocked(0.01)
        await stream.send_all(preface[cut:])
        assert (await stream.receive_some())[3] == SettingsFrame.type


@pytest.mark.parametrize(
    "preface",
    [
        get() + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\nhost: x\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
    ],
    ids=["second", "headers", "other"],
)
async def test_what_only_looks_like_a_preface_is_refused(preface: bytes) -> None:
    async with serving(serving_app()) as server, server.client(preface) as client:
        if preface.startswith(get()):
            assert (await client.read_answer()).status == 200
        answer = await client.read_answer()
        assert (answer.status, answer.header("connection")) == (505, "close")
        assert await client.read_to_end() == b""


async def test_a_view_sees_the_authority_as_host_and_no_pseudo_headers() -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        seen = (await client.ask("GET", "/seen", None, [("x-a", "b")])).json
    assert (seen["version"], seen["host"], seen["extensions"]) == ("2", "test", {})
    assert seen["headers"] == [["host", "test"], ["x-a", "b"]]


async def test_a_server_for_other_names_says_that_there_is_nothing() -> None:
    async with serving(serving_app(), server_names=["other"]) as server, http2_to(server.url) as client:
        for _ in range(2):
            answer = await client.ask("GET", "/")
            assert (answer.status, answer.complete, answer.header("connection")) == (404, True, None)


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked() -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        stream = client.new()
        await stream.request("POST", "/read", None, [("expect", "100-continue")], end=False)
        await client.wait(lambda: stream.informed == ["100"])
        await stream.send(b"abc", end=True)
        assert (await stream.read_answer()).body == b"3"


async def test_an_answer_that_breaks_does_not_look_like_an_end(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        stream = client.new()
        answer = await stream.ask("GET", "/breaks")
        assert (answer.body, answer.complete, stream.reset_by) == (
            b"data: x\n\n",
            False,
            ErrorCodes.INTERNAL_ERROR,
        )
        assert (await client.ask("GET", "/")).body == b"here"


# ---- what is wrong with a request is as wrong as in HTTP/1, and its alone


def replaced(name: str, value: str | None) -> list[tuple[str, str]]:
    """Return a good head with another value of one pseudo header, or without it."""
    if value is None:
        return [each for each in HEAD if each[0] != name]
    return [(each, value if each == name else said) for each, said in HEAD]


MALFORMED = {
    "no method": (replaced(":method", None), 400),
    "no path": (replaced(":path", None), 400),
    "no scheme": (replaced(":scheme", None), 400),
    "no host": (replaced(":authority", None), 400),
    "other host": ([*HEAD, ("host", "y")], 400),
    "method twice": ([*HEAD[:1], *HEAD], 400),
    "path twice": ([HEAD[3], *HEAD], 400),
    "unknown pseudo header": ([(":x", "y"), *HEAD], 400),
    "late pseudo header": ([("x", "y"), *HEAD], 400),
    "empty method": (replaced(":method", ""), 400),
    "method with a space": (replaced(":method", "GET /"), 400),
    "empty path": (replaced(":path", ""), 400),
    "path with a space": (replaced(":path", "/ HTTP/1.1"), 400),
    "path beyond ASCII": (replaced(":path", "/\xff"), 400),
    "no path but a name": (replaced(":path", "x"), 400),
    "no path but a query": (replaced(":path", "?x"), 400),
    "absolute path": (replaced(":path", "http://x/"), 400),
    "upper case": ([*HEAD, ("X-A", "b")], 400),
    "empty name": ([*HEAD, ("", "b")], 400),
    "name with a space": ([*HEAD, ("x y", "b")], 400),
    "line end": ([*HEAD, ("x", "b\r\ny: z")], 400),
    "connection": ([*HEAD, ("connection", "close")], 400),
    "transfer-encoding": ([*HEAD, ("transfer-encoding", "chunked")], 400),
    "upgrade": ([*HEAD, ("upgrade", "h2c")], 400),
    "te": ([*HEAD, ("te", "gzip")], 400),
    "body that does not come": ([*HEAD, ("content-length", "3")], 400),
    "extended connect": ([(":method", "CONNECT"), (":protocol", "websocket"), *HEAD[1:]], 400),
    "connect without a host": ([(":method", "CONNECT"), ("host", "x")], 400),
    "connect": ([(":method", "CONNECT"), (":authority", "x:80")], 404),
    "asterisk": (replaced(":path", "*"), 404),
    "too large": ([*HEAD, ("x", "y" * 17_000)], 431),
    "too many": ([*HEAD, *((f"x{number}", "") for number in range(500))], 431),
}


@pytest.mark.parametrize(("head", "status"), MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_request_is_refused_and_the_others_go_on(
    head: list[tuple[str, str]], status: int
) -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        other, wrong = client.new(), client.new()
        await other.request("GET", "/events")
        await wrong.begin(head)
        answer = await wrong.read_answer()
        assert (answer.status, answer.complete) == (status, True)
        assert status == 404 or answer.body == b""
        await other.read_events(await other.read_head(), 1)
        assert (await client.ask("GET", "/")).body == b"here"
        assert not other.ended
        assert client.terminated is None


async def test_a_malformed_request_whose_body_comes_is_refused_and_the_body_is_not_wanted() -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        wrong = client.new()
        await wrong.begin(replaced(":path", "x"), end=False)
        assert (await wrong.read_answer()).status == 400
        await client.wait(lambda: client.resets == [(wrong.number, ErrorCodes.NO_ERROR)])
        assert (await client.ask("GET", "/")).body == b"here"


LENGTHS = {
    "longer": ("2", b"abc"),
    "shorter": ("9", b"abc"),
    "no number": ("x", b"abc"),
    "sign": ("+3", b"abc"),
}


@pytest.mark.parametrize(("length", "body"), LENGTHS.values(), ids=LENGTHS)
async def test_a_body_of_another_length_than_was_said_ends_its_request_alone(
    length: str, body: bytes
) -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        other, wrong = client.new(), client.new()
        await other.request("GET", "/events")
        await other.read_events(await other.read_head(), 1)
        await wait_all_tasks_blocked()
        with_one = tasks()
        await wrong.begin(
            [(":method", "POST"), *HEAD[1:3], (":path", "/silent"), ("content-length", length)], end=False
        )
        client.h2.send_data(wrong.number, body, end_stream=True)
        await client.flush()
        await client.wait(lambda: wrong.reset_by)
        assert wrong.reset_by == ErrorCodes.PROTOCOL_ERROR
        await until(lambda: tasks() == with_one)
        assert not other.ended
        assert (await client.ask("GET", "/")).body == b"here"


# ---- frames that come late, and frames that are none


def unknown(number: int) -> Frame:
    frame = ExtensionFrame(type=0xBE, stream_id=number, body=b"x")
    frame.body_len = 1
    return frame


def late(number: int) -> dict[str, Frame]:
    return {
        "data": DataFrame(number, data=b"abc"),
        "end": DataFrame(number, data=b"", flags=["END_STREAM"]),
        "window": WindowUpdateFrame(number, window_increment=10),
        "too much window": WindowUpdateFrame(number, window_increment=2**31 - 1),
        "reset": RstStreamFrame(number, error_code=8),
        "priority": PriorityFrame(number, depends_on=0, stream_weight=1),
        "priority of nobody": PriorityFrame(number + 1000, depends_on=number + 2000, stream_weight=1),
        "unknown": unknown(number),
    }


@pytest.mark.parametrize("how", ["answered", "cancelled", "refused body"])
@pytest.mark.parametrize("frame", late(1))
async def test_a_frame_that_comes_too_late_is_nothing_to_the_others(frame: str, how: str) -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        other, done = client.new(), client.new()
        await other.request("GET", "/events")
        await other.read_events(await other.read_head(), 1)
        if how == "answered":
            assert (await done.ask("GET", "/")).complete
        elif how == "cancelled":
            await done.request("GET", "/silent")
            await done.cancel()
        else:
            await done.request("POST", "/", end=False)  # is answered before its body has come
            assert (await done.read_answer()).status == 405
        for _ in range(3):
            await client.send(late(done.number)[frame].serialize())
        assert (await client.ask("GET", "/")).body == b"here"
        assert not other.ended
        assert client.terminated is None


@pytest.mark.parametrize("path", ["x", "/silent"])
async def test_a_request_that_is_reset_as_it_comes_is_nothing_to_the_others(path: str) -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        assert (await client.ask("GET", "/")).body == b"here"
        await wait_all_tasks_blocked()
        before = tasks()
        fields = client.h2.encoder.encode(replaced(":path", path))
        head = HeadersFrame(3, data=fields, flags=["END_HEADERS"])
        await client.send(head.serialize() + late(3)["reset"].serialize())
        client.h2.highest_outbound_stream_id = 3
        assert (await client.ask("GET", "/")).body == b"here"
        await until(lambda: tasks() == before)


async def test_late_bodies_use_up_no_window_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LINGER", 0)
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        for _ in range(150):  # of 256 KiB; all streams together have 25 MiB
            stream = client.new()
            await stream.request("POST", "/", end=False)
            await stream.read_head()
            await client.send(16 * DataFrame(stream.number, data=bytes(16 * 1024)).serialize())
        stream = client.new()
        await stream.request("POST", "/read", bytes(1024 * 1024))
        assert (await stream.read_answer()).body == b"1048576"
        again = RstStreamFrame(1, error_code=ErrorCodes.STREAM_CLOSED).serialize()
        assert again not in client.received  # one reset is enough


def block(head: Sequence[tuple[str, str]]) -> bytes:
    return Encoder().encode(head)


BOMB = block(HEAD) + b"\x40\x01x\x7f\x80\x1e" + b"y" * 3967 + b"\xbe" * 100  # one header, and that 100 times
GARBAGE: dict[str, Callable[[], Sequence[Frame] | bytes]] = {
    "bytes": lambda: bytes(range(1, 256)),
    "frame on a stream that is not open": lambda: [DataFrame(99, data=b"x")],
    "block that cannot be unpacked": lambda: [HeadersFrame(101, data=b"\xff\xff\xff", flags=["END_HEADERS"])],
    "block that grows": lambda: [HeadersFrame(101, data=BOMB, flags=["END_HEADERS"])],
    "other frame inside a block": lambda: [HeadersFrame(101, data=b"\x82"), PingFrame(opaque_data=bytes(8))],
    "block without an end": lambda: [
        HeadersFrame(101, data=b"\x82"),
        *(ContinuationFrame(101, data=b"") for _ in range(100)),
    ],
    "block of the server's number": lambda: [HeadersFrame(2, data=block(HEAD), flags=["END_HEADERS"])],
    "wrong setting": lambda: [SettingsFrame(settings={4: 2**31})],
    "window of nothing": lambda: [WindowUpdateFrame(0, window_increment=2**31 - 1)] * 2,
    "long frame": lambda: (70_000).to_bytes(3) + b"\x00\x00\x00\x00\x00\x01" + bytes(70_000),
}  # fmt: skip


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_ends_its_connection_with_all_its_requests_and_no_other(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as other:
        assert (await other.ask("GET", "/")).body == b"here"
        await wait_all_tasks_blocked()
        before = descriptors(), tasks()
        async with http2_to(server.url) as client:
            streams = [client.new() for _ in range(3)]
            for stream in streams:
                await stream.request("GET", "/events")
                await stream.read_events(await stream.read_head(), 1)
            garbage = GARBAGE[name]()
            if not isinstance(garbage, bytes):
                garbage = b"".join(each.serialize() for each in garbage)
            await client.send(garbage)
            await client.wait(lambda: client.closed)
            assert client.terminated is not None
            assert client.terminated.error_code != ErrorCodes.NO_ERROR
            assert not any(each.ended for each in streams)
        await until(lambda: (descriptors(), tasks()) == before)
        assert (await other.ask("GET", "/")).body == b"here"
    assert not caplog.records


# ---- who is nothing but work


async def flood(client: Connection, floods: Iterable[bytes]) -> None:
    """Send one after the other until the server has had enough."""
    with trio.fail_after(20), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        for each in floods:
            if client.closed:
                break
            await client.send(each)
    await client.wait(lambda: client.closed)


SILENT = block([*HEAD[:3], (":path", "/silent")])
FLOODS: dict[str, Frame] = {
    "settings": SettingsFrame(),
    "ping": PingFrame(opaque_data=bytes(8)),
    "priority": PriorityFrame(1, depends_on=0, stream_weight=1),
    "empty data": DataFrame(1, data=b""),
    "unknown": unknown(1),
}


@pytest.mark.parametrize("frame", FLOODS.values(), ids=FLOODS)
async def test_a_flood_of_frames_that_are_nothing_but_work_ends_the_connection(frame: Frame) -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        before, stream = tasks(), client.new()
        await stream.request("POST", "/silent", end=False)
        await flood(client, repeat(frame.serialize() * 100))
        assert client.terminated is not None
        assert client.terminated.error_code == ErrorCodes.ENHANCE_YOUR_CALM
        await until(lambda: tasks() <= before - 1)  # the writer is gone, too


async def test_as_many_frames_of_that_kind_as_a_browser_sends_do_not() -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        await client.send(
            b"".join(frame.serialize() for frame in FLOODS.values() if frame.stream_id == 0) * 100
        )
        assert (await client.ask("GET", "/")).body == b"here"


async def test_requests_that_say_how_urgent_they_are_are_no_nuisance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "NUISANCES", 10)
    monkeypatch.setattr(http2_connection, "NUISANCES_PER_SECOND", 0)
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        for _ in range(20):
            stream = client.new()
            await stream.begin(HEAD, urgency=7)
            await stream.read_answer()
        assert client.terminated is None


async def test_resets_in_quick_succession_end_the_connection_and_leave_no_request() -> None:
    async with serving(serving_app()) as server:
        before = descriptors(), tasks()
        async with http2_to(server.url) as client:
            heads = (
                HeadersFrame(number, data=SILENT, flags=["END_HEADERS", "END_STREAM"])
                for number in range(1, 10 * NUISANCES, 2)
            )
            await flood(
                client, (head.serialize() + late(head.stream_id)["reset"].serialize() for head in heads)
            )
            assert client.terminated is not None
            assert client.terminated.error_code == ErrorCodes.ENHANCE_YOUR_CALM
        await until(lambda: (descriptors(), tasks()) == before)


async def test_a_client_that_asks_and_does_not_take_what_it_is_told_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2, "MAX_UNWRITTEN", 8 * 1024)
    listening, asking = socket.create_server(("127.0.0.1", 0)), socket.socket()
    address = listening.getsockname()
    with asking:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        async with serving(serving_app(), bind=[f"fd://{listening.detach()}"]):
            before = tasks()
            asking.connect(address)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(asking))
            await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame().serialize())
            wrong = block(replaced(":path", "x"))
            heads = (
                HeadersFrame(number, data=wrong, flags=["END_HEADERS", "END_STREAM"])
                for number in count(1, 2)
            )
            with trio.fail_after(20), pytest.raises(trio.BrokenResourceError):
                for head in heads:
                    await stream.send_all(head.serialize())
            await until(lambda: tasks() == before)


async def test_a_client_that_offers_to_remember_everything_is_not_told_more_than_usual() -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 2**30})
        await client.flush()
        for number in range(200):
            answer = await client.ask("GET", f"/echo/{number}")
            assert answer.header("x-echo") == 100 * f"{number}."
        assert 0 < client.h2.decoder.header_table_size <= 4096


async def test_a_stream_too_many_is_refused_and_may_come_again() -> None:
    async with serving(serving_app()) as server, http2_to(server.url) as client:
        client.h2.remote_settings.max_concurrent_streams = 2 * MAX_STREAMS
        streams: list[Stream] = []
        for _ in range(MAX_STREAMS + 3):
            streams.append(client.new())
            await streams[-1].request("GET", "/events")
        await client.wait(lambda: sum(each.reset_by is not None for each in streams) == 3)
        assert {each.reset_by for each in streams[MAX_STREAMS:]} == {ErrorCodes.REFUSED_STREAM}
        await streams[0].cancel()
        assert (await client.ask("GET", "/")).body == b"here"
        await client.wait(lambda: all(each.answer for each in streams[:MAX_STREAMS]))
