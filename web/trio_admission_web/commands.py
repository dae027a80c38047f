"""What the commands do: the gateway alone, or the embedded engine and the gateway in front of it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from contextlib import nullcontext, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from .app import create_app
from .configuration import CONFIG, ConfigurationError, load
from .engine import DEMO_MODEL, EngineError, fetch_model, find_model
from .launcher import LaunchError, launch, run_server
from .network import leads_to
from .options import BACKEND
from .output import put
from .problems import ProblemError, bad_gateway, upstream_error
from .settings import EXPOSED, BackendSettings
from .supervision import Patience, log as supervision_log
from .tools import ToolLoadError
from .upstream import Upstream
from .wire.chat import Chat
from .wire.sse import read_fields, split_events
from .wire.streamed import DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .app import App
    from .condition import Condition
    from .settings import Settings

log: Final = logging.getLogger(__name__)

_EXPOSED: Final = "can be reached by others, and the demo has no keys: say --insecure to let everybody in"
_MAX_TOKENS: Final = 128  # the demo's model is so small that it may find no end by itself


def serve(settings: Settings, read_again: Callable[[], Settings]) -> int:
    """Run the gateway until a signal and return the exit status. A failure is one sentence on stderr.

    SIGHUP reads the configuration again, for keys and limits; the line and what runs stay as they are.

    Args:
        settings: What to begin with.
        read_again: Reads them again, or raises `ConfigurationError`.
    """

    async def run() -> None:
        _refuse_to_meet_itself(settings)
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
                cut_off=app.gateway.cut_off,
            )
            nursery.cancel_scope.cancel()

    return launch(run)


def _refuse_to_meet_itself(settings: Settings) -> None:
    if settings.unix is not None or "LISTEN_FDS" in os.environ:  # host and port are not used
        return
    for each in settings.backends:
        if each.url is not None and leads_to(each.url, settings.host, settings.port):
            place = f"{settings.host}:{settings.port}"
            raise LaunchError(
                f"backend {each.name} has the gateway's own address, {place}: give it another --port"
            )


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


def demo(*, prompt: str | None, model: Path | None, flags: Mapping[str, str]) -> int:
    """Run engine and gateway until a signal, or until one prompt is answered; return the exit status.

    Progress goes to stderr, and the answer alone to stdout. A failure is one sentence on stderr.

    Args:
        prompt: What to answer.
        model: A GGUF file; None = the demo's model, which is downloaded if it is missing.
        flags: As for `configuration.load`.

    Raises:
        ConfigurationError: Something is wrong with the flags, or with the variables that count here.
    """
    # Whoever has started this looks on: the first start that fails is the end, and is told once, by us.
    supervision_log.addFilter(_is_no_error)
    try:
        return launch(partial(_demo, prompt, model, flags))
    finally:
        supervision_log.removeFilter(_is_no_error)


def _is_no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


async def _demo(prompt: str | None, model: Path | None, flags: Mapping[str, str]) -> None:
    try:
        app, settings = _demo_app(model, flags)
        condition = app.gateway.backend.condition
        async with trio.open_nursery() as nursery:

            async def interrupt() -> None:  # nobody is served here but the one who has sent the signal
                nursery.cancel_scope.cancel()  # first, or the answer would be found to be cut
                raise KeyboardInterrupt

            async def run(task_status: trio.TaskStatus[list[str]]) -> None:
                drain = app.gateway.drain if prompt is None else interrupt
                await run_server(
                    app,
                    host=settings.host,
                    port=settings.port,
                    shutdown_deadline=settings.shutdown_deadline,
                    drain=drain,
                    cut_off=app.gateway.cut_off,
                    task_status=task_status,
                )
                nursery.cancel_scope.cancel()

            with nullcontext() if prompt is None else redirect_stdout(sys.stderr):
                url, *_ = await nursery.start(run)
            nursery.start_soon(_end_with, condition)
            while not condition.serves:
                await condition.changed()
            if prompt is None:
                put(f"try: {_curl(url)}\nsee: {url}/admission")
            else:
                await _ask(url, prompt)
                nursery.cancel_scope.cancel()
    except* (EngineError, ProblemError, ToolLoadError) as group:
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise LaunchError(str(failure)) from failure


async def _end_with(condition: Condition) -> None:
    while not condition.is_given_up:
        await condition.changed()
    raise EngineError(condition.reason)


def _demo_app(model: Path | None, flags: Mapping[str, str]) -> tuple[App, Settings]:
    """Make the application with the engine as its only backend, whose slots alone the environment may say."""
    others = {CONFIG, *(option.in_environment for option in BACKEND if option.name != "slots")}
    try:
        settings = load(
            environ={name: text for name, text in os.environ.items() if name not in others},
            flags={**flags, "gguf": DEMO_MODEL if model is None else str(model)},
        )
    except ConfigurationError as error:
        raise ConfigurationError(each.replace(EXPOSED, _EXPOSED) for each in error.mistakes) from error
    if model is None:
        _fetch_if_missing()
    return create_app(settings, progress=_say, patience=Patience(failed_starts=1)), settings


def _fetch_if_missing() -> None:
    try:
        find_model()
    except EngineError:
        fetch_model(_say)


async def _ask(url: str, prompt: str) -> None:
    """Print the answer to one prompt as it streams through the gateway."""
    body = json.dumps(_request(prompt)).encode()
    exchange = Chat(body)
    is_cut = False
    async with Upstream(BackendSettings(url=url)).open("POST", exchange.path, body=body) as answer:
        if not answer.is_event_stream:
            whole = await answer.whole()
            raise ProblemError(upstream_error(whole.status, whole.body))
        async for data in answer:
            for event in split_events(exchange.relay(data)):
                for choice in _choices(read_fields(event).get(b"data", b"")):
                    put(choice["delta"].get("content") or "", end="")
                    is_cut |= choice["finish_reason"] == "length"
    if not exchange.finished or exchange.failure:
        raise ProblemError(exchange.failure or bad_gateway())
    put("")
    if is_cut:
        _say(f"(cut here: --once stops after {_MAX_TOKENS} tokens)")


def _choices(data: bytes) -> list[dict[str, Any]]:
    """What the data of one event adds to the answer."""
    if not data or data == DONE:
        return []
    choices: list[dict[str, Any]] = json.loads(data)["choices"]
    return choices


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
