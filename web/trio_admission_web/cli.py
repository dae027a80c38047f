"""The command ``trio-admission``.

Nothing of the extra ``web`` is imported here before it is known to be installed.
"""

from __future__ import annotations

import argparse
import logging
import sys
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .configuration import CONFIG, ConfigurationError, load
from .engine import EngineError, fetch_model
from .extras import missing_extra
from .keys import new_key
from .logs import set_up
from .options import BACKEND, GATEWAY, POOL, PREFIX, Option
from .output import OutputError, put
from .suggestions import suggest, suggest_flag_for

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_THE_EXTRA = ("h11", "hypercorn", "prometheus_client", "quart", "quart_trio")
_ABOUT_SERVE = """Run the gateway in front of one or more llama-servers. What no flag says is taken from the
environment, and what no variable says from the file. SIGHUP reads all of it again, for keys and limits."""
_ABOUT_DEMO = f"""What no flag says is taken from the environment: {PREFIX}SLOTS, and the variables of
the gateway and of its line, without those of TLS and unix sockets."""
# What a shell expects of a command that Ctrl-C has ended, and of one whose output nobody reads any more.
_INTERRUPTED = 130
_UNREAD = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or something else after one sentence on stderr."""
    found, unknown = _parser().parse_known_args(argv)
    args = vars(found)
    run, parser = args.pop("run", None), args.pop("parser")
    if unknown:
        parser.refuse(unknown)
    if run is None:
        parser.error("the following arguments are required: COMMAND")
    set_up()
    status = _INTERRUPTED
    try:
        status = run(**args)
    except* ConfigurationError as group:
        for error in group.exceptions:
            assert isinstance(error, ConfigurationError)
            for mistake in error.mistakes:
                status = _fail(mistake)
    except* OutputError as group:
        [unwritten] = group.exceptions
        while isinstance(unwritten, ExceptionGroup):
            [unwritten] = unwritten.exceptions
        assert isinstance(unwritten, OutputError)
        status = _UNREAD if unwritten.is_closed else _fail(str(unwritten))
    except* KeyboardInterrupt:
        pass
    return status


def _serve(*, config: Path | None = None, **flags: str) -> int:
    if missing := [name for name in _OF_THE_EXTRA if find_spec(name) is None]:
        return _fail(missing_extra(missing, "web"))
    from . import commands  # noqa: PLC0415

    read = partial(load, config, flags=flags)
    return commands.serve(read(look=True), read)


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."


def _check_config(*, file: Path | None = None) -> int:
    settings = load(file, look=True)
    put(f"good: {len(settings.backends)} backend(s), {len(settings.keys)} API key(s)")
    return 0


def _new_key() -> int:
    key, key_hash = new_key()
    put(f'key:  {key}\nhash = "{key_hash}"')
    return 0


def _demo(*, model: Path | None = None, once: str | None = None, **flags: str) -> int:
    if missing := [name for name in (*_OF_THE_EXTRA, "xllamacpp") if find_spec(name) is None]:
        return _fail(missing_extra(missing, "web", "demo"))
    from . import commands  # noqa: PLC0415

    if once is not None:
        logging.getLogger().setLevel(logging.WARNING)  # the answer is what was asked for
        flags.setdefault("port", "0")
    return commands.demo(prompt=once, model=model, flags=flags)


def _fetch_model() -> int:
    try:
        put(str(fetch_model(_say)))
    except EngineError as error:
        return _fail(str(error))
    return 0


class _Parser(argparse.ArgumentParser):
    """Leaves out what is not given, so that the environment and the defaults are asked for it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(argument_default=argparse.SUPPRESS, allow_abbrev=False, **options)
        self.set_defaults(parser=self)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with a sentence about arguments that there are not.

        Argparse would let the parser of all commands say so, and show how that is used.
        """
        positional = (str(each.metavar) for each in self._actions if not each.option_strings)
        known = (*self._option_string_actions, *positional)
        flag = next((each.partition("=")[0] for each in unknown if each.startswith("--")), "")
        meant = suggest(flag, known) if flag else suggest_flag_for(unknown[0], known)
        self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = tuple(action.choices)
            message = f"there is no {action.metavar} {value!r}{suggest(value, known)}"
            raise argparse.ArgumentError(None, f"{message} (choose from {', '.join(known)})")


def _parser() -> _Parser:
    parser = _Parser(prog="trio-admission", description="A line in front of a llama-server.")
    told = f"trio-admission {version('trio-admission')}"
    parser.add_argument("-V", "--version", action="version", version=told, help="tell the version and exit")
    # Not required for argparse, which would speak of it first, and not of an option that is misspelt.
    commands = parser.add_subparsers(metavar="COMMAND")
    about = "run the gateway in front of a llama-server"
    usage = "%(prog)s (--upstream URL | --command COMMAND | --gguf FILE | --config FILE) [OPTION ...]"
    serve = commands.add_parser("serve", help=about, description=_ABOUT_SERVE, usage=usage)
    serve.set_defaults(run=_serve)
    serve.add_argument("--config", type=Path, metavar="FILE", help=f"TOML file ({CONFIG})")
    groups = (("backend", BACKEND), ("line", POOL), ("gateway", GATEWAY))
    for title, options in groups:
        group = serve.add_argument_group(title)
        for option in options:
            _add_flag(group, option)

    about = "say everything that is wrong with the configuration"
    check = commands.add_parser("check-config", help=about, description=_sentence(about))
    check.set_defaults(run=_check_config)
    check.add_argument(
        "file", type=Path, nargs="?", default=None, metavar="FILE", help=f"TOML file ({CONFIG})"
    )

    about = "make an API key, and its hash for the configuration"
    key = commands.add_parser("new-key", help=about, description=_sentence(about))
    key.set_defaults(run=_new_key)

    about = "run a small language model and the gateway in front of it"
    demo = commands.add_parser("demo", help=about, description=f"{_sentence(about)} {_ABOUT_DEMO}")
    demo.set_defaults(run=_demo)
    demo.add_argument("--host", help="address to listen on (127.0.0.1)")
    demo.add_argument("--port", help="port to listen on, 0 = any free one (8000)")
    about = "listen where others reach it, without keys"
    demo.add_argument("--insecure", action="store_const", const="on", help=about)
    demo.add_argument("--slots", metavar="N", help="slots of the model (4)")
    demo.add_argument("--model", type=Path, metavar="PATH", help="a GGUF file (SmolLM2-135M-Instruct)")
    demo.add_argument(
        "--once", type=_prompt, metavar="PROMPT", help="print one answer and exit; the port is any free one"
    )

    about = "download the model of the demo"
    fetch = commands.add_parser("fetch-model", help=about, description=_sentence(about))
    fetch.set_defaults(run=_fetch_model)
    return parser


def _add_flag(group: argparse._ArgumentGroup, option: Option) -> None:
    about = option.about if option.about[:2].isupper() else option.about[0].lower() + option.about[1:]
    unit = f"{option.unit}, " if option.unit else ""
    text = f"{about} [{unit}default: {option.default_in_words}]".replace("%", "%%")
    if option.default is False:
        group.add_argument(option.flag, action="store_const", const="on", help=text)
    else:
        group.add_argument(option.flag, metavar=option.metavar, help=text)


def _prompt(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _fail(sentence: str) -> int:
    print(f"trio-admission: {sentence}", file=sys.stderr)
    return 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
