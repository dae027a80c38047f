"""The example file and the reference say what the code says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.configuration_reference import PAGE, page
from trio_admission import AdmissionConfig
from trio_admission_web.configuration import load
from trio_admission_web.options import BACKEND, GATEWAY, KEY, POOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trio_admission_web.options import Option

EXAMPLE = Path(__file__).parents[2] / "docs" / "example.toml"


def test_the_reference_is_made_from_the_code() -> None:
    assert PAGE.read_text() == page()


def test_the_example_loads() -> None:
    settings = load(EXAMPLE, environ={})
    assert [each.name for each in settings.backends] == ["big", "small", "own", "tiny"]
    assert [(each.name, each.flow, each.admin) for each in settings.keys] == [
        ("ada", "research", False),
        ("operator", "operator", True),
    ]
    assert settings.admission == AdmissionConfig()


def test_the_example_loads_with_everything_that_is_commented_out(tmp_path: Path) -> None:
    file = tmp_path / "example.toml"
    file.write_text(everything())
    load(file, environ={})


def test_the_page_about_running_llama_server_shows_what_loads(tmp_path: Path) -> None:
    page = EXAMPLE.parent / "how-to" / "run-llama-server.md"
    [block] = re.findall(r"^```toml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    file = tmp_path / "page.toml"
    file.write_text(block)
    backends = {each.name: each for each in load(file, environ={}).backends}
    assert [name for name, each in backends.items() if each.command] == ["own"]
    assert backends["own"].has_isolated_slots
    assert backends["tiny"].gguf


# Those of a backend that do not go together are shown by other ones.
ADDRESSED = tuple(option for option in BACKEND if option.name not in {"command", "gguf", "context_per_slot"})


def test_the_example_shows_each_kind_of_backend() -> None:
    backends = tomllib.loads(EXAMPLE.read_text())["backends"]
    assert "command" in backends["own"]
    assert {"gguf", "context_per_slot"} <= backends["tiny"].keys()


@pytest.mark.parametrize(
    ("path", "options"), [((), (*GATEWAY, *POOL)), (("backends", "big"), ADDRESSED), (("keys", "ada"), KEY)]
)
def test_the_example_shows_every_setting_and_each_default(
    path: tuple[str, ...], options: Iterable[Option]
) -> None:
    said, shown = tomllib.loads(EXAMPLE.read_text()), tomllib.loads(everything())
    for name in path:
        said, shown = said[name], shown[name]
    assert shown.keys() - {"backends", "keys"} == {option.name for option in options}
    if not path:
        defaults: dict[str, Any] = {option.name: option.default for option in options}
        assert {name: value for name, value in said.items() if name not in {"backends", "keys"}} == {
            name: defaults[name] for name in said.keys() & defaults.keys()
        }


def everything() -> str:
    """The example with the settings that are commented out."""
    return re.sub(r"^# (\w+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)
