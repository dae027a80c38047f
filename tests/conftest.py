"""Tests of the library run on a clock that jumps, so that they cost no real time and cannot hang."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from trio_admission.testing import run_in_virtual_time

LIBRARY = Path(__file__).parent / "library"


@pytest.hookimpl(tryfirst=True)  # pytest-trio then finds the marker, and does not add its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if LIBRARY not in item.path.parents or not isinstance(item, pytest.Function):
            continue
        if inspect.iscoroutinefunction(item.obj) and item.get_closest_marker("trio") is None:
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time))
