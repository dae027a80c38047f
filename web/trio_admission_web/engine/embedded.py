"""Start the embedded engine, wait until it can answer, and stop it."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, final

import trio

from trio_admission_web.extras import missing_extra

from ._errors import EngineError
from ._process import Engine, run_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from .model import Model

_CHILD = Path(__file__).with_name("_child.py")


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
    forgets_slots: bool = False
    """Whether the engine removes that directory when this process has been killed."""
    port: int = 0
    """The port on 127.0.0.1; 0 takes a free one."""

    def __post_init__(self) -> None:
        for name in ("slots", "context_per_slot", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


def _ignore(_line: str) -> None: ...


def require_engine() -> None:
    """See that the embedded engine is installed.

    Raises:
        EngineError: It is not; the text says how to get it.
    """
    if find_spec("xllamacpp") is None:
        raise EngineError(missing_extra(["xllamacpp"], "demo"))


async def run_engine(
    config: EngineConfig,
    *,
    progress: Callable[[str], None] = _ignore,
    task_status: trio.TaskStatus[Engine] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run an engine until cancelled.

    `await nursery.start(run_engine, config)` returns the `Engine` when it can answer. `progress` gets a line
    for each step. However this ends, the child process is gone afterwards; requests that are open then are
    cut.

    Raises:
        EngineError: it did not start, or it died; with the last lines of its log.
    """
    require_engine()
    if config.slot_save_path is not None:
        _make(config.slot_save_path)
    api_key = secrets.token_urlsafe(32)
    progress(f"loading {config.model.name}")
    begun = trio.current_time()

    async def ready(process: trio.Process) -> Engine | None:
        assert process.stdout is not None
        if not (line := await _first_line(process.stdout)):
            return None
        seconds = trio.current_time() - begun
        progress(f"ready in {seconds:.1f} s: {config.slots} slots of {config.context_per_slot} tokens")
        return Engine(json.loads(line)["url"], api_key, process.pid)

    await run_process(
        f"the embedded engine with {config.model.path}",
        # -P: the child must not find the modules beside it.
        [sys.executable, "-P", str(_CHILD), _options(config)],
        environ={"TRIO_ADMISSION_ENGINE_API_KEY": api_key},
        ready=ready,
        task_status=task_status,
        remedy="`trio-admission fetch-model` repairs it" if config.model.is_cached else "",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # conversations will be in it
    except OSError as error:
        raise EngineError(f"{directory} cannot be a directory for saved slots: {error.strerror}") from error


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
        "forgets_slots": config.slot_save_path is not None and config.forgets_slots,
        "port": config.port,
    })


async def _first_line(stream: trio.abc.ReceiveStream) -> bytes:
    """Return the first line, or nothing if the stream ends without one."""
    received = bytearray()
    async for chunk in stream:
        received += chunk
        if b"\n" in received:
            return bytes(received.partition(b"\n")[0])
    return b""
