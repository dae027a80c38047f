"""Every setting there is: its names, what it may be, its default, and what it does.

File, environment, flags and the reference in docs/ are all read off these tables.
"""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX: Final = "TRIO_ADMISSION_"

_PLAIN: Final = re.compile(r"[!-~]+")
_OURS: Final = frozenset({"--host", "--port", "--api-key", "--api-key-file"})  # flags of llama-server
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_SWITCH: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)


@dataclass(frozen=True, slots=True)
class Kind:
    """Which values a setting takes.

    Args:
        allowed: The end of the sentence "must be ...".
        fits: Whether a value is one of them; of any type.
        read: Makes a value of the text of a variable or a flag; ValueError or KeyError if it cannot.
        shown: False for what no message may repeat.
        takes: What stands for a value in the help, where the setting's name does not say it.
    """

    allowed: str
    fits: Callable[[Any], bool]
    read: Callable[[str], Any] = str
    shown: bool = True
    takes: str = ""

    def complaint(self, value: object) -> str:
        """Return what is wrong with a value that does not fit."""
        return f"must be {self.allowed}" + (f", not {value!r}" if self.shown else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting.

    Args:
        name: Its key in the file, and the field of its record.
        kind: Which values it takes.
        about: What it does: a phrase that ends without a full stop.
        default: Its value if nobody says one; None = what ``otherwise`` says.
        otherwise: The default in words, where the value does not say it.
        unit: What its number counts.
        said: Its name in the environment and among the flags; None = the file's.
        variable: Its whole environment variable, where ``said`` does not make it.
    """

    name: str
    kind: Kind
    about: str
    default: Any = None
    otherwise: str = ""
    unit: str = ""
    said: str = ""
    variable: str = ""

    @property
    def argument(self) -> str:
        """Its name among the arguments of `configuration.load`."""
        return self.said or self.name

    @property
    def flag(self) -> str:
        """Its flag of ``trio-admission serve``."""
        return "--" + self.argument.replace("_", "-")

    @property
    def in_environment(self) -> str:
        """Its environment variable."""
        return PREFIX + (self.variable or self.argument.upper())

    @property
    def metavar(self) -> str:
        """What stands for its value in the help."""
        return self.kind.takes or (self.unit or self.name).upper()

    @property
    def default_in_words(self) -> str:
        """Its default, as help and reference show it."""
        if self.otherwise:
            return self.otherwise
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return str(self.default)

    def complaint(self, value: object) -> str | None:
        """Return what is wrong with a value, if anything is. None is right where it is the default."""
        if (value is None and self.default is None) or self.kind.fits(value):
            return None
        return self.kind.complaint(value)


def _is_whole(value: object) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and math.isfinite(value)


def _whole(low: int | None = None, high: int | None = None) -> Kind:
    if low is None:
        return Kind("a whole number", _is_whole, int)
    if high is None:
        return Kind(f"a whole number, at least {low}", lambda v: _is_whole(v) and v >= low, int)
    return Kind(f"a whole number from {low} to {high}", lambda v: _is_whole(v) and low <= v <= high, int)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _is_address(value: object) -> bool:
    if not isinstance(value, str) or not _PLAIN.fullmatch(value) or "@" in value:
        return False
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        return False
    if url.path.rstrip("/").endswith("/v1"):  # which the gateway says itself, as clients do
        return False
    return bool(
        url.scheme in {"http", "https"} and url.hostname and port != 0 and not url.query and not url.fragment
    )


def _is_secret(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable() and value.strip() == value != ""


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_text(each) for each in value)


def _is_command(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(each, str) and "\0" not in each for each in value)
        and bool(value[0])
        and not _OURS.intersection(value)
    )


_AMOUNT = Kind("a number of seconds above 0", lambda v: _is_number(v) and v > 0, float)
_AMOUNT_OR_ZERO = Kind("a number of seconds, at least 0", lambda v: _is_number(v) and v >= 0, float)
_FLAG = Kind(
    "on or off (in the file: true or false)",
    lambda v: isinstance(v, bool),
    lambda s: _SWITCH[s.lower()],
    takes="on|off",
)
_TEXT = Kind("text that is not empty", _is_text)
_NAMES = Kind(
    'a list of names, such as ["a", "b"] (a variable or a flag: a,b)',
    _are_names,
    lambda text: tuple(name.strip() for name in text.split(",")),
    takes="NAME,...",
)
_ADDRESS = Kind(
    "an address such as http://127.0.0.1:8080, without /v1, user, password, query and fragment",
    _is_address,
    shown=False,  # it may have a password in it
)
_COMMAND = Kind(
    'a list of strings, such as ["llama-server", "-m", "model.gguf"] (a variable or a flag: one line, quoted'
    " as for a shell), without --host, --port and --api-key, which are the gateway's to say",
    _is_command,
    lambda text: tuple(shlex.split(text)),
    shown=False,  # it may have a token in it
)
_CACHE = Kind(
    "isolated or unified",
    lambda v: isinstance(v, str) and v in {"isolated", "unified"},
    takes="isolated|unified",
)
_SECRET = Kind("printable ASCII without spaces around it", _is_secret, shown=False)
_KEY_HASH = Kind(
    "'sha256:' and 64 hexadecimal digits, as `trio-admission new-key` prints it",
    lambda v: isinstance(v, str) and bool(_HASH.fullmatch(v)),
    shown=False,  # somebody may have put the key itself there
)

GATEWAY: Final = (
    Option(name="host", kind=_TEXT, default="127.0.0.1", about="Address to listen on"),
    Option(name="port", kind=_whole(0, 65535), default=8000, about="Port to listen on; 0 = any free one"),
    Option(
        name="unix",
        kind=_TEXT,
        otherwise="none",
        about="Path of a unix socket to listen on, instead of host and port",
    ),
    Option(
        name="tls_cert",
        kind=_TEXT,
        otherwise="no TLS",
        about="File with the certificate chain (PEM) to speak TLS with",
    ),
    Option(
        name="tls_key",
        kind=_TEXT,
        otherwise="no TLS",
        about="File with the certificate's key (PEM), without a password",
    ),
    Option(
        name="shutdown_deadline",
        kind=_AMOUNT,
        default=30.0,
        unit="seconds",
        about="How long those who are here at SIGTERM may take to be served; then they are told and cut",
    ),
    Option(
        name="insecure",
        kind=_FLAG,
        default=False,
        about="Listen on addresses that others can reach although no keys are configured",
    ),
    Option(
        name="allowed_origins",
        kind=_NAMES,
        default=(),
        otherwise="none",
        about="Origins whose pages may use the gateway from a browser (CORS), such as https://chat.example;"
        " * = every page that somebody opens on this machine",
    ),
    Option(
        name="grace",
        kind=_AMOUNT,
        default=0.1,
        unit="seconds",
        about="How long a stream may wait before it is answered with 200 and keepalives",
    ),
    Option(name="max_body", kind=_whole(1), default=32 * 2**20, unit="bytes", about="Largest request body"),
    Option(
        name="body_deadline",
        kind=_AMOUNT,
        default=60.0,
        unit="seconds",
        about="How long a whole request body may take to arrive",
    ),
    Option(
        name="stall_deadline",
        kind=_AMOUNT,
        default=30.0,
        unit="seconds",
        about="How long a client may take nothing of its stream once 4 MiB wait for it; then it is cut off",
    ),
    Option(
        name="tools",
        kind=_NAMES,
        default=(),
        otherwise="the built-in ones and those of installed packages",
        about="More tools that requests may ask for, each MODULE:ATTRIBUTE; or an MCP server that has some:"
        " `mcp`, a space, and its command or address",
    ),
    Option(
        name="approval_ttl",
        kind=_AMOUNT,
        default=3600.0,
        unit="seconds",
        about="How long a call of a tool waits for a person; then it counts as denied",
    ),
    Option(
        name="resume_ttl",
        kind=_AMOUNT,
        default=300.0,
        unit="seconds",
        about="How long a client that was asked to call its tools may take to return with priority",
    ),
    Option(
        name="max_parked",
        kind=_whole(0),
        otherwise="10 up to 25 slots in all, then fewer, and none from 35 on",
        unit="requests",
        about="How many may be parked at once, resume tickets included; the others keep their slots",
    ),
)
"""Of the gateway as a whole."""

POOL: Final = (
    Option(
        name="enabled",
        said="control",
        kind=_FLAG,
        default=True,
        about="Off: send every request on at once, without a line",
    ),
    Option(
        name="max_wait",
        variable="QUEUE_TIMEOUT",
        kind=_AMOUNT_OR_ZERO,
        otherwise="no limit",
        unit="seconds",
        about="Refuse a request that has waited so long; 0 = refuse at once whoever would have to wait (but"
        " as the variable's value: no limit)",
    ),
    Option(
        name="keepalive_interval",
        kind=_AMOUNT,
        default=5.0,
        unit="seconds",
        about="Time between two signs of life to a stream that waits",
    ),
    Option(
        name="max_waiting",
        variable="MAX_QUEUE",
        kind=_whole(),
        otherwise="waiting_per_slot x slots, at least 64",
        unit="requests",
        about="How many may wait for each backend; 0 or less = any number",
    ),
    Option(
        name="waiting_per_slot",
        variable="QUEUE_PER_SLOT",
        kind=_whole(1),
        default=16,
        unit="requests",
        about="How many may wait for each slot; said here, the floor of 64 goes",
    ),
    Option(
        name="max_waiting_per_flow",
        kind=_whole(0),
        otherwise="no limit",
        unit="requests",
        about="How many of one flow may wait for each backend",
    ),
    Option(
        name="aging",
        kind=_AMOUNT,
        otherwise="priorities are strict",
        unit="seconds",
        about="Time of waiting that weighs as much as one step of priority",
    ),
    Option(name="kv_budget", kind=_FLAG, default=True, about="Off: do not look at kv_tokens"),
)
"""Of the line in front of each backend: the fields of `AdmissionConfig`."""

BACKEND: Final = (
    Option(
        name="url",
        said="upstream",
        kind=_ADDRESS,
        otherwise="none; this, command or gguf must be given",
        about="Address of the llama-server",
    ),
    Option(
        name="command",
        kind=_COMMAND,
        otherwise="none",
        about="llama-server with its arguments, for the gateway to start, to start again when it has crashed,"
        " and to stop",
    ),
    Option(
        name="gguf",
        kind=_TEXT,
        otherwise="none",
        about="File of a model to be run by the embedded engine; default = the demo's model",
    ),
    Option(
        name="api_key",
        said="upstream_api_key",
        kind=_SECRET,
        otherwise="none",
        about="The key that the llama-server asks for",
    ),
    Option(
        name="slots",
        kind=_whole(1),
        otherwise="all that it has; 4 with gguf",
        about="Use at most so many of its slots; with gguf: the slots that it has",
    ),
    Option(
        name="context_per_slot",
        kind=_whole(1),
        otherwise="2048",
        unit="tokens",
        about="With gguf: what a prompt and its answer may have together",
    ),
    Option(
        name="kv_cache",
        kind=_CACHE,
        otherwise="not known; isolated with gguf, unified with kv_tokens, with command as its arguments say",
        about="Whether each of its slots has a KV cache of its own, or all share one; a llama-server without"
        " --parallel has a unified one",
    ),
    Option(
        name="kv_tokens",
        kind=_whole(1),
        otherwise="not counted",
        unit="tokens",
        about="Unified KV cache that all its requests together may take",
    ),
    Option(
        name="default_output_tokens",
        kind=_whole(1),
        otherwise="what a fair share of the context leaves beside the prompt, at least 512",
        unit="tokens",
        about="Limit of the answer for a client that states none; counted, and sent to the server",
    ),
    Option(
        name="slot_save_path",
        kind=_TEXT,
        otherwise="none; with gguf a directory of the gateway's own",
        about="Directory on this machine that the llama-server was given as --slot-save-path",
    ),
    Option(
        name="slot_files_limit",
        kind=_whole(1),
        default=4 * 2**30,
        unit="bytes",
        about="Disk that saved slots may take",
    ),
    Option(
        name="models",
        kind=_NAMES,
        default=(),
        otherwise="every model",
        about="Models that it serves; they are listed at /v1/models",
    ),
    Option(
        name="aliases",
        kind=_NAMES,
        default=(),
        otherwise="none",
        about="More names that lead to it; they are not listed, and reach it as the client wrote them",
    ),
    Option(
        name="connect_limit",
        kind=_AMOUNT,
        default=5.0,
        unit="seconds",
        about="How long connecting to it may take",
    ),
    Option(
        name="first_byte_limit",
        kind=_AMOUNT,
        default=600.0,
        unit="seconds",
        about="How long its answer's first event or byte may take, the prompt's processing included",
    ),
    Option(
        name="idle_limit",
        kind=_AMOUNT,
        default=120.0,
        unit="seconds",
        about="How long it may be silent after that; comments and pings are silence",
    ),
    Option(
        name="away_limit",
        kind=_AMOUNT,
        default=60.0,
        unit="seconds",
        about="How long requests wait for it while it is away; then they are refused",
    ),
)
"""Of one backend: a table ``[backends.NAME]``; variables and flags are about the one named ``default``."""

KEY: Final = (
    Option(name="hash", kind=_KEY_HASH, otherwise="must be given", about="The key's hash"),
    Option(
        name="flow",
        kind=_TEXT,
        default="",
        otherwise="the key's name",
        about="On whose behalf it asks; keys of one flow share its part of the slots",
    ),
    Option(
        name="weight",
        kind=Kind("a number above 0", lambda v: _is_number(v) and v > 0),
        default=1.0,
        about="The flow's share in relation to others",
    ),
    Option(name="priority", kind=_whole(), default=0, about="Higher is served first"),
    Option(
        name="max_requests",
        kind=_whole(1),
        otherwise="no limit",
        unit="requests",
        about="How many it may have here at once, running or waiting",
    ),
    Option(
        name="max_waiting",
        kind=_whole(0),
        otherwise="no limit",
        unit="requests",
        about="How many of them may wait",
    ),
    Option(name="models", kind=_NAMES, otherwise="all", about="Models that it may name"),
    Option(
        name="admin",
        kind=_FLAG,
        default=False,
        about="Whether it may see and cancel what others do, and read /metrics, /props and /slots",
    ),
)
"""Of one API key: a table ``[keys.NAME]``, in the file alone."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
