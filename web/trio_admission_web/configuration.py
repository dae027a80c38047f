"""File, environment, flags -> `Settings`. A flag wins over a variable, and a variable over the file.

All that is wrong is found before anything is said, so that it can be put right in one go.
"""

from __future__ import annotations

import logging
import os
import tomllib
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from trio_admission import AdmissionConfig

from .keys import ApiKey
from .network import is_host
from .options import BACKEND, GATEWAY, KEY, POOL, PREFIX, is_loopback
from .places import Places
from .settings import (
    DEFAULT,
    EXPOSED,
    HALF_TLS,
    KINDS,
    NO_KIND,
    BackendSettings,
    Settings,
    contradictions,
    contradictions_of_keys,
)
from .suggestions import suggest
from .surroundings import absent_of_backend, absent_of_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .options import Option

log: Final = logging.getLogger(__name__)

CONFIG: Final = PREFIX + "CONFIG"
"""The variable that names the file."""

# Given to the engine's own process by the demo.
_NOT_OURS: Final = PREFIX + "ENGINE_"
_ADMISSION: Final = "ADMISSION_"


class ConfigurationError(ValueError):
    """What is wrong with the configuration: ``mistakes`` are sentences; each begins with its place."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(*self.mistakes)

    def __str__(self) -> str:
        return "\n".join(self.mistakes)


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    look: bool = False,
) -> Settings:
    """Read the whole configuration, once.

    A variable of the line that the library does not understand is a warning in the log: the default stands.

    Args:
        file: A TOML file; None = the one that ``TRIO_ADMISSION_CONFIG`` names, if it names one.
        environ: Default: `os.environ`. Blank values count as absent.
        flags: The text of each flag that was given, under `Option.argument`.
        look: Whether to see, too, that what it names is there: files, programs, models and tools, whose
            modules are imported. A start needs all that; keys and limits can be read again without.

    Raises:
        ConfigurationError: Something is wrong; everything that is.
    """
    env = os.environ if environ is None else environ
    if file is None and env.get(CONFIG, "").strip():
        file = Path(env[CONFIG].strip())
    reading = _Reading()
    if file is not None:
        reading.read_file(file)
    reading.read_environment(env)
    reading.read_flags(flags or {})
    if look:
        reading.look()
    return reading.settings()


class _Reading:
    """What has been read so far: values that fit, where they were said, and mistakes."""

    def __init__(self) -> None:
        self._mistakes: list[str] = []
        self._gateway: dict[str, Any] = {}
        self._pool: dict[str, Any] = {}
        self._backends: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, dict[str, Any]] = {}
        self._places: dict[tuple[str, ...], str] = {}
        self._wrong: set[tuple[str, ...]] = set()

    def read_file(self, file: Path) -> None:
        try:
            text = file.read_text(encoding="utf-8")
            document = tomllib.loads(text)
        except OSError as error:
            self._mistakes.append(f"{file} cannot be read: {error.strerror or error}")
        except ValueError as error:  # of TOML, or of UTF-8
            self._mistakes.append(f"{file} is not TOML: {error}")
        else:
            self._read_document(document, Places(file, text))

    def read_environment(self, env: Mapping[str, str]) -> None:
        known = {CONFIG}
        self._change_kind(lambda option: env.get(option.in_environment, "").strip())
        for options, values in self._said_outside():
            for option in options:
                known.add(option.in_environment)
                if option.variable:
                    self._read_pool_variable(option, env)
                elif text := env.get(option.in_environment, "").strip():
                    self._take_text(option, text, option.in_environment, values)
        for name in env:
            if name.startswith(PREFIX) and name not in known and not name.startswith(_NOT_OURS):
                self._mistakes.append(f"{name} is no variable of the gateway{suggest(name, known)}")

    def read_flags(self, flags: Mapping[str, str]) -> None:
        self._change_kind(lambda option: option.argument in flags)
        for options, values in self._said_outside():
            for option in options:
                if option.argument in flags:
                    self._take_text(option, flags[option.argument], option.flag, values)

    def look(self) -> None:
        """Look for what the values name."""
        for name, reason in absent_of_gateway(self._gateway):
            self._mistakes.append(f"{self._places.get((name,), name)}: {reason}")
        for backend, said in self._backends.items():
            for name, reason in absent_of_backend(said):
                self._mistakes.append(f"{self._place_of(backend, name)}: {reason}")

    def settings(self) -> Settings:
        """Return the whole, or raise `ConfigurationError`."""
        backends = {name: said for name, said in self._backends.items() if self._is_meant(name)}
        if not (backends or self._mistakes):
            self._mistakes.append(
                "no backend is configured: say where a llama-server is (--upstream URL), how to start one"
                " (--command COMMAND) or which model to run (--gguf FILE); a variable such as"
                f" {PREFIX}UPSTREAM, or url, command or gguf in a table [backends.NAME] of the file, does too"
            )
        for name, said in backends.items():
            self._check_backend(name, said)
        said_of_backends = [said for name, said in self._backends.items() if said or name != DEFAULT]
        for path, reason in contradictions_of_keys(self._keys, said_of_backends):
            self._mistakes.append(f"{self._places['keys', *path]}{reason}")
        host = self._gateway.get("host", "127.0.0.1")
        if not (self._keys or self._gateway.get("insecure") or is_loopback(host)):
            self._mistakes.append(
                f"{self._places['host',]} {EXPOSED if is_host(host) else f'is no host that is known: {host}'}"
            )
        if ("tls_cert" in self._gateway) != ("tls_key" in self._gateway):
            self._mistakes.append(f"tls_cert {HALF_TLS}")
        if self._mistakes:
            raise ConfigurationError(self._mistakes)
        if "waiting_per_slot" in self._pool:
            self._pool["min_waiting"] = None
        return Settings(
            **self._gateway,
            admission=AdmissionConfig(**self._pool),
            backends=tuple(BackendSettings(name=name, **said) for name, said in backends.items()),
            keys=tuple(_api_key(name, **said) for name, said in self._keys.items()),
        )

    def _said_outside(self) -> list[tuple[tuple[Option, ...], dict[str, Any]]]:
        """The options that variables and flags know, and where their values belong."""
        default = self._backends.setdefault(DEFAULT, {})
        return [(GATEWAY, self._gateway), (POOL, self._pool), (BACKEND, default)]

    def _read_document(self, document: Mapping[str, Any], places: Places) -> None:
        for group, options, tables in (("backends", BACKEND, self._backends), ("keys", KEY, self._keys)):
            named = document.get(group, {})
            if not _is_tables(named):
                self._mistakes.append(f"{places.of(group)} must be made of tables [{group}.NAME]")
                continue
            for name, table in named.items():
                path = (group, name)
                self._places[path] = places.of(*path)
                self._read_table(table, options, places, tables.setdefault(name, {}), path)
                if not (name and name.isprintable()):
                    self._mistakes.append(f"{places.of(*path)} must have a name that can be printed")
        plain = {name: value for name, value in document.items() if name not in {"backends", "keys"}}
        pool = {option.name for option in POOL}
        self._read_table(
            {name: value for name, value in plain.items() if name in pool}, POOL, places, self._pool
        )
        self._read_table(
            {name: value for name, value in plain.items() if name not in pool},
            GATEWAY,
            places,
            self._gateway,
            also=(*pool, "backends", "keys"),
        )

    def _read_table(
        self,
        table: Mapping[str, Any],
        options: Iterable[Option],
        places: Places,
        values: dict[str, Any],
        path: tuple[str, ...] = (),
        also: Iterable[str] = (),
    ) -> None:
        known = {option.name: option for option in options}
        for name, value in table.items():
            place = places.of(*path, name)
            if name in known:
                self._take(known[name], value, place, values, path)
            else:
                self._mistakes.append(f"{place} is not a setting{suggest(name, {*known, *also})}")

    def _read_pool_variable(self, option: Option, env: Mapping[str, str]) -> None:
        # Their fallback names and their leniency are the library's: see `AdmissionConfig.from_env`.
        mine = {name: text for name, text in env.items() if name.endswith(_ADMISSION + option.variable)}
        if any(text.strip() for text in mine.values()):
            with warnings.catch_warnings(record=True) as misread:
                warnings.simplefilter("always")
                config = AdmissionConfig.from_env(mine)
            for each in misread:  # Python would show them with a line of our source
                log.warning("%s", each.message)
            if option.name == "waiting_per_slot" and config.min_waiting is not None:
                self._pool.pop(option.name, None)  # not understood: the default stands, with its floor
            else:
                self._pool[option.name] = getattr(config, option.name)

    def _take_text(self, option: Option, text: str, place: str, values: dict[str, Any]) -> None:
        try:
            value = option.kind.read(text)
        except (ValueError, KeyError):
            value = text  # of the wrong type, and so complained of
        self._take(option, value, place, values)

    def _take(
        self, option: Option, value: object, place: str, values: dict[str, Any], path: tuple[str, ...] = ()
    ) -> None:
        self._places[*path, option.name] = place
        if not option.kind.fits(value):
            self._mistakes.append(f"{place} {option.kind.complaint(value)}")
            self._wrong.add((*path, option.name))
            values.setdefault(option.name, option.default)  # said, if wrongly: it is not missing too
            return
        if isinstance(value, list):
            value = tuple(value)
        values[option.name] = value

    def _change_kind(self, is_said: Callable[[Option], object]) -> None:
        """Forget which kind the default backend is, if what is read next says another: that wins."""
        if any(option.name in KINDS and is_said(option) for option in BACKEND):
            for kind in KINDS:
                self._backends.get(DEFAULT, {}).pop(kind, None)

    def _is_meant(self, name: str) -> bool:
        """Whether there is to be a backend of this name; one wrong variable alone makes none."""
        if name != DEFAULT or ("backends", name) in self._places:
            return True
        return any((setting,) not in self._wrong for setting in self._backends[name])

    def _place_of(self, backend: str, setting: str) -> str:
        """Return where a backend's setting was said last."""
        outside = self._places.get((setting,)) if backend == DEFAULT else None
        return outside or self._places["backends", backend, setting]

    def _check_backend(self, name: str, said: Mapping[str, Any]) -> None:
        if not set(KINDS).intersection(said):
            place = self._places.get(("backends", name), f"[backends.{name}]")
            hint = " (--upstream, --command or --gguf)" if name == DEFAULT else ""
            self._mistakes.append(f"{place}: url {NO_KIND}{hint}")
        for setting, reason in contradictions(said, said.get("kv_cache"), partial(self._spelled, name)):
            self._mistakes.append(f"{self._place_of(name, setting)} {reason}")

    def _spelled(self, backend: str, setting: str, by: str) -> str:
        """Return what a setting is called where another one of the backend is said."""
        place = self._place_of(backend, by)
        [option] = [each for each in BACKEND if each.name == setting]
        if place.startswith("--"):
            return option.flag
        return option.in_environment if place.startswith(PREFIX) else setting


def _api_key(name: str, *, models: Iterable[str] | None = None, **said: Any) -> ApiKey:
    return ApiKey(name=name, models=None if models is None else frozenset(models), **said)


def _is_tables(value: object) -> TypeGuard[dict[str, dict[str, Any]]]:
    return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())
