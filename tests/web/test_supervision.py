"""What becomes of a backend whose server ends: when it is started again, and when no more."""

from __future__ import annotations

import logging
import sys
from itertools import count
from typing import TYPE_CHECKING

import pytest
import trio

from tests.support.gateway import CHAT, call, chat, network_of
from trio_admission.testing.fake_llama_server import FakeLlamaServer
from trio_admission_web.app import create_app
from trio_admission_web.engine import Engine, EngineError, Model
from trio_admission_web.settings import BackendSettings, Settings
from trio_admission_web.supervision import Patience, Restarts, Start, starter, supervise

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

FAILS = None


def pauses(*times_up: float | None, is_excused: bool = False) -> list[float | None]:
    restarts = Restarts(Patience())
    return [restarts.pause_after(each, is_excused=is_excused) for each in times_up]


def test_each_crash_in_a_row_doubles_the_pause_up_to_half_a_minute() -> None:
    assert pauses(*[5] * 8) == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_minute_up_begins_a_new_row() -> None:
    assert pauses(5, 5, 59, 60, 5, 3600, 5) == [1, 2, 4, 1, 2, 1, 2]


def test_five_starts_in_a_row_that_fail_are_enough() -> None:
    assert pauses(*[FAILS] * 5) == [1, 2, 4, 8, None]


def test_one_that_ends_soon_has_failed_to_start_unless_it_is_excused() -> None:
    assert pauses(FAILS, 4.9, 0.1, FAILS, 4.9) == [1, 2, 4, 8, None]
    assert None not in pauses(*[0.1] * 100, is_excused=True)
    assert pauses(*[FAILS] * 5, is_excused=True)[-1] is None


def test_a_server_that_stays_up_in_between_is_tried_on() -> None:
    assert pauses(*[FAILS] * 4, 5, *[FAILS] * 4) == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert None not in pauses(*[5] * 100)


class Story:
    """Runs of a server as they are told, and what is heard of them, each with its time."""

    def __init__(self, *times_up: float | None) -> None:
        self._times_up = iter(times_up)
        self._runs = count(1)
        self.heard: list[tuple[float, str, str]] = []

    async def start(self, task_status: trio.TaskStatus[Engine]) -> None:
        """Take 3 seconds to load; then fail, or be up for so long and crash."""
        run, time_up = next(self._runs), next(self._times_up)
        await trio.sleep(3)
        if time_up is not None:
            task_status.started(Engine(f"http://run-{run}", f"key-{run}", 1))
            await trio.sleep(time_up)
        raise EngineError(f"end of {run}")

    async def run(self, start: Start | None = None) -> None:
        await supervise(
            "gpu",
            start or self.start,
            up=lambda url, api_key: self._hear("up", f"{url} {api_key}"),
            down=lambda reason: self._hear("down", reason),
            given_up=lambda reason: self._hear("given up", reason),
            has_worked=lambda: False,
        )

    def _hear(self, what: str, news: str) -> None:
        self.heard.append((trio.current_time(), what, news))


async def test_a_server_that_crashes_is_started_again_elsewhere(autojump_clock: MockClock) -> None:
    story = Story(10, 70, FAILS, 10)
    with trio.move_on_after(100):
        await story.run()
    assert story.heard == [
        (3, "up", "http://run-1 key-1"),
        (13, "down", "end of 1"),
        (17, "up", "http://run-2 key-2"),
        (87, "down", "end of 2"),
        (91, "down", "end of 3"),
        (96, "up", "http://run-4 key-4"),
    ]


async def test_a_server_that_does_not_start_is_given_up_with_one_error(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    story = Story(*[FAILS] * 5)
    await story.run()
    assert [what for _, what, _ in story.heard] == ["down"] * 4 + ["given up"]
    assert story.heard[-1] == (3 + 1 + 3 + 2 + 3 + 4 + 3 + 8 + 3, "given up", "end of 5")
    [error] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert error.getMessage() == "backend gpu is given up, since it does not stay up: end of 5"


async def test_what_ends_the_gateway_ends_the_server_and_nobody_is_told(autojump_clock: MockClock) -> None:
    story, ended = Story(), trio.Event()

    async def start(task_status: trio.TaskStatus[Engine]) -> None:
        task_status.started(Engine("http://run", "key", 1))
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    with trio.move_on_after(10):
        await story.run(start)
    assert ended.is_set()
    assert story.heard == [(0, "up", "http://run key")]


async def test_an_error_of_another_kind_is_no_crash(autojump_clock: MockClock) -> None:
    story = Story()

    async def start(**_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("a mistake of ours")

    with pytest.RaisesGroup(RuntimeError):
        await story.run(start)
    assert story.heard == []


async def test_the_line_goes_on_as_soon_as_the_next_process_is_up(autojump_clock: MockClock) -> None:
    llama = FakeLlamaServer(words=1, interval=1)
    network = network_of({"run-1": llama, "run-2": llama})
    app = create_app(Settings(backends=(BackendSettings(command=(sys.executable,)),)), network=network)
    app.gateway.backend._start = Story(1, 100).start
    async with llama, app.test_app():
        await trio.sleep(6)  # it has crashed at 4, and is up again at 8
        reply = await call(app, CHAT, chat())
        assert reply.status == 200
        assert trio.current_time() == pytest.approx(8 + 1, abs=0.5)


async def test_a_server_that_is_killed_again_and_again_amid_its_work_is_always_started_again(
    autojump_clock: MockClock,
) -> None:
    llama = FakeLlamaServer(words=1, interval=1)
    network = network_of({f"run-{run}": llama for run in range(1, 12)})
    app = create_app(Settings(backends=(BackendSettings(command=(sys.executable,)),)), network=network)
    backend = app.gateway.backend
    backend._start = Story(*[2] * 10, 1000).start
    async with llama, app.test_app(), trio.open_nursery() as nursery:
        for _ in range(10):  # one for each process
            nursery.start_soon(call, app, CHAT, chat())
            await trio.sleep(30 + 3 + 2)
        assert not backend.condition.is_given_up
        assert (await call(app, CHAT, chat())).status == 200


async def test_a_gateway_that_ends_starts_no_server_again_unless_somebody_waits_for_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    llama = FakeLlamaServer(words=1, interval=1)
    network = network_of({"run-2": llama})
    app = create_app(Settings(backends=(BackendSettings(command=(sys.executable,)),)), network=network)
    app.gateway.backend._start = Story(FAILS, 10).start
    async with llama, app.test_app(), trio.open_nursery() as nursery:
        waits: list[int] = []

        async def wait() -> None:
            waits.append((await call(app, CHAT, chat())).status)

        await trio.sleep(1)
        nursery.start_soon(wait)
        await trio.sleep(1)
        await app.gateway.drain()
        await trio.sleep(100)  # its server has crashed in the meantime
    assert waits == [200]
    assert caplog.text.count("is started again") == 1


async def test_a_gateway_that_ends_while_nobody_waits_does_not_start_a_failing_server_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings(backends=(BackendSettings(command=(sys.executable,)),)))
    app.gateway.backend._start = Story(FAILS).start
    async with app.test_app():
        await trio.sleep(3.5)  # in the pause
        await app.gateway.drain()
        await trio.sleep(100)
    assert caplog.text.count("is started again") == 1


@pytest.mark.parametrize("was_killed", [True, False])
async def test_it_is_not_the_servers_fault_if_it_is_killed(
    was_killed: bool, autojump_clock: MockClock
) -> None:
    story = Story()

    async def start(task_status: trio.TaskStatus[Engine]) -> None:
        task_status.started(Engine("http://run", "key", 1))
        await trio.sleep(1)
        raise EngineError("end", was_killed=was_killed)

    with trio.move_on_after(300):
        await story.run(start)
    assert (story.heard[-1][1] == "given up") != was_killed


def test_what_runs_at_an_address_is_not_ours_to_start() -> None:
    assert starter(BackendSettings(url="http://h")) is None


def test_a_model_that_is_not_there_is_said_before_anything_is_started(tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    with pytest.raises(EngineError, match=f"there is no model file {missing}"):
        starter(BackendSettings(gguf=str(missing)))


def test_a_program_that_is_not_there_is_said_before_anything_is_started() -> None:
    with pytest.raises(EngineError, match="there is no program no-such-server to run"):
        starter(BackendSettings(command=("no-such-server",)))


def test_an_engine_that_is_not_installed_is_said_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineError, match="xllamacpp is not installed"):
        starter(BackendSettings(gguf="default"))


def test_the_settings_of_an_embedded_engine_reach_it(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    plain = starter(BackendSettings(gguf=str(file)), slot_files=tmp_path)
    config = plain.args[0]  # type: ignore[union-attr]
    assert (config.model, config.slots, config.context_per_slot) == (Model("a", file), 4, 2048)
    assert (config.slot_save_path, config.threads) == (tmp_path, None)
    said = BackendSettings(gguf="default", slots=2, context_per_slot=512, slot_save_path="/slots")
    config = starter(said, slot_files=tmp_path).args[0]  # type: ignore[union-attr]
    assert (config.model.name, config.slots, config.context_per_slot) == ("SmolLM2-135M-Instruct", 2, 512)
    assert (str(config.slot_save_path), config.threads, config.kv_unified) == ("/slots", 1, False)
