"""A llama-server's command line, with a small script in place of the server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from tests.support.processes import children, is_gone
from tests.support.serving import until
from tests.support.small_server import COMMAND
from trio_admission_web.engine import Engine, EngineError, _process, command, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


async def end_of(words: Sequence[str]) -> tuple[Engine, str]:
    """Run a server, kill it when it is up, and return it and what is said of its end."""
    engine: Engine | None = None
    ends: list[BaseException] = []
    try:
        async with trio.open_nursery() as nursery:
            engine = await nursery.start(run_command, words)
            [server] = children(engine.pid)
            os.kill(server, signal.SIGKILL)
    except* EngineError as group:
        ends += group.exceptions
    [end] = ends
    assert isinstance(end, EngineError)
    assert end.was_killed
    assert engine is not None
    return engine, str(end)


async def test_it_is_announced_when_it_says_that_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(command, "_BETWEEN_WORDS", 0)
    told: list[str] = []
    start = partial(run_command, [*COMMAND, "loads:3"], progress=told.append)
    engine: Engine = await nursery.start(start)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", engine.url)
    begun, *loading, ready = told
    program = os.path.basename(sys.executable)
    assert begun == f"starting {program}"
    assert len(loading) >= 3
    assert all(re.fullmatch(rf"{program} has been loading for \d+ s", each) for each in loading)
    assert re.fullmatch(rf"{program} is ready after [\d.]+ s", ready)
    nursery.cancel_scope.cancel()


async def test_it_gets_address_and_key_and_each_run_another() -> None:
    ends = [await end_of([*COMMAND, "loads:0"]) for _ in range(2)]
    for engine, said in ends:
        host, port = engine.url.removeprefix("http://").split(":")
        assert "stopped by itself (exit status 137); the end of its log:" in said
        assert f"arguments loads:0 --host {host} --port {port}" in said
        assert f"key {engine.api_key}" in said  # from the environment: it is not among the arguments
    assert ends[0][0].api_key != ends[1][0].api_key


async def test_one_that_does_not_start_is_an_error_with_all_that_it_has_said() -> None:
    with pytest.raises(EngineError, match=r"did not start \(exit status 3\); the end of its log:") as caught:
        await run_command([*COMMAND, "breaks"])
    assert not caught.value.was_killed
    assert "key " in str(caught.value)
    assert "arguments breaks" in str(caught.value)


@pytest.mark.parametrize(
    ("program", "reason"), [("no-such-server", "No such file or directory"), ("/", "Permission denied")]
)
async def test_a_program_that_cannot_be_run_is_an_error_that_says_so(program: str, reason: str) -> None:
    with pytest.raises(
        EngineError, match=rf"did not start(?s:.*)\n    {program} cannot be started: {reason}"
    ):
        await run_command([program])


async def test_a_machine_that_can_start_nothing_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(EngineError, match=r"llama-server cannot be started: No such file or directory"):
        await run_command(["llama-server"])


@pytest.mark.parametrize(("ignored", "obeys"), [(0, True), (1, True), (2, False)])
async def test_it_is_stopped_by_two_signals_that_it_may_obey_and_one_that_it_must(
    ignored: int, obeys: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grace = 10 if obeys else 0.1  # seconds, of which one that obeys uses next to nothing
    monkeypatch.setattr(_process, "_GRACE", grace if ignored == 0 else 0.1)
    monkeypatch.setattr(_process, "_LAST_GRACE", grace)
    note = tmp_path / "note"
    async with trio.open_nursery() as nursery:
        engine = await nursery.start(run_command, [*COMMAND, f"stubborn:{ignored}", f"notes:{note}"])
        nursery.cancel_scope.cancel()
    assert is_gone(engine.pid)
    assert note.exists() == obeys


async def test_cancelling_ends_one_that_still_loads() -> None:
    others = set(children(os.getpid()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_command, [*COMMAND, "loads:1000000"])
        await until(lambda: set(children(os.getpid())) - others)
        [pid] = set(children(os.getpid())) - others
        nursery.cancel_scope.cancel()
    assert is_gone(pid)


@pytest.mark.parametrize("is_killed", [True, False])
async def test_nothing_is_left_of_one_that_was_started_by_another_program(
    tmp_path: Path, is_killed: bool
) -> None:
    """The whole group goes, whether the gateway ends it or it has lost its head."""
    note = tmp_path / "pid"
    wrapper = ["sh", "-c", f'"$@" & echo $! > {note}; wait', "sh", *COMMAND, "loads:0"]
    if is_killed:
        await end_of(wrapper)
    else:
        async with trio.open_nursery() as nursery:
            await nursery.start(run_command, wrapper)
            nursery.cancel_scope.cancel()
    await until(lambda: is_gone(int(note.read_text())))


async def test_it_dies_with_its_parent() -> None:
    parent = await trio.lowlevel.open_process(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    guard = int(await parent.stdout.receive_some())
    [server] = children(guard)
    parent.kill()
    await parent.wait()
    await until(lambda: is_gone(guard) and is_gone(server))


PARENT = """
import trio
from tests.support.small_server import COMMAND
from trio_admission_web.engine import run_command

async def main():
    async with trio.open_nursery() as nursery:
        engine = await nursery.start(run_command, [*COMMAND, "loads:0"])
        print(engine.pid, flush=True)

trio.run(main)
"""
