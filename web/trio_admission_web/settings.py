"""Flags and environment -> one frozen record."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from trio_admission import AdmissionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX: Final = "TRIO_ADMISSION_"
_PLAIN: Final = re.compile(r"[!-~]+")


class SettingsError(ValueError):
    """A setting that cannot be used. ``name`` is the field of `Settings`, ``reason`` a sentence."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a gateway is told before it starts. Times are seconds, sizes bytes.

    Args:
        upstream: Address of the llama-server, http or https.
        upstream_api_key: The key that the llama-server asks for.
        host: Address that the gateway listens on.
        port: Port that it listens on, 0 = any free one.
        slots: Requests that may be upstream at once; None = as many as the server has slots. Never more
            than that, whatever is said here, once the server has told.
        admission: The pool's settings, keepalive interval and longest wait included.
        grace: How long a stream may wait before it is answered with 200 and keepalives.
        max_body: Largest request body.
        body_deadline: How long a whole request body may take to arrive.
        stall_deadline: How long a client may take nothing of its stream while more than the gateway wants
            to keep of it is ready; then it loses the stream.
        connect_limit: How long connecting to the server may take.
        first_byte_limit: How long the server may take from the request to the first byte of its answer,
            the prompt's processing included.
        idle_limit: How long it may be silent after that.

    Raises:
        SettingsError: A value is out of its range.
    """

    upstream: str
    upstream_api_key: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 8000
    slots: int | None = None
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    grace: float = 0.1
    max_body: int = 32 * 2**20
    body_deadline: float = 60.0
    stall_deadline: float = 30.0
    connect_limit: float = 5.0
    first_byte_limit: float = 600.0
    idle_limit: float = 120.0

    def __post_init__(self) -> None:
        _check_address(self.upstream)
        key = self.upstream_api_key
        if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
            raise SettingsError("upstream_api_key", "must be printable ASCII without spaces around it")
        if not self.host:
            raise SettingsError("host", "must not be empty")
        if not 0 <= self.port <= 65535:
            raise SettingsError("port", f"must be from 0 to 65535, not {self.port}")
        if self.slots is not None and self.slots < 1:
            raise SettingsError("slots", f"must be at least 1, not {self.slots}")
        if self.max_body < 1:
            raise SettingsError("max_body", f"must be at least 1 byte, not {self.max_body}")
        for name in (
            "grace", "body_deadline", "stall_deadline", "connect_limit", "first_byte_limit", "idle_limit"
        ):  # fmt: skip
            seconds = getattr(self, name)
            if not 0 < seconds < math.inf:
                raise SettingsError(name, f"must be above 0 seconds, not {seconds}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **flags: Any) -> Settings:
        """Read each setting from ``TRIO_ADMISSION_<FIELD>`` in ``environ`` (default: `os.environ`), once.

        Blank values count as absent; ``flags`` win over the environment. The pool's settings are read by
        `AdmissionConfig.from_env`.

        Raises:
            SettingsError: A value is missing, does not parse or is out of its range.
        """
        env = os.environ if environ is None else environ
        values: dict[str, Any] = {"admission": AdmissionConfig.from_env(env)}
        for each in fields(cls):
            text = env.get(PREFIX + each.name.upper(), "").strip()
            if text and each.name in _PARSERS:
                values[each.name] = _parse(each.name, text)
        values.update(flags)
        if "upstream" not in values:
            raise SettingsError("upstream", "is missing: give the address of the llama-server")
        return cls(**values)


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "upstream": str,
    "upstream_api_key": str,
    "host": str,
    "port": int,
    "slots": int,
    "grace": float,
    "max_body": int,
    "body_deadline": float,
    "stall_deadline": float,
    "connect_limit": float,
    "first_byte_limit": float,
    "idle_limit": float,
}


def _parse(name: str, text: str) -> Any:
    try:
        return _PARSERS[name](text)
    except ValueError:
        raise SettingsError(name, f"must be a number, not {text!r}") from None


def _check_address(address: str) -> None:
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError:
        raise SettingsError("upstream", "is not an address") from None
    if "@" in url.netloc:
        raise SettingsError(
            "upstream", "must not contain a user or a password"
        )  # which are not repeated here
    if url.scheme not in {"http", "https"} or not url.hostname or port == 0 or not _PLAIN.fullmatch(address):
        raise SettingsError("upstream", "must be an address such as http://127.0.0.1:8080")
    if url.query or url.fragment:
        raise SettingsError("upstream", "must not have a query or a fragment")
