"""Keep a server running: say when it is up and when it is down, start it again, and know when to give up."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .engine import (
    DEMO_MODEL,
    EngineConfig,
    EngineError,
    find_gguf,
    require_engine,
    require_program,
    run_command,
    run_engine,
)

if TYPE_CHECKING:
    from .engine import Engine
    from .settings import BackendSettings

log: Final = logging.getLogger(__name__)


Start = Callable[..., Awaitable[None]]
"""Runs a server until it has ended, which is an `EngineError`; gives the `Engine` to ``nursery.start``."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When a server is started again, and when no more. All times are in seconds."""

    first_pause: float = 1.0
    """After a crash; each crash in a row doubles it."""
    longest_pause: float = 30.0
    steady: float = 60.0
    """A crash after so long a time up is the first of its row."""
    brief: float = 5.0
    """One that has ended so soon after it came up has failed to start, unless it is excused."""
    failed_starts: int = 5
    """It is given up when it has failed to start so often in a row."""


USUAL: Final = Patience()


@final
class Restarts:
    """Counts the ends of a server."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._pause = patience.first_pause
        self._failed_starts = 0

    def pause_after(self, time_up: float | None, *, is_excused: bool) -> float | None:
        """Take note of an end, and return the seconds until the next start; None = do not start it again.

        Args:
            time_up: How long it had been up; None = it never was.
            is_excused: Whether it was killed, or had produced anything for a request.
        """
        has_failed = time_up is None or (time_up < self._patience.brief and not is_excused)
        self._failed_starts = self._failed_starts + 1 if has_failed else 0
        if self._failed_starts >= self._patience.failed_starts:
            return None
        if time_up is not None and time_up >= self._patience.steady:
            self._pause = self._patience.first_pause
        pause = self._pause
        self._pause = min(2 * pause, self._patience.longest_pause)
        return pause


async def supervise(
    name: str,
    start: Start,
    *,
    up: Callable[[str, str], None],
    down: Callable[[str], None],
    given_up: Callable[[str], None],
    has_worked: Callable[[], bool],
    patience: Patience = USUAL,
) -> None:
    """Run a server, and run it again whenever it has ended.

    Blocks until it is given up; when this is cancelled, until its process is gone. The three callbacks are
    called in this order: any number of times `up` and `down` in turn (a start that failed is a `down`
    too, without an `up` before it), then `given_up`.

    Args:
        name: The backend's, for the log.
        start: Runs the server once.
        up: Called with address and key when the server answers. Both are others after each start.
        down: Called with the reason when it has ended and is to be started again.
        given_up: Called with the reason when it has ended and is not started again.
        has_worked: Whether it has produced anything for a request since `up` was called.
        patience: How often, and after which pauses.
    """
    restarts = Restarts(patience)
    while True:
        error, time_up = await _run(start, up)
        reason = str(error)
        pause = restarts.pause_after(time_up, is_excused=error.was_killed or has_worked())
        if pause is None:
            log.error("backend %s is given up, since it does not stay up: %s", name, reason)
            given_up(reason)
            return
        down(reason)
        await trio.lowlevel.checkpoint()  # it may have been what cancels this
        log.warning("backend %s is started again in %g s: %s", name, pause, reason)
        await trio.sleep(pause)


async def _run(start: Start, up: Callable[[str, str], None]) -> tuple[EngineError, float | None]:
    """Run a server once; return why it has ended, and how long it was up, or None if it never was."""
    since: float | None = None
    ends: list[EngineError] = []
    try:
        async with trio.open_nursery() as nursery:
            engine: Engine = await nursery.start(start)
            since = trio.current_time()
            up(engine.url, engine.api_key)
    except* EngineError as group:
        ends += [each for each in group.exceptions if isinstance(each, EngineError)]
    [end] = ends
    return end, None if since is None else trio.current_time() - since


def starter(
    settings: BackendSettings,
    *,
    slot_files: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Start | None:
    """Return what runs the server of a backend once; None = it is at an address, and not ours to start.

    Args:
        settings: The backend's.
        slot_files: The directory for the saved slots of an embedded engine, unless the settings say another.
            It is the gateway's own: if this is killed, the engine removes it.
        progress: Gets a line for each step of each start; None = they are logged.

    Raises:
        EngineError: There is no such program or model, or the embedded engine is not installed.
    """
    if progress is None:
        progress = partial(log.info, "backend %s: %s", settings.name)
    if settings.command is not None:
        require_program(settings.command)
        return partial(run_command, settings.command, progress=progress)
    if settings.gguf is None:
        return None
    require_engine()
    said: dict[str, Any] = {
        "slots": settings.slots,
        "context_per_slot": settings.context_per_slot,
        "slot_save_path": slot_files if settings.slot_save_path is None else Path(settings.slot_save_path),
        "forgets_slots": settings.slot_save_path is None,
        # It is so small that it gains little from a second thread, while threads that wait for each other
        # make it crawl on a busy machine.
        "threads": 1 if settings.gguf == DEMO_MODEL else None,
    }
    config = EngineConfig(
        model=find_gguf(settings.gguf),
        **{name: value for name, value in said.items() if value is not None},
    )
    return partial(run_engine, config, progress=progress)
