"""What the gateway tells of what happened: one log line a request, and counters that add up."""

from __future__ import annotations

import json
import logging
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import wait_all_tasks_blocked

from tests.support.gateway import CHAT, api_key, call, chat, connect, gateway, gateway_to, shown
from trio_admission import AdmissionConfig, EventKind
from trio_admission.testing.fake_llama_server import End, FakeLlamaServer, Raw, Script
from trio_admission_web import problems
from trio_admission_web.logs import ForPeople, ForPrograms
from trio_admission_web.routes import ADMITTED

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

    from trio_admission.testing.fake_llama_server import Request
    from trio_admission_web.app import App

OUTCOMES = problems.CODES | {"answered", "backend_error", "client_gone", "reader_stalled", "stopped"}
PREFIX = "trio_admission_"


class Numbers:
    """A scrape, read as Prometheus reads it."""

    def __init__(self, exposition: bytes) -> None:
        self.samples = [
            sample
            for family in text_string_to_metric_families(exposition.decode())
            for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name that have these labels."""
        return sum(
            each.value
            for each in self.samples
            if each.name == PREFIX + name and labels.items() <= each.labels.items()
        )

    def labels(self, name: str) -> set[str]:
        """Every value that a label has anywhere."""
        return {each.labels[name] for each in self.samples if name in each.labels}


async def scrape(app: App, **headers: str) -> Numbers:
    reply = await call(app, "/metrics", method="GET", headers=headers)
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Numbers(reply.body)


def facts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The facts of each request that was logged."""
    return [record.facts for record in caplog.records if hasattr(record, "facts")]


async def test_one_line_tells_of_each_request(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = FakeLlamaServer(total_slots=1, words=2, interval=1.0)
    async with gateway(server, keys=(api_key("ada", flow="team"),)) as app, trio.open_nursery() as nursery:
        for name in ("first", "second"):
            headers = {"X-Request-Id": name, **shown("ada")}
            nursery.start_soon(partial(call, app, CHAT, chat(model="m", stream=True), headers=headers))
            await wait_all_tasks_blocked()
        await call(app, "/v1/models", method="GET", headers={"X-Request-Id": "light", **shown("ada")})
        await call(app, "/v1/none", method="GET", headers={"X-Request-Id": "lost"})
    told = {each.pop("id"): each for each in facts(caplog)}
    assert told["light"].items() >= {"route": "/v1/models", "flow": "team", "outcome": "answered"}.items()
    assert told["lost"].items() >= {"route": "other", "flow": "", "outcome": "invalid_api_key"}.items()
    common = {"flow": "team", "route": CHAT, "model": "m", "backend": "default", "outcome": "answered"}
    first, second = told["first"], told["second"]
    assert first == {**common, "wait": 0.0, "first_byte": first["first_byte"], "duration": first["duration"]}
    assert second["wait"] == first["duration"]
    assert first["duration"] < second["first_byte"] < second["duration"]
    assert len(told) == 4


async def test_what_is_asked_again_and_again_is_counted_and_not_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    paths = ("/health", "/ready", "/metrics", "/admission", "/admission/approvals")
    async with gateway(FakeLlamaServer()) as app:
        for path in paths:
            assert (await call(app, path, method="GET")).status == 200
        assert (await call(app, "/admission/requests/none", method="DELETE")).status == 404
        numbers = await scrape(app)
    for path in paths:
        assert numbers.total("requests_total", route=path, outcome="answered") == 1
    assert [each["route"] for each in facts(caplog)] == ["/admission/requests/<name>"]


def test_a_line_is_json_for_programs_and_text_for_people() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "request %s", ("r1",), None)
    record.created = 0.0
    facts = record.__dict__["facts"] = {"id": "r1", "model": 'm\n"\x1b[31m\ud800', "wait": 0, "flow": ""}
    line = ForPrograms().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "info",
        "logger": "x",
        "message": "request r1",
        **facts,
    }
    people = ForPeople().format(record)
    assert people.endswith(r'INFO request r1 model="m\n\"\u001b[31m\ud800" wait=0')


def test_an_error_stays_on_one_line_for_programs() -> None:
    error = ValueError("x\ny")
    info = (ValueError, error, None)
    line = ForPrograms().format(logging.LogRecord("x", logging.ERROR, "", 0, "a fault", None, info))
    assert "\n" not in line
    assert json.loads(line)["error"].endswith("ValueError: x\ny")


async def test_a_models_name_is_cut_in_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with gateway(FakeLlamaServer()) as app:
        await call(app, CHAT, chat(model="m" * 5000))
    assert facts(caplog)[0]["model"] == "m" * 100


async def test_neither_keys_nor_prompts_nor_answers_reach_logs_or_metrics(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    secret = api_key("key-SECRET", name="ada")
    admin = api_key("admin-SECRET", name="root", admin=True)
    server = FakeLlamaServer(api_key="up-SECRET")
    body = chat(stream=True, user="prompt-SECRET")
    body["messages"][0]["content"] = "prompt-SECRET"
    answers: list[Script | Raw] = [
        Script(tokens=["answer-SECRET"]),
        Raw(b"answer-SECRET\r\n\r\n", End.CLOSE),
        Raw.answer(400, {"error": {"code": 400, "message": "prompt-SECRET"}}),
        Raw.answer(200, "answer-SECRET", content_type="text/html"),
        Raw.answer(200, b"data: answer-SECRET\n\n", content_type="text/event-stream"),
        Raw.answer(
            200, b'data: {"error": {"message": "answer-SECRET"}}\n\n', content_type="text/event-stream"
        ),
    ]
    async with gateway(server, api_key="up-SECRET", keys=(secret, admin)) as app:
        for answer in answers:
            for stream in (True, False):
                server.script(answer)
                await call(app, CHAT, {**body, "stream": stream}, headers=shown("key-SECRET"))
        for path in (CHAT, f"{CHAT}?key=key-SECRET", "/v1/SECRET", "/admission/requests/SECRET"):
            for headers in (shown("key-SECRET"), shown("wrong-SECRET"), {"X-Api-Key": "key-SECRET"}):
                await call(app, path, b'{"messages": "prompt-SECRET"', headers=headers)
                await call(app, path, method="DELETE", headers={**headers, "X-Request-Id": "SECRET SECRET"})
        server.reply = garbage
        assert (await call(app, "/v1/models", method="GET", headers=shown("key-SECRET"))).status == 502
        metrics = await call(app, "/metrics", method="GET", headers=shown("admin-SECRET"))
    assert metrics.status == 200
    assert b"SECRET" not in metrics.body
    assert len(caplog.records) > 30
    for record in caplog.records:
        assert "SECRET" not in ForPrograms().format(record)
        assert "SECRET" not in ForPeople().format(record)


async def garbage(_request: Request) -> Raw:
    return Raw(b"answer-SECRET\r\n\r\n", End.CLOSE)


async def test_no_client_can_add_a_label(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer()) as app:
        await odd_requests(app, 50)
        await scrape(app)
        before = len((await scrape(app)).samples)
        await odd_requests(app, 700)
        numbers = await scrape(app)
    assert len(numbers.samples) == before
    assert numbers.total("requests_total") >= 750
    assert numbers.labels("route") <= {*ADMITTED, "/tokenize", "/health", "/metrics", "other"} | {
        "/admission/requests/<name>"
    }
    assert numbers.labels("outcome") <= OUTCOMES
    assert numbers.labels("backend") == {"default"}


async def test_no_backend_can_add_a_label(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        for number in range(5):
            error = json.dumps({"error": {"message": "no", "type": f"odd{number}"}}).encode()
            for answer in (
                Raw.answer(500, error),
                Raw.answer(200, b"data: " + error + b"\n\n", content_type="text/event-stream"),
            ):
                for stream in (True, False):
                    server.script(answer)
                    await call(app, CHAT, chat(stream=stream))
        numbers = await scrape(app)
    assert numbers.labels("outcome") == {"backend_error"}
    assert numbers.total("requests_total", outcome="backend_error") == 20


async def odd_requests(app: App, count: int) -> None:
    """Requests no two of which are alike: paths, methods, models, ids, bodies."""
    methods = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "BREW")
    for number in range(count):
        path = (f"/{number}", f"/v1/x{number}?y={number}", f"/admission/requests/{number}", CHAT, "/tokenize")
        headers = {"X-Request-Id": f"id{number}", "User-Agent": f"agent{number}"}
        body = b'{"model": "m%d"' % number
        await call(app, path[number % 5], body, method=methods[number % 7], headers=headers)


async def test_the_counters_are_what_happened(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=2, words=4, interval=1.0)
    admission = AdmissionConfig(max_waiting=3, max_wait=30.0, keepalive_interval=0.5)
    async with gateway(server, admission=admission) as app:
        async with trio.open_nursery() as nursery:
            for _ in range(4):  # 2 run, 2 wait
                nursery.start_soon(call, app, CHAT, chat(stream=True))
            await wait_all_tasks_blocked()
            headers = {"X-Request-Id": "mine"}
            nursery.start_soon(partial(call, app, CHAT, chat(stream=True), headers=headers))
            await wait_all_tasks_blocked()
            assert (await call(app, CHAT, chat())).status == 429
            held = await scrape(app)
            assert [held.total(name) for name in ("slots", "held", "waiting", "free")] == [2, 2, 3, 0]
            await call(app, "/admission/requests/mine", method="DELETE")
            await wait_all_tasks_blocked()
            nursery.start_soon(partial(call, app, CHAT, chat(stream=True), leave_after=2.0))
        server.script(Raw.answer(500, {"error": {"code": 500, "message": "no"}}))
        await call(app, CHAT, chat())
        server.script(Raw(End.RESET), Raw(End.RESET))
        await call(app, CHAT, chat())
        await call(app, CHAT, b"{")
        await call(app, "/nowhere", method="GET")
        numbers = await scrape(app)

    def events(kind: str) -> float:
        return numbers.total("events_total", backend="default", event=kind)

    def requests(outcome: str, route: str = CHAT) -> float:
        return numbers.total("requests_total", route=route, outcome=outcome)

    assert (events("arrived"), events("granted"), events("refused"), events("cancelled")) == (9, 6, 1, 2)
    assert events("ended") == 6
    outcomes = {"answered": 4, "queue_full": 1, "cancelled": 1, "client_gone": 1, "backend_error": 1}
    outcomes |= {"bad_gateway": 1, "invalid_request": 1}
    assert {name: requests(name) for name in OUTCOMES if requests(name)} == outcomes
    assert requests("not_found", "other") == 1
    assert numbers.total("wait_seconds_count") == 6
    assert numbers.total("wait_seconds_sum") == 8  # two waited for the four words before them
    assert numbers.total("first_byte_seconds_count", route=CHAT) == 5
    assert numbers.total("duration_seconds_count", route=CHAT) == sum(outcomes.values())
    assert numbers.total("keepalives_total", route=CHAT) > 10
    assert numbers.total("tokens_total", kind="generated") == 4 * 4
    assert numbers.total("tokens_total", kind="prompt") > 0
    for gauge in ("held", "waiting", "parked", "returning", "kv_held"):
        assert numbers.total(gauge) == 0


async def test_everybody_who_arrived_is_accounted_for_after_chaos(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer(total_slots=2, words=3, interval=1.0)
    admission = AdmissionConfig(max_waiting=6, max_wait=5.0)
    async with gateway(server, admission=admission) as app:
        async with trio.open_nursery() as nursery:
            for number in range(60):
                leave_after = (None, 0.05, 2.5, None, 7.0)[number % 5]
                body = chat(stream=number % 2 == 0)
                nursery.start_soon(partial(call, app, CHAT, body, leave_after=leave_after))
                if number % 17 == 0:
                    server.crash()
                    await trio.sleep(0.3)
                    server.restart()
                await trio.sleep(0.4)
        numbers = await scrape(app)
    told = {kind: numbers.total("events_total", event=kind) for kind in numbers.labels("event")}
    assert told["arrived"] == 60
    ends = ("granted", "refused", "timed_out", "cancelled")
    assert told["arrived"] == sum(told.get(kind, 0) for kind in ends)
    assert told["granted"] == told["ended"]
    assert numbers.total("requests_total", route=CHAT) == 60
    for gauge in ("held", "waiting", "parked", "returning", "kv_held"):
        assert numbers.total(gauge) == 0


async def test_each_backend_has_its_own_numbers(autojump_clock: MockClock) -> None:
    a, b = FakeLlamaServer(total_slots=2), FakeLlamaServer(total_slots=3)
    async with gateway_to((a, {"name": "a", "models": ("x",)}), (b, {"name": "b", "models": ("y",)})) as app:
        for model in ("x", "y", "y"):
            await call(app, CHAT, chat(model=model))
        numbers = await scrape(app)
    assert [numbers.total("slots", backend=name) for name in "ab"] == [2, 3]
    assert [numbers.total("events_total", backend=name, event="granted") for name in "ab"] == [1, 2]


async def test_a_client_that_goes_away_with_its_body_half_sent_is_counted(autojump_clock: MockClock) -> None:
    async with gateway(FakeLlamaServer()) as app:
        async with connect(app) as client:
            await client.send(b"{")
            await wait_all_tasks_blocked()
            await client.disconnect()
        numbers = await scrape(app)
    assert numbers.total("requests_total", route=CHAT, outcome="client_gone") == 1


async def test_the_metrics_reference_names_everything_there_is(autojump_clock: MockClock) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    async with gateway(FakeLlamaServer()) as app:
        await call(app, CHAT, chat())
        exposition = (await call(app, "/metrics", method="GET")).body
    families = list(text_string_to_metric_families(exposition.decode()))
    there_is = {each.name + ("_total" if each.type == "counter" else "") for each in families}
    there_is = {name for name in there_is if not name.endswith("_created")}  # when each began: the library's
    told = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    assert told == there_is
    words = set(re.findall(r"`(\w+)`", page))
    assert words >= OUTCOMES | {kind.value.replace(" ", "_") for kind in EventKind}


async def test_the_state_of_each_backend_is_a_metric(autojump_clock: MockClock) -> None:
    server = FakeLlamaServer()
    async with gateway(server) as app:
        for state in ("ready", "loading"):
            server.loading = state == "loading"
            await trio.sleep(11)  # until it has been asked again
            numbers = await scrape(app)
            assert numbers.total("backend_state", backend="default", state=state) == 1
            assert numbers.total("backend_state", backend="default") == 1
        server.loading = False
