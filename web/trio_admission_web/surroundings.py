"""What settings name, looked for: files, programs, models, tools. Nothing of it is started."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .engine import EngineError, find_gguf, require_engine, require_program
from .tools import complaints_of_tools

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TLS: Final = ("tls_cert", "tls_key")


def absent_of_backend(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Look for what a backend is made from, and yield what is not there: a setting and a sentence.

    Args:
        said: The backend's settings; None = not said.
    """
    command, gguf, saves = (said.get(name) for name in ("command", "gguf", "slot_save_path"))
    try:
        if command is not None:
            require_program(command)
    except EngineError as error:
        yield "command", str(error)
    try:
        if gguf is not None:
            require_engine()
            find_gguf(gguf)
    except EngineError as error:
        yield "gguf", str(error)
    # The embedded engine makes its directory.
    if saves is not None and not Path(saves).is_dir() and (gguf is None or Path(saves).exists()):
        yield "slot_save_path", f"there is no directory {saves}"


def absent_of_gateway(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Do the same for the settings of the gateway itself. Modules of tools are imported.

    Args:
        said: These settings; None = not said.
    """
    # What the installed packages offer, too, is loaded at each start.
    yield from (("tools", each) for each in complaints_of_tools(said.get("tools") or ()))
    if said.get("unix") is not None and not (directory := Path(said["unix"]).parent).is_dir():
        yield "unix", f"there is no directory {directory}"
    files = {name: said[name] for name in _TLS if said.get(name) is not None}
    unreadable = {name: reason for name, file in files.items() if (reason := _unreadable(file))}
    yield from unreadable.items()
    if len(files) == len(_TLS) and not unreadable and (reason := _no_pair(*files.values())):
        yield "tls_cert", reason


def _unreadable(file: str) -> str | None:
    try:
        with Path(file).open("rb"):
            return None
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"


def _no_pair(certificate: str, key: str) -> str | None:
    try:
        # Without a password, OpenSSL would ask for one on the terminal.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except OSError as error:  # OpenSSL's errors are some too
        return f"cannot use {certificate} and {key} for TLS: {error.strerror or error}"
    return None
