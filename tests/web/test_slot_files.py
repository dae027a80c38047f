"""When it is worth to keep what a slot has in a file."""

from __future__ import annotations

import pytest

from trio_admission_web.slot_files import Worth

LONG = 2000


@pytest.mark.parametrize(("tokens", "pays"), [(0, False), (255, False), (256, True), (LONG, True)])
def test_what_is_short_is_computed_again(tokens: int, *, pays: bool) -> None:
    assert Worth().pays(tokens) is pays


@pytest.mark.parametrize(
    ("save", "restore", "prefill", "pays"),
    [(10, 10, 1000, True), (600, 500, 1000, False), (2000, 0, 1000, False), (0, 2000, 1000, False)],
)
def test_files_must_be_quicker_than_the_prefill(
    save: float, restore: float, prefill: float, *, pays: bool
) -> None:
    worth = Worth()
    worth.learn("save", save, LONG)
    worth.learn("restore", restore, LONG)
    worth.learn("prefill", prefill, LONG)
    assert worth.pays(LONG) is pays


def test_nothing_is_held_against_what_has_not_been_tried() -> None:
    worth = Worth()
    worth.learn("prefill", 0.001, LONG)
    assert worth.pays(LONG)
    worth.learn("restore", 1000, 0)  # which failed
    assert worth.pays(LONG)


def test_a_figure_counts_for_each_token_and_the_newest_count_most() -> None:
    worth = Worth()
    worth.learn("prefill", 100, 100)
    worth.learn("save", 50, 100)
    for _ in range(9):
        worth.learn("save", 20_000, 10_000)
    assert not worth.pays(LONG)


def test_one_slow_moment_does_not_decide_for_ever() -> None:
    worth = Worth()
    worth.learn("save", 3000, LONG)
    worth.learn("prefill", 1000, LONG)
    assert [worth.pays(LONG) for _ in range(20)].index(True) > 5
