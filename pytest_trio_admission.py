"""The pytest plugin of trio_admission: the fixtures `slot_pool` and `fake_llama_server`.

It stands beside the package and not in it, and imports nothing but pytest until a test asks for a fixture.
Pytest loads plugins at the start of every run in an environment: a plugin inside the package would bring
Trio into runs that do not use it, and the package before coverage has begun to measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trio_admission import SlotPool
    from trio_admission.testing import FakeLlamaServer


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    for marker in (
        "slot_pool(slots, **options): arguments of the SlotPool that the fixture slot_pool makes",
        "fake_llama_server(**options): arguments of the FakeLlamaServer that the fixture starts",
    ):
        config.addinivalue_line("markers", marker)


@pytest.fixture
def slot_pool(request: pytest.FixtureRequest) -> Iterator[SlotPool]:
    """A `SlotPool` with one slot, so that the second who asks must wait.

    ``@pytest.mark.slot_pool(4, config=...)`` gives it other arguments. After the test its books are checked
    with `check`, and that nothing of it is held, waiting or parked any more: whatever a test has entered, it
    must leave. For any test, asynchronous or not.
    """
    from trio_admission import SlotPool  # noqa: PLC0415  # not before somebody asks, see above
    from trio_admission.testing import check  # noqa: PLC0415

    marker: pytest.Mark | None = request.node.get_closest_marker("slot_pool")
    pool = SlotPool(*marker.args, **marker.kwargs) if marker is not None else SlotPool(1)
    yield pool
    check(pool)
    left = pool.statistics()
    assert (left.held, left.waiting, left.parked, left.returning) == (0, 0, 0, 0), (
        f"left after the test: {pool}"
    )


@pytest.fixture
async def fake_llama_server(request: pytest.FixtureRequest) -> AsyncIterator[FakeLlamaServer]:
    """A `FakeLlamaServer` that runs, for tests that pytest-trio runs. It ends with the test.

    ``@pytest.mark.fake_llama_server(total_slots=2)`` gives it other arguments.
    """
    from trio_admission.testing import FakeLlamaServer  # noqa: PLC0415

    marker: pytest.Mark | None = request.node.get_closest_marker("fake_llama_server")
    options: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    if marker is not None and marker.args:
        raise TypeError(f"the marker fake_llama_server takes its arguments by name, not {marker.args}")
    async with FakeLlamaServer(**options) as server:
        yield server
