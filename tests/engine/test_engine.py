"""The engine's life: it starts, answers, and is gone when it should be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trio

from tests.support.engine import CHAT, RunningEngine, small
from trio_admission_web.engine import EngineError, Model, _process, find_model, run_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.engine.conftest import StartEngine

GRACE = 2.0  # seconds that a stopped engine has before it is killed


def greedy(prompt: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 24, **more}


async def streamed(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


async def test_it_answers_different_prompts_differently(engine: RunningEngine) -> None:
    async with engine.client() as client:
        answers = [
            (await client.post(CHAT, json=greedy(prompt))).json()["choices"][0]["message"]["content"]
            for prompt in ("Name three colours.", "What is the capital of France?")
        ]
    assert all(answers)
    assert answers[0] != answers[1]


async def test_the_server_says_what_was_configured(engine: RunningEngine) -> None:
    props = (await engine.get("/props")).json()
    models = (await engine.get("/v1/models")).json()
    assert engine.slots == props["total_slots"] == len(await engine.slot_states()) == 4
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert [model["id"] for model in models["data"]] == ["SmolLM2-135M-Instruct"]
    assert "llamacpp:requests_deferred" in await engine.metrics()


async def test_nobody_goes_past_the_line_without_the_key(engine: RunningEngine) -> None:
    async with httpx2.AsyncClient(base_url=engine.url, trust_env=False) as client:
        refused = await client.post(CHAT, json=greedy("Hello"))
        health = await client.get("/health")
    assert refused.status_code == 401
    assert health.status_code == 200
    assert engine.api_key not in repr(engine.engine)


async def test_slots_can_be_saved_where_the_configuration_says(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    saved = tmp_path / "new" / "slots"
    engine = await start_engine(slots=1, context_per_slot=256, slot_save_path=saved)
    async with engine.client() as client:
        await client.post(CHAT, json=greedy("Hello", id_slot=0))
        answer = await client.post("/slots/0?action=save", json={"filename": "hello.bin"})
    assert answer.status_code == 200
    assert (saved / "hello.bin").stat().st_size > 0


async def test_a_unified_cache_gives_each_slot_the_whole_of_it(start_engine: StartEngine) -> None:
    engine = await start_engine(slots=2, context_per_slot=256, kv_unified=True)
    assert [state["n_ctx"] for state in await engine.slot_states()] == [512, 512]


async def test_progress_tells_what_is_loaded_and_how_long_it_took(nursery: trio.Nursery) -> None:
    told: list[str] = []
    await nursery.start(partial(run_engine, small(slots=1, context_per_slot=256), progress=told.append))
    loading, ready = told
    assert loading == "loading SmolLM2-135M-Instruct"
    assert ready.startswith("ready in ")
    assert ready.endswith(" s: 1 slots of 256 tokens")


async def test_cancelling_ends_it_at_once_even_while_it_streams() -> None:
    async with trio.open_nursery() as nursery:
        engine = RunningEngine(await nursery.start(run_engine, small(slots=1)), 1)
        async with (
            engine.client() as client,
            client.stream("POST", CHAT, json=greedy("Count.", stream=True, max_tokens=900)) as response,
        ):
            events = streamed(response)
            await anext(events)
            begun = trio.current_time()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), pytest.raises(httpx2.RemoteProtocolError):
                async for _event in events:
                    pass
    assert trio.current_time() - begun < GRACE
    with pytest.raises(ProcessLookupError):
        os.kill(engine.engine.pid, 0)


async def test_cancelling_ends_it_while_it_loads() -> None:
    async with trio.open_nursery() as nursery:
        loading = trio.Event()
        nursery.start_soon(partial(run_engine, small(), progress=lambda _line: loading.set()))
        await loading.wait()
        await trio.sleep(0.2)  # wherever it is by then: before its first line, or amid the weights
        begun = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - begun < GRACE


async def test_cancelling_ends_one_that_does_not_react(monkeypatch: pytest.MonkeyPatch) -> None:
    for grace in ("_GRACE", "_LAST_GRACE"):
        monkeypatch.setattr(_process, grace, 0.1)
    async with trio.open_nursery() as nursery:
        engine = await nursery.start(run_engine, small(slots=1))
        os.kill(engine.pid, signal.SIGSTOP)
        await trio.to_thread.run_sync(os.waitid, os.P_PID, engine.pid, os.WSTOPPED | os.WNOWAIT)
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(engine.pid, 0)


async def test_it_dies_with_its_parent() -> None:
    parent = await trio.lowlevel.open_process(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.receive_some())
    orphan = os.pidfd_open(pid)
    try:
        parent.kill()
        await parent.wait()
        with trio.fail_after(10):
            await trio.lowlevel.wait_readable(orphan)
    except trio.TooSlowError:
        signal.pidfd_send_signal(orphan, signal.SIGKILL)
        raise
    finally:
        os.close(orphan)


PARENT = """
import trio
from tests.support.engine import small
from trio_admission_web.engine import run_engine

async def main():
    async with trio.open_nursery() as nursery:
        engine = await nursery.start(run_engine, small(slots=1))
        print(engine.pid, flush=True)

trio.run(main)
"""


async def test_a_crash_is_an_error_that_says_so() -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(
            EngineError,
            match=r"stopped by itself \(exit status -9\)",
            check=lambda error: error.was_killed,
        )
    ):
        async with trio.open_nursery() as nursery:
            engine = await nursery.start(run_engine, small(slots=1))
            os.kill(engine.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("whole", "reason"),
    [
        (b"no weights in here" * 100, "invalid magic characters"),
        (b"GGUF and no more of a model", "this GGUF file is version"),
        (None, "is not within the file bounds, model is corrupted or incomplete"),
    ],
    ids=["other", "old", "cut"],
)
@pytest.mark.parametrize(
    ("is_cached", "remedy"), [(False, ""), (True, "; `trio-admission fetch-model` repairs it")]
)
async def test_a_bad_model_is_one_sentence_with_the_reason(
    whole: bytes | None, reason: str, is_cached: bool, remedy: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    if whole is None:
        with find_model().path.open("rb") as file:
            whole = file.read(4 * 2**20)
    broken.write_bytes(whole)
    with pytest.raises(EngineError) as caught:
        await run_engine(small(model=Model("broken", broken, is_cached=is_cached)))
    [sentence] = str(caught.value).splitlines()
    assert sentence.startswith(f"the embedded engine with {broken} did not start: ")
    assert reason in sentence
    assert sentence.endswith(remedy)


async def test_a_port_in_use_is_an_error_with_the_end_of_the_log() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"couldn't bind HTTP server socket.*{port}"):
            await run_engine(small(slots=1, port=port))


async def test_a_chosen_port_is_used(start_engine: StartEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    engine = await start_engine(slots=1, port=port)
    assert engine.url == f"http://127.0.0.1:{port}"
