"""These tests run on a clock that jumps, except those that choose another runner."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from trio_admission.testing import run_in_virtual_time

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-trio adds a marker of its own, which would win
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or HERE not in item.path.parents:
            continue
        if inspect.iscoroutinefunction(item.obj) and item.get_closest_marker("trio") is None:
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time))
