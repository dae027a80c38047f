"""What can be asked of an engine before there is one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from trio_admission_web.engine import EngineConfig, EngineError, Model, run_engine

MODEL = Model("any", Path("/any.gguf"))


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"context_per_slot": -1}, {"threads": 0}], ids=str)
def test_a_count_below_one_is_refused(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not {wrong[name]}"):
        EngineConfig(model=MODEL, **wrong)


async def test_a_missing_engine_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineError, match=r"xllamacpp is not installed: `.*pip install .*\[demo\]"):
        await run_engine(EngineConfig(model=MODEL))


async def test_a_directory_for_saved_slots_that_cannot_be_made_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "slots"
    with pytest.raises(EngineError, match=f"{directory} cannot be a directory for saved slots: Not a dir"):
        await run_engine(EngineConfig(model=MODEL, slot_save_path=directory))
