"""A server in a child process: from its start to its end, whatever its end is."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import trio

from ._errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

# Seconds after SIGTERM. llama-server finishes its requests first, which are cut by then, and may never end on
# that account; a second SIGTERM ends it at once.
_GRACE: Final = 2.0
_LAST_GRACE: Final = 1.0
_LOG_KEPT: Final = 4096  # bytes of a server's output that are kept for an error's text
_LINES_SHOWN: Final = 8
# How llama.cpp says what is wrong with a model, among a dozen lines that say that something is.
_NO_MODEL: Final = re.compile(
    r"(?:gguf_init\w*|error loading model): (?!llama_model_loader: failed to load model)(.+)"
)
_LAST_WORDS: Final = 1.0  # seconds for the rest of the output of a server that has ended


@final
@dataclass(frozen=True, slots=True)
class Engine:
    """A running server, ready to answer."""

    url: str
    """Its address, without a path."""
    api_key: str = field(repr=False)
    """Every request but `/health` must carry it as a bearer token, so that nobody goes past the line."""
    pid: int


async def run_process(
    name: str,
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    ready: Callable[[trio.Process], Awaitable[Engine | None]],
    task_status: trio.TaskStatus[Engine],
    remedy: str = "",
    **pipes: Any,
) -> None:
    """Run a server in a child process until it ends, or until cancelled.

    However this ends, the process and all that it has started in its process group are gone afterwards:
    SIGTERM, two seconds later another, and a second later SIGKILL.

    Args:
        name: What it is called in an error.
        command: The program, looked for on the path, and its arguments.
        environ: Variables beside those of this process.
        ready: Returns the engine when it answers, or None when it never will.
        task_status: Gets the engine.
        remedy: The end of a sentence: what helps if it finds its model to be damaged.
        pipes: As for `subprocess.Popen`; the output of ``stderr``, or else of ``stdout``, is kept.

    Raises:
        EngineError: It could not be started, or it has ended; with what it says of its model, if that was the
            reason, else with the end of its output.
    """
    output = bytearray()
    was_up = False

    async def announce(process: trio.Process) -> None:
        nonlocal was_up
        if (engine := await ready(process)) is not None:
            was_up = True
            task_status.started(engine)

    refused: OSError | None = None
    with ExitStack() as at_end:
        async with trio.open_nursery() as nursery:
            try:
                process: trio.Process = await nursery.start(
                    partial(
                        trio.run_process,
                        command,
                        env={**os.environ, **environ},
                        # Ctrl-C in a terminal goes to a whole process group, but the server is to stop last.
                        start_new_session=True,
                        check=False,
                        deliver_cancel=_stop,
                        **pipes,
                    )
                )
            except OSError as error:
                refused = error
            else:
                at_end.callback(_close_pipes, process)
                await _watch(process, announce, output)
    if refused is not None:
        raise EngineError(f"{name} cannot be started: {refused.strerror}") from refused
    # Only the end of the process leads here: a cancel leaves from inside the nursery.
    said = output.decode(errors="replace")
    if not was_up and (reason := _NO_MODEL.search(said)):
        raise EngineError("; ".join(filter(None, [f"{name} did not start: {reason[1].strip()}", remedy])))
    happened = "stopped by itself" if was_up else "did not start"
    what = f"{name} {happened} (exit status {process.returncode})"
    if lines := said.splitlines()[-_LINES_SHOWN:]:
        what = "\n    ".join([f"{what}; the end of its log:", *lines])
    raise EngineError(what, was_killed=_signal_of(process.returncode) in {signal.SIGKILL, signal.SIGTERM})


def _close_pipes(process: trio.Process) -> None:
    # Trio leaves them to the garbage collector.
    for pipe in (process.stdin, process.stdout, process.stderr):
        if isinstance(pipe, trio.lowlevel.FdStream):
            pipe.close()


async def _watch(
    process: trio.Process, announce: Callable[[trio.Process], Awaitable[None]], output: bytearray
) -> None:
    """Read what it says and wait until it has ended."""
    stream = process.stderr or process.stdout
    assert stream is not None
    is_read = trio.Event()

    async def read() -> None:
        await _keep_tail(stream, output)
        is_read.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(announce, process)
        await process.wait()
        _signal(process, signal.SIGKILL)  # whoever is left of its group may hold the other end of the pipe
        with trio.move_on_after(_LAST_WORDS):
            await is_read.wait()
        nursery.cancel_scope.cancel()


async def _stop(process: trio.Process) -> None:
    """Trio cancels this when the process has ended."""
    try:
        _signal(process, signal.SIGTERM)
        await trio.sleep(_GRACE)
        _signal(process, signal.SIGTERM)
        await trio.sleep(_LAST_GRACE)
    finally:
        _signal(process, signal.SIGKILL)  # also to what it has left behind


def _signal_of(status: int | None) -> int:
    """Return the signal that has ended a process, said by the system or in the way of a shell; 0 = none."""
    if status is None:
        return 0
    return -status if status < 0 else max(status - 128, 0)


def _signal(process: trio.Process, signal_: signal.Signals) -> None:
    """Send a signal to its process group, of which it is the leader."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal_)


async def _keep_tail(stream: trio.abc.ReceiveStream, output: bytearray) -> None:
    """Read everything, or the server would block on a full pipe; keep the end."""
    async for chunk in stream:
        output += chunk
        del output[:-_LOG_KEPT]
