"""What a gateway is told before it starts, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trio_admission import AdmissionConfig

from .options import BACKEND, GATEWAY, is_loopback
from .suggestions import suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from .keys import ApiKey
    from .options import Option

DEFAULT = "default"
"""The name of the backend that variables and flags are about."""
EXPOSED = "can be reached by others, so keys must be configured (or say --insecure)"
HALF_TLS = "and tls_key must be given together"
KINDS = ("url", "command", "gguf")
"""The settings of which a backend has exactly one: where it is, or what it is made from."""
NO_KIND = "or command or gguf must be given"


class SettingsError(ValueError):
    """A setting that cannot be used. ``name`` is the record's field, ``reason`` the rest of a sentence."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """One llama-server; `options.BACKEND` says what each field is.

    Raises:
        SettingsError: A value is out of its range.
    """

    name: str = DEFAULT
    url: str | None = None
    command: tuple[str, ...] | None = field(default=None, repr=False)
    gguf: str | None = None
    api_key: str | None = field(default=None, repr=False)
    slots: int | None = None
    context_per_slot: int | None = None
    kv_cache: str | None = None
    kv_tokens: int | None = None
    default_output_tokens: int | None = None
    slot_save_path: str | None = None
    slot_files_limit: int = 4 * 2**30
    models: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    connect_limit: float = 5.0
    first_byte_limit: float = 600.0
    idle_limit: float = 120.0
    away_limit: float = 60.0

    def __post_init__(self) -> None:
        _check(self, BACKEND)
        said = [option.name for option in BACKEND if getattr(self, option.name) is not None]
        if not set(KINDS).intersection(said):
            raise SettingsError("url", NO_KIND)
        for name, reason in contradictions(said, self.kv_cache):
            raise SettingsError(name, reason)

    @property
    def has_isolated_slots(self) -> bool | None:
        """Whether each slot has a KV cache of its own; None = nobody has said."""
        if self.gguf is not None:
            return True
        if self.kv_tokens is not None:
            return False
        if self.kv_cache is None and self.command is not None:
            return _makes_isolated_slots(self.command)
        return None if self.kv_cache is None else self.kv_cache == "isolated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The gateway, its backends and its keys; `options.GATEWAY` says what each plain field is.

    Args:
        backends: At least one, each with a name of its own. The first is the default one.
        keys: Who may; none at all = everybody who reaches the gateway, which then is this machine only.
        admission: The settings of each backend's pool, keepalive interval and longest wait included.

    Raises:
        SettingsError: A value is out of its range.
    """

    backends: tuple[BackendSettings, ...]
    keys: tuple[ApiKey, ...] = ()
    insecure: bool = False
    host: str = "127.0.0.1"
    port: int = 8000
    unix: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    shutdown_deadline: float = 30.0
    allowed_origins: tuple[str, ...] = ()
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    grace: float = 0.1
    max_body: int = 32 * 2**20
    body_deadline: float = 60.0
    stall_deadline: float = 30.0
    tools: tuple[str, ...] = ()
    approval_ttl: float = 3600.0
    resume_ttl: float = 300.0
    max_parked: int | None = None

    def __post_init__(self) -> None:
        _check(self, GATEWAY)
        if not self.backends:
            raise SettingsError("backends", "must not be empty")
        if len({each.name for each in self.backends}) < len(self.backends):
            raise SettingsError("backends", "must have different names")
        if not (self.keys or self.insecure or is_loopback(self.host)):
            raise SettingsError("host", EXPOSED)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("tls_cert", HALF_TLS)

    @property
    def tls(self) -> tuple[str, str] | None:
        """The files of certificate chain and key; None = no TLS."""
        return (self.tls_cert, self.tls_key) if self.tls_cert and self.tls_key else None


def contradictions(
    said: Collection[str], kv_cache: str | None, spelled: Callable[[str, str], str] = lambda name, _by: name
) -> Iterator[tuple[str, str]]:
    """Find which settings of a backend do not go together, and say why: a name and the rest of a sentence.

    Args:
        said: The names of those that are given.
        kv_cache: The value of that one.
        spelled: How a setting is called where another one is given.
    """
    first, *others = [kind for kind in KINDS if kind in said] or [""]
    for other in others:
        yield other, f"must not be given together with {spelled(first, other)}"
    if others:
        return
    if "gguf" in said and kv_cache == "unified":
        yield "kv_cache", f"must be isolated, or left out, with {spelled('gguf', 'kv_cache')}"
    if "kv_tokens" in said and ("gguf" in said or kv_cache == "isolated"):
        yield "kv_tokens", "is of a unified KV cache, and this one is isolated"
    if "api_key" in said and "url" not in said:
        url = spelled("url", "api_key")
        yield "api_key", f"is for {url}; the gateway makes a key for a server that it starts"
    if "context_per_slot" in said and "gguf" not in said:
        yield "context_per_slot", f"is for {spelled('gguf', 'context_per_slot')}"


def contradictions_of_keys(
    keys: Mapping[str, Mapping[str, Any]], backends: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Do the same for API keys: yield a key's name, or that and a setting's, and the rest of a sentence.

    Args:
        keys: What is said of each, by its name.
        backends: What is said of each.
    """
    served = {name for said in backends for name in (*said.get("models", ()), *said.get("aliases", ()))}
    is_bound = bool(backends) and all(said.get("models") for said in backends)  # else one serves every name
    seen: dict[str, str] = {}
    for key, said in keys.items():
        digest = said.get("hash")
        if "hash" not in said:
            yield (key,), ": hash is missing"
        elif digest in seen:
            yield (key, "hash"), f" must not be that of another key, {seen[digest]!r}"
        elif digest is not None:
            seen[digest] = key
        for model in (said.get("models") or ()) if is_bound else ():
            if model not in served:
                yield (key, "models"), f": no backend serves {model}{suggest(model, served)}"


def _makes_isolated_slots(command: Sequence[str]) -> bool:
    """Whether llama-server gives each slot a KV cache of its own, by its arguments.

    It does so when it is told how many slots to make, unless it is told otherwise.
    """
    told = set(command)
    if told & {"-no-kvu", "--no-kv-unified"}:
        return True
    counted = any(flag in {"-np", "--parallel"} and number.isdecimal() for flag, number in pairwise(command))
    return counted and not told & {"-kvu", "--kv-unified"}


def _check(record: Any, options: Iterable[Option]) -> None:
    for option in options:
        if complaint := option.complaint(getattr(record, option.name)):
            raise SettingsError(option.name, complaint)
