"""The demo, as somebody who tries it meets it: the command in a process of its own, on the real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trio

from tests.support.command import running
from tests.support.gateway import CHAT, chat
from tests.support.processes import children, is_gone
from tests.support.raw_client import RawClient, data_of
from tests.support.serving import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_amid_the_one_answer_ends_it_all_without_a_word(stop: signal.Signals) -> None:
    process = await trio.lowlevel.open_process(
        [
            sys.executable,
            "-m",
            "trio_admission_web",
            "demo",
            "--slots",
            "1",
            "--once",
            "Tell me a long story.",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert await process.stdout.receive_some()
    [engine] = children(process.pid)
    process.send_signal(stop)
    said = b"".join([each async for each in process.stderr]).decode()
    assert await process.wait() == 130
    assert [line.split()[0] for line in said.splitlines()] == ["listening", "loading", "ready"]
    await until(lambda: is_gone(engine))


async def test_an_answer_that_cannot_be_written_is_not_laid_at_the_backends_door() -> None:
    demo = [sys.executable, "-m", "trio_admission_web", "demo", "--slots", "1", "--once", "hi"]
    full = os.open("/dev/full", os.O_WRONLY)
    done = await trio.run_process(demo, stdout=full, capture_stderr=True, check=False)
    os.close(full)
    *_, said = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert said == "trio-admission: standard output cannot be written: No space left on device"


async def test_a_reader_who_has_enough_ends_it_without_a_word() -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "trio_admission_web", "demo", "--slots", "1", "--once", "Tell me a story."],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert await process.stdout.receive_some(1)
    await process.stdout.aclose()
    said = b"".join([each async for each in process.stderr]).decode()
    assert await process.wait() == 141
    assert [line.split()[0] for line in said.splitlines()] == ["listening", "loading", "ready"]


DEMO = ("trio_admission_web", "demo", "--slots", "1", "--port", "0")


async def test_it_listens_before_it_has_loaded_the_model_and_serves_those_who_come_early() -> None:
    async with running(*DEMO) as command:
        async with RawClient.connected(command.url) as client:
            answer = await client.ask("POST", CHAT, chat(stream=True, max_tokens=4))
            assert data_of(answer.body)[-1] == "[DONE]"
        await until(lambda: b"try: curl" in command.said, seconds=20)
        assert f"see: {command.url}/admission" in command.said.decode()
        assert command.said.index(b"listening on") < command.said.index(b"ready in")
        command.process.send_signal(signal.SIGTERM)
    assert command.process.returncode == 0


async def test_an_engine_that_does_not_come_up_ends_it_with_the_reason() -> None:
    async with running(*DEMO) as command:
        await until(lambda: children(command.process.pid), seconds=20)
        [engine] = children(command.process.pid)
        os.kill(engine, signal.SIGKILL)
    assert command.process.returncode == 1
    told = [line for line in command.said.decode().splitlines() if line.startswith("trio-admission: ")]
    assert len(told) == 1
    assert "(exit status -9)" in told[0]
    assert command.said.count(b"exit status") == 1


async def test_a_gateway_that_is_killed_leaves_no_saved_slots_behind(tmp_path: Path) -> None:
    async with running(*DEMO, TMPDIR=str(tmp_path)) as command:
        await until(lambda: b"ready in" in command.said, seconds=20)
        [engine] = children(command.process.pid)
        [name] = os.listdir(tmp_path)
        saved = tmp_path / name
        (saved / "slot.bin").write_bytes(b"what was said")
        command.process.kill()
    await until(lambda: is_gone(engine), seconds=20)
    assert not saved.exists()
