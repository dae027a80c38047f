"""The table of cases names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_in_the_table_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", (HERE / "README.md").read_text())
    assert len(named) > 50
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in (HERE.parent / file).read_text()
    ]
    assert not missing
