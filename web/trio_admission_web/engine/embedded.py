"""Start the embedded engine, wait until it can answer, and stop it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, final

import trio

from trio_admission_web.extras import missing_extra

from ._errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .model import Model

_CHILD = Path(__file__).with_name("_child.py")
_STOP_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
_LOG_KEPT = 4096  # bytes of the engine's log that are kept for an error's text


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to start.

    The slots are isolated: each has its own `context_per_slot` tokens, and a full one hurts nobody else. With
    `kv_unified` all of them share `slots * context_per_slot` tokens, and when these run out every request in
    flight fails.
    """

    model: Model
    slots: int = 4
    context_per_slot: int = 2048
    """Tokens that a prompt and its answer may have together."""
    kv_unified: bool = False
    threads: int | None = None
    """CPU threads that decode; None leaves it to llama.cpp, which takes the physical cores."""
    slot_save_path: Path | None = None
    """The directory of saved slots, made if missing; None means that slots cannot be saved."""
    port: int = 0
    """The port on 127.0.0.1; 0 takes a free one."""

    def __post_init__(self) -> None:
        for name in ("slots", "context_per_slot", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


@final
@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine, ready to answer."""

    url: str
    """Its address, without a path."""
    api_key: str = field(repr=False)
    """Every request but `/health` must carry it as a bearer token, so that nobody goes past the line."""
    pid: int
    config: EngineConfig

    @property
    def slots(self) -> int:
        """How many sequences it decodes at once."""
        return self.config.slots


def _ignore(_line: str) -> None: ...


async def run_engine(
    config: EngineConfig,
    *,
    progress: Callable[[str], None] = _ignore,
    task_status: trio.TaskStatus[Engine] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run an engine until cancelled.

    `await nursery.start(run_engine, config)` returns the `Engine` when it can answer. `progress` gets a line
    for each step. However this ends, the child process is gone afterwards: SIGTERM, and SIGKILL two seconds
    later. Requests that are open then are cut.

    Raises:
        EngineError: it did not start, or it died; with the last lines of its log.
    """
    if find_spec("xllamacpp") is None:
        raise EngineError(missing_extra(["xllamacpp"], "demo"))
    if config.slot_save_path is not None:
        config.slot_save_path.mkdir(parents=True, exist_ok=True)
    api_key = secrets.token_urlsafe(32)
    log = bytearray()
    url = None
    progress(f"loading {config.model.name}")
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                # -P: the child must not find the modules beside it.
                [sys.executable, "-P", str(_CHILD), _options(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "TRIO_ADMISSION_ENGINE_API_KEY": api_key},
                # Ctrl-C in a terminal goes to a whole process group, but the engine is to stop last.
                start_new_session=True,
                check=False,
                deliver_cancel=_stop,
            )
        )
        assert process.stdout is not None
        assert process.stderr is not None
        nursery.start_soon(_keep_tail, process.stderr, log)
        if line := await _first_line(process.stdout):
            url = json.loads(line)["url"]
            progress(
                f"ready in {trio.current_time() - begun:.1f} s: "
                f"{config.slots} slots of {config.context_per_slot} tokens"
            )
            task_status.started(Engine(url, api_key, process.pid, config))
    # Only the end of the process leads here: a cancel leaves from inside the nursery.
    happened = "did not start" if url is None else "stopped by itself"
    raise EngineError(_death(config, happened, process.returncode, log))


def _options(config: EngineConfig) -> str:
    """Return the child's argument."""
    return json.dumps({
        "model": str(config.model.path),
        "name": config.model.name,
        "chat_template": config.model.chat_template and str(config.model.chat_template),
        "slots": config.slots,
        "context_per_slot": config.context_per_slot,
        "kv_unified": config.kv_unified,
        "threads": config.threads,
        "slot_save_path": config.slot_save_path and str(config.slot_save_path),
        "port": config.port,
    })


async def _stop(process: trio.Process) -> None:
    """Trio cancels this when the process has ended."""
    process.terminate()
    await trio.sleep(_STOP_GRACE)
    process.kill()


async def _keep_tail(stream: trio.abc.ReceiveStream, log: bytearray) -> None:
    """Read everything, or the engine would block on a full pipe; keep the end."""
    async for chunk in stream:
        log += chunk
        del log[:-_LOG_KEPT]


async def _first_line(stream: trio.abc.ReceiveStream) -> bytes:
    """Return the first line, or nothing if the stream ends without one."""
    received = bytearray()
    async for chunk in stream:
        received += chunk
        if b"\n" in received:
            return bytes(received.partition(b"\n")[0])
    return b""


def _death(config: EngineConfig, happened: str, status: int | None, log: bytearray) -> str:
    last_lines = log.decode(errors="replace").splitlines()[-8:]
    what = (
        f"the embedded engine {happened} with {config.model.path} (exit status {status}); the end of its log:"
    )
    return "\n    ".join([what, *last_lines])
