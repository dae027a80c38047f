"""The demo, as somebody who tries it meets it: the command in a process of its own, on the real engine."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import trio

from tests.support.processes import children, is_gone
from tests.support.serving import until


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
