"""The command ``trio-admission``.

Nothing of the extra ``web`` is imported here before it is known to be installed.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine import EngineError, fetch_model
from .settings import PREFIX, Settings, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_THE_EXTRA = ("httpcore2", "hypercorn", "quart", "quart_trio")
_ABOUT_SERVE = f"""Run the gateway in front of a llama-server. What no flag says is taken from the
environment: {PREFIX}UPSTREAM, {PREFIX}UPSTREAM_API_KEY, {PREFIX}SLOTS and so on."""
_INTERRUPTED = 130  # what a shell expects of a command that Ctrl-C has ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or something else after one sentence on stderr."""
    args = vars(_parser().parse_args(argv))
    run = args.pop("run")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    status = _INTERRUPTED
    try:
        status = run(**args)
    except* SettingsError as group:
        error = group.exceptions[0]
        assert isinstance(error, SettingsError)
        variable = PREFIX + error.name.upper()
        said_there = error.name not in args and variable in os.environ
        place = variable if said_there else f"--{error.name.replace('_', '-')}"
        status = _fail(f"{place} {error.reason}")
    except* KeyboardInterrupt:
        pass
    return status


def _serve(*, max_wait: float | None = None, **flags: Any) -> int:
    if missing := [name for name in _OF_THE_EXTRA if find_spec(name) is None]:
        return _fail(_no_extra("web", missing))
    from . import commands  # noqa: PLC0415

    settings = Settings.from_env(**flags)
    if max_wait is not None:
        settings = replace(settings, admission=replace(settings.admission, max_wait=max_wait))
    return commands.serve(settings)


def _demo(
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    slots: int = 4,
    model: Path | None = None,
    once: str | None = None,
) -> int:
    if missing := [name for name in (*_OF_THE_EXTRA, "xllamacpp") if find_spec(name) is None]:
        return _fail(_no_extra("web,demo", missing))
    from . import commands  # noqa: PLC0415

    if port is None:
        port = 8000 if once is None else 0
    return commands.demo(prompt=once, model=model, slots=slots, host=host, port=port)


def _fetch_model() -> int:
    try:
        print(fetch_model(_say))
    except EngineError as error:
        return _fail(str(error))
    return 0


class _Parser(argparse.ArgumentParser):
    """Leaves out what is not given, so that the environment and the defaults are asked for it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(argument_default=argparse.SUPPRESS, allow_abbrev=False, **options)


def _parser() -> _Parser:
    parser = _Parser(prog="trio-admission", description="A line in front of a llama-server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    address = _Parser(add_help=False)
    address.add_argument("--host", help="address to listen on (127.0.0.1)")
    address.add_argument("--port", type=int, help="port to listen on, 0 = any free one (8000)")

    about = "run the gateway in front of a llama-server"
    serve = commands.add_parser("serve", parents=[address], help=about, description=_ABOUT_SERVE)
    serve.set_defaults(run=_serve)
    serve.add_argument("--upstream", metavar="URL", help="address of the llama-server")
    serve.add_argument("--upstream-api-key", metavar="KEY", help="the key that it asks for")
    serve.add_argument("--slots", type=int, metavar="N", help="use at most N of its slots (all that it has)")
    serve.add_argument(
        "--max-wait",
        type=_seconds,
        metavar="SECONDS",
        help="refuse a request that has waited so long; 0 = unless a slot is free (no limit)",
    )

    about = "run a small language model and the gateway in front of it"
    demo = commands.add_parser("demo", parents=[address], help=about, description=f"{about.capitalize()}.")
    demo.set_defaults(run=_demo)
    demo.add_argument("--slots", type=int, metavar="N", help="slots of the model (4)")
    demo.add_argument("--model", type=Path, metavar="PATH", help="a GGUF file (SmolLM2-135M-Instruct)")
    demo.add_argument("--once", metavar="PROMPT", help="print one answer and exit; the port is any free one")

    about = "download the model of the demo"
    fetch = commands.add_parser("fetch-model", help=about, description=f"{about.capitalize()}.")
    fetch.set_defaults(run=_fetch_model)
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError("must be a number of seconds, at least 0")
    return seconds


def _no_extra(extra: str, missing: list[str]) -> str:
    return f"this needs more: pip install 'trio-admission[{extra}]' (missing: {', '.join(missing)})"


def _fail(sentence: str) -> int:
    print(f"trio-admission: {sentence}", file=sys.stderr)
    return 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
