"""Serve an application in this process: listen, say where, obey signals, and end in bounded time."""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from .listening import BACKLOG, Door, listen_at_address, listening_at_path, take_inherited
from .output import put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .serving.app import ServingApp

log: Final = logging.getLogger(__name__)

KEEP_ALIVE = 15.0  # seconds; longer than the pools of usual clients (5 s), so that the client closes first
LAST_WORDS = 1.0  # seconds at the deadline to let in those who have come, and again to tell all whom it cuts


class LaunchError(Exception):
    """Raised when the server cannot start; the text is one sentence for the operator."""


async def run_server(
    app: ServingApp,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    unix: str | None = None,
    tls: tuple[str, str] | None = None,
    shutdown_deadline: float = 30.0,
    drain: Callable[[], Awaitable[None]] | None = None,
    cut_off: Callable[[], None] | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until SIGTERM or SIGINT; must run in the main thread.

    Once it accepts connections, prints `listening on http://HOST:PORT` to stdout for each address, and starts
    with the list of these URLs. Blocks until the server has stopped. Sockets that the process was started
    with (`listening.take_inherited`) take the place of `host`, `port` and `unix`.

    The first signal calls `drain`, while new requests are still accepted, so that the application can refuse
    them. When `drain` returns, or is cancelled because `shutdown_deadline` has passed, nobody new is let in,
    and listening stops when those who have come are in (`listening.Door.shut`). Requests in flight have the
    rest of the time to finish, and at least a second; then they are cancelled. The second signal calls
    `cut_off` and cancels everything.

    Args:
        app: The application.
        host: An address, or a name, all of whose addresses are listened on.
        port: 0 means any free port.
        unix: Path of a unix socket, to listen there instead.
        tls: Files with the certificate chain and its key, to speak TLS.
        shutdown_deadline: Seconds from the first signal.
        drain: Returns when the application has nothing left to do.
        cut_off: Lets the application take note of why its requests end.
        task_status: For `nursery.start`.

    Raises:
        LaunchError: The address is in use, unknown or not allowed, or the files for TLS are not good.
    """
    config = Config()
    if tls is not None:
        _set_up_tls(config, *tls)
    config.errorlog = logging.getLogger("hypercorn.error")  # stderr, unless logging is configured otherwise
    config.errorlog.setLevel(logging.WARNING)  # where it listens is said below
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE
    config.backlog = BACKLOG
    stop = trio.Event()
    urls: list[str] = []

    async def serve_and_finish(task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(app, config, shutdown_trigger=stop.wait, task_status=task_status)
        nursery.cancel_scope.cancel()

    async def stop_gently() -> None:
        if not urls:  # still starting
            nursery.cancel_scope.cancel()
        deadline = trio.current_time() + shutdown_deadline
        log.info("stopping: requests have %g s to finish; a second signal stops at once", shutdown_deadline)
        if drain is not None:
            with trio.move_on_at(deadline):
                await drain()
        with trio.move_on_at(max(deadline, trio.current_time() + LAST_WORDS)):
            await door.shut()
        config.graceful_timeout = max(deadline - trio.current_time(), LAST_WORDS)
        stop.set()

    async def obey_signals() -> None:
        await anext(signals)
        nursery.start_soon(stop_gently)
        await anext(signals)
        if cut_off is not None:
            cut_off()
        nursery.cancel_scope.cancel()

    with ExitStack() as at_exit, trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        door = await _listen(host, port, unix, at_exit)
        config.bind = [f"fd://{each}" for each in door.sockets]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(obey_signals)
            urls += await nursery.start(serve_and_finish)
            for url in urls:
                put(f"listening on {url}")
            task_status.started(urls)


def launch(main: Callable[[], Awaitable[None]]) -> int:
    """Run `main` in a Trio run of its own and return the exit status for the process.

    A `LaunchError`, also one inside groups, is one line on stderr and status 1; any other error is raised.
    """
    try:
        trio.run(main)
    except* LaunchError as group:
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        print(f"trio-admission: {failure}", file=sys.stderr)
    else:
        return 0
    return 1


def _set_up_tls(config: Config, certificate: str, key: str) -> None:
    config.certfile, config.keyfile = certificate, key
    config.keyfile_password = ""  # or OpenSSL would ask for it on the terminal
    try:
        config.create_ssl_context()
    except OSError as error:  # OpenSSL's errors are some too
        raise LaunchError(f"cannot use {certificate} and {key} for TLS: {_reason(error)}") from error


async def _listen(host: str, port: int, unix: str | None, at_exit: ExitStack) -> Door:
    # Not left to Hypercorn, whose error would come out of three nurseries after the application has started.
    place = "the sockets that were handed over"
    try:
        if inherited := take_inherited():
            return Door(inherited)
        if unix is not None:
            place = f"http://unix:{unix}"
            return at_exit.enter_context(listening_at_path(Path(unix)))
        place = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return await listen_at_address(host, port)
    except OSError as error:
        raise LaunchError(f"cannot listen on {place}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
