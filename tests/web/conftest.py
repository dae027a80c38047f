"""Applications are made by the thousand here, one for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest
from werkzeug.routing import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def no_address_is_built() -> Iterator[None]:
    """Do not have Werkzeug compile, for each route, how its address would be built.

    Nobody asks for that, and it is most of what it takes to make an application.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "_compile_builder", lambda *_: _build, raising=False)
        yield


def _build(*_: object, **__: object) -> NoReturn:
    raise AssertionError("an address is built after all: this fixture has to go")
