"""Nothing runs on a Hypercorn that was not looked at."""

from __future__ import annotations

import importlib.metadata

import pytest
from h2.connection import H2Connection
from hypercorn.protocol.h11 import H11Protocol

from trio_admission_web.serving.guard import UnsupportedHypercorn, check_hypercorn


def test_the_installed_hypercorn_is_supported() -> None:
    check_hypercorn()


def test_another_version_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.19.1")
    with pytest.raises(UnsupportedHypercorn) as refused:
        check_hypercorn()
    assert str(refused.value) == (
        "trio_admission_web replaces parts of Hypercorn 0.18 and cannot run on 0.19.1; "
        "install hypercorn==0.18.*"
    )


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (
            H11Protocol,
            "_maybe_recycle",
            r"^hypercorn 0\.18.* has no hypercorn.protocol.h11:H11Protocol\.\w+, ",
        ),
        (H2Connection, "_receive_frame", r"^h2 4.* has no h2.connection:H2Connection._receive_frame, "),
    ],
)
def test_a_missing_part_is_named(owner: type, name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(UnsupportedHypercorn, match=said):
        check_hypercorn()
