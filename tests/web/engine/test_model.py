"""Where the engine's model comes from. The packages are tiny here, but the installers are real."""

from __future__ import annotations

import hashlib
import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

from trio_admission_web.engine import EngineError, Model, fetch_model, find_model
from trio_admission_web.engine.model import SMOLLM2, Weights

CONTENT = b"GGUF, as far as this test is concerned"
TINY = Weights(
    name="Tiny",
    package="tiny-weights",
    version="1.2.3",
    module="tiny_weights",
    file="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    chat_template=Path("/templates/tiny.jinja"),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that stands for the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trio-admission"


@pytest.fixture(scope="session")
def pip_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pip that comes with Python, unpacked."""
    ensurepip = find_spec("ensurepip")
    found = ensurepip.submodule_search_locations if ensurepip else None
    wheels = [wheel for place in found or () for wheel in Path(place).glob("_bundled/pip-*.whl")]
    if not wheels:
        pytest.skip("this Python comes without pip")
    directory = tmp_path_factory.mktemp("pip")
    with ZipFile(wheels[0]) as wheel:
        wheel.extractall(directory)
    return directory


@pytest.fixture
def with_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave uv alone to be found."""
    if shutil.which("uv") is None:
        pytest.skip("uv is not on the path")
    monkeypatch.setitem(sys.modules, "pip", None)


@pytest.fixture
def with_pip(pip_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pip alone to be found."""
    monkeypatch.delitem(sys.modules, "pip", raising=False)
    monkeypatch.syspath_prepend(pip_directory)
    monkeypatch.setenv("PYTHONPATH", str(pip_directory))
    monkeypatch.setenv("PATH", "")


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest) -> None:
    """Run the test with pip and with uv."""
    request.getfixturevalue(f"with_{request.param}")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that is all that pip and uv know of."""
    directory = tmp_path / "index"
    directory.mkdir()
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return directory


def publish(index: Path, content: bytes = CONTENT, also: str = "tiny_weights/more.py") -> None:
    """Put a wheel of `TINY` there. It depends on a package that does not exist."""
    info = f"tiny_weights-{TINY.version}.dist-info"
    files = {
        "tiny_weights/__init__.py": b"raise RuntimeError('nothing of the package may run')",
        "tiny_weights/tiny.gguf": content,
        also: b"",
        f"{info}/METADATA": (
            "Metadata-Version: 2.1\nName: tiny-weights\n"
            f"Version: {TINY.version}\nRequires-Dist: no-such-compiler\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]).encode()
    with ZipFile(index / f"tiny_weights-{TINY.version}-py3-none-any.whl", "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)


def test_a_path_is_taken_as_it_is_with_the_template_in_the_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.Q8_0.gguf"
    mine.write_bytes(CONTENT)
    assert find_model(mine, weights=TINY) == Model("mine.Q8_0", mine, chat_template=None)


def test_a_path_to_nothing_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"there is no model file .*/gone\.gguf"):
        find_model(tmp_path / "gone.gguf")


def test_without_any_model_the_error_says_how_to_get_one() -> None:
    with pytest.raises(EngineError, match=r"`trio-admission fetch-model`.*`--model PATH`"):
        find_model(weights=TINY)


def test_an_installed_package_is_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "tiny_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(package.parent)
    assert find_model(weights=TINY) == Model("Tiny", package / "tiny.gguf", TINY.chat_template)


def test_the_cached_model_is_found(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(CONTENT)
    found = Model("Tiny", cache / "tiny.gguf", TINY.chat_template, is_cached=True)
    assert find_model(weights=TINY) == found


@pytest.mark.parametrize("setting", ["", "relative/cache"])
def test_the_cache_is_in_the_home_directory_unless_an_absolute_one_is_set(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", setting)
    monkeypatch.setenv("HOME", str(tmp_path))
    cached = tmp_path / ".cache" / "trio-admission" / "tiny.gguf"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(CONTENT)
    assert find_model(weights=TINY).path == cached


def test_the_installed_default_model_is_the_one_that_would_be_fetched() -> None:
    model = find_model()
    assert model.path.stat().st_size == SMOLLM2.size
    assert model.chat_template == SMOLLM2.chat_template
    with model.path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SMOLLM2.sha256


@pytest.mark.usefixtures("installer")
def test_a_fetched_model_is_found_and_nothing_else_stays(cache: Path, index: Path) -> None:
    publish(index)
    told: list[str] = []
    fetched = fetch_model(told.append, weights=TINY)
    assert fetched == find_model(weights=TINY).path == cache / "tiny.gguf"
    assert fetched.read_bytes() == CONTENT
    assert {path.name for path in cache.iterdir()} == {"tiny.gguf", "fetch.lock"}
    assert told == ["downloading tiny-weights 1.2.3 (0 MB)", "checking its sha256", f"Tiny is in {fetched}"]


@pytest.mark.usefixtures("with_uv")
def test_other_content_than_expected_is_refused_and_leaves_nothing(cache: Path, index: Path) -> None:
    publish(index, b"something else")
    with pytest.raises(EngineError, match=r"tiny-weights 1\.2\.3 does not hold the right tiny\.gguf"):
        fetch_model(lambda _line: None, weights=TINY)
    assert [path.name for path in cache.iterdir()] == ["fetch.lock"]


@pytest.mark.usefixtures("installer", "index")
def test_a_failed_download_is_an_error_that_says_why_and_leaves_nothing(cache: Path) -> None:
    reason = r"(No matching distribution found for|Because) tiny-weights.+"
    with pytest.raises(
        EngineError, match=rf"could not be downloaded: .* install.* ended with status \d: {reason}$"
    ):
        fetch_model(lambda _line: None, weights=TINY)
    assert [path.name for path in cache.iterdir()] == ["fetch.lock"]


@pytest.mark.usefixtures("installer", "index")
def test_a_registry_that_cannot_be_reached_is_the_reason_and_nothing_else_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/simple"
    for name, said in (("NO_INDEX", "0"), ("INDEX_URL", nobody), ("RETRIES", "1"), ("HTTP_RETRIES", "0")):
        monkeypatch.setenv(f"PIP_{name}", said)
        monkeypatch.setenv(f"UV_{name}", said)
    with pytest.raises(EngineError, match=r"ended with status \d: Connection refused"):
        fetch_model(lambda _line: None, weights=TINY)
    assert "WARNING" not in capfd.readouterr().err


@pytest.mark.usefixtures("installer")
def test_a_disk_that_takes_no_more_is_the_end_of_the_sentence(index: Path) -> None:
    publish(index, also=f"tiny_weights/{'x' * 300}")  # pip tells a full disk in the same form
    with pytest.raises(EngineError, match=r"File name too long( \(os error 36\))?$"):
        fetch_model(lambda _line: None, weights=TINY)


def test_without_an_installer_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineError, match="neither pip nor uv"):
        fetch_model(lambda _line: None, weights=TINY)


@pytest.mark.parametrize(
    ("cache_home", "cause"),
    [("/dev/null", "Not a directory"), ("/proc", "No such file or directory"), (f"/{'x' * 300}", "too long")],
)
def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(
    cache_home: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache_home)
    with pytest.raises(EngineError, match="there is no model to run"):
        find_model(weights=TINY)
    with pytest.raises(EngineError, match=f"^Tiny cannot be kept in {cache_home}/trio-admission: .*{cause}"):
        fetch_model(lambda _line: None, weights=TINY)


def test_a_lock_that_cannot_be_written_is_such_an_error_too(cache: Path) -> None:
    (cache / "fetch.lock").mkdir(parents=True)
    with pytest.raises(EngineError, match=f"^Tiny cannot be kept in {cache}: Is a directory"):
        fetch_model(lambda _line: None, weights=TINY)


@pytest.mark.usefixtures("installer")
def test_what_a_killed_fetch_left_behind_is_not_used(cache: Path, index: Path) -> None:
    publish(index)
    half = cache / "fetching" / "tiny_weights" / "tiny.gguf"
    half.parent.mkdir(parents=True)
    half.write_bytes(CONTENT[:10])
    with pytest.raises(EngineError):
        find_model(weights=TINY)
    assert fetch_model(lambda _line: None, weights=TINY).read_bytes() == CONTENT
    assert not half.exists()


@pytest.mark.usefixtures("with_uv")
def test_a_damaged_model_is_fetched_again_and_a_good_one_is_not(cache: Path, index: Path) -> None:
    publish(index)
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(b"damaged")
    assert fetch_model(lambda _line: None, weights=TINY).read_bytes() == CONTENT
    told: list[str] = []
    fetch_model(told.append, weights=TINY)
    assert told == [f"Tiny is already in {cache / 'tiny.gguf'}"]


@pytest.mark.usefixtures("with_uv")
def test_of_two_fetches_at_once_one_downloads(index: Path) -> None:
    publish(index)
    told: list[str] = []
    with ThreadPoolExecutor(2) as threads:
        fetches = [threads.submit(fetch_model, told.append, weights=TINY) for _ in range(2)]
    assert [fetch.result().read_bytes() for fetch in fetches] == [CONTENT, CONTENT]
    assert sum(line.startswith("downloading") for line in told) == 1


@pytest.mark.usefixtures("with_uv")
def test_a_package_of_another_shape_is_refused(index: Path) -> None:
    publish(index)
    with pytest.raises(EngineError, match=r"does not hold the right other\.gguf"):
        fetch_model(lambda _line: None, weights=replace(TINY, file="other.gguf"))
