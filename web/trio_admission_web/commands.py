"""What the commands do: the gateway alone, or the embedded engine and the gateway in front of it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from .app import create_app
from .configuration import CONFIG, ConfigurationError, load
from .engine import EngineConfig, EngineError, Model, fetch_model, find_model, run_engine
from .launcher import LaunchError, launch, run_server
from .problems import ProblemError, bad_gateway, upstream_error
from .settings import BackendSettings
from .tools import ToolLoadError
from .upstream import Upstream
from .wire.chat import Chat
from .wire.sse import read_fields, split_events
from .wire.streamed import DONE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .app import App
    from .settings import Settings

log: Final = logging.getLogger(__name__)

# Our own model is so small that it may find no end by itself, and that it gains little from a second thread,
# while threads that wait for each other make it crawl on a busy machine.
_MAX_TOKENS = 128
_THREADS = 1


def serve(settings: Settings, read_again: Callable[[], Settings]) -> int:
    """Run the gateway until a signal and return the exit status. A failure is one sentence on stderr.

    SIGHUP reads the configuration again, for keys and limits; the line and what runs stay as they are.

    Args:
        settings: What to begin with.
        read_again: Reads them again, or raises `ConfigurationError`.
    """

    async def run() -> None:
        try:
            app = create_app(settings)
        except (EngineError, ToolLoadError) as error:
            raise LaunchError(str(error)) from error
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_reload_on_hangup, app, read_again)
            await run_server(
                app,
                host=settings.host,
                port=settings.port,
                unix=settings.unix,
                tls=settings.tls,
                shutdown_deadline=settings.shutdown_deadline,
                drain=app.gateway.drain,
            )
            nursery.cancel_scope.cancel()

    return launch(run)


async def _reload_on_hangup(app: App, read_again: Callable[[], Settings]) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            try:
                settings = read_again()
            except ConfigurationError as error:
                for mistake in error.mistakes:
                    log.error("not reloaded: %s", mistake)  # noqa: TRY400 - the sentence says it all
                continue
            for name in app.apply(settings):
                log.warning("reloaded, but to change %s takes a restart", name)
            log.info("reloaded: %d API keys", len(settings.keys))


def demo(*, prompt: str | None, model: Path | None, slots: int, host: str, port: int) -> int:
    """Run engine and gateway until a signal, or until one prompt is answered; return the exit status.

    Progress goes to stderr, and the answer alone to stdout. A failure is one sentence on stderr.
    """
    return launch(partial(_demo, prompt, model, slots, host, port))


async def _demo(prompt: str | None, model: Path | None, slots: int, host: str, port: int) -> None:
    try:
        await _refuse_a_port_in_use(host, port)
        config = EngineConfig(model=_model(model), slots=slots, threads=_THREADS if model is None else None)
        async with trio.open_nursery() as nursery:
            engine = await nursery.start(partial(run_engine, config, progress=_say))
            app = create_app(
                load(
                    environ={name: text for name, text in os.environ.items() if name != CONFIG},
                    flags={
                        "upstream": engine.url,
                        "upstream_api_key": engine.api_key,
                        "slots": str(slots),
                        "host": host,
                        "port": str(port),
                    },
                )
            )

            async def interrupt() -> None:  # nobody is served here but the one who has sent the signal
                nursery.cancel_scope.cancel()  # first, or the answer would be found to be cut
                raise KeyboardInterrupt

            async def run(task_status: trio.TaskStatus[list[str]]) -> None:
                if prompt is None:
                    await run_server(
                        app, host=host, port=port, drain=app.gateway.drain, task_status=task_status
                    )
                else:
                    await run_server(app, host=host, port=port, drain=interrupt, task_status=task_status)
                nursery.cancel_scope.cancel()

            if prompt is None:
                url, *_ = await nursery.start(run)
                print(f"try: {_curl(url)}\nsee: {url}/admission", flush=True)
            else:
                with redirect_stdout(sys.stderr):
                    url, *_ = await nursery.start(run)
                await _ask(url, prompt)
                nursery.cancel_scope.cancel()
    except* (ConfigurationError, EngineError, ProblemError, ToolLoadError) as group:
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise LaunchError(str(failure)) from failure


async def _refuse_a_port_in_use(host: str, port: int) -> None:
    """Do so before the model is loaded, for which whoever started this would wait in vain."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise LaunchError(f"cannot listen on http://{host}:{port}: {error.strerror}") from error
    for each in listeners:
        await each.aclose()


def _model(path: Path | None) -> Model:
    """Find the model, and download the default one if it is nowhere."""
    try:
        return find_model(path)
    except EngineError:
        if path is not None:
            raise
    fetch_model(_say)
    return find_model()


async def _ask(url: str, prompt: str) -> None:
    """Print the answer to one prompt as it streams through the gateway."""
    body = json.dumps(_request(prompt)).encode()
    exchange = Chat(body)
    async with Upstream(BackendSettings(url=url)).open("POST", exchange.path, body=body) as answer:
        if not answer.is_event_stream:
            whole = await answer.whole()
            raise ProblemError(upstream_error(whole.status, whole.body))
        async for data in answer:
            for event in split_events(exchange.relay(data)):
                print(_text(read_fields(event).get(b"data", b"")), end="", flush=True)
    if not exchange.finished or exchange.failure:
        raise ProblemError(exchange.failure or bad_gateway())
    print()


def _text(data: bytes) -> str:
    """What the data of one event adds to the answer."""
    if not data or data == DONE:
        return ""
    return "".join(choice["delta"].get("content") or "" for choice in json.loads(data)["choices"])


def _request(prompt: str) -> dict[str, Any]:
    return {
        "stream": True,
        "max_tokens": _MAX_TOKENS,
        "messages": [{"role": "user", "content": prompt}],
    }


def _curl(url: str) -> str:
    body = json.dumps(_request("Why is the sky blue?"))
    return f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
