"""The frozen records, and the refusals."""

from __future__ import annotations

import pytest

from trio_admission import (
    AdmissionError,
    Cost,
    LeaseLost,
    LineFull,
    PoolClosed,
    PoolUnavailable,
    SlotPool,
    WaitTimeout,
)


def test_a_cost_is_one_slot_unless_it_says_more() -> None:
    """S2: and no tokens, which is to say that they are not counted."""
    assert Cost() == Cost(1, 0) == Cost(slots=1, tokens=0)
    with pytest.raises(AttributeError):
        Cost().slots = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"slots": 0}, ValueError),
        ({"slots": -1}, ValueError),
        ({"tokens": -1}, ValueError),
        ({"slots": 1.0}, TypeError),
        ({"slots": True}, TypeError),
        ({"tokens": "7"}, TypeError),
        ({"tokens": None}, TypeError),
    ],
)
def test_a_senseless_cost_is_refused(wrong: dict[str, int], error: type[Exception]) -> None:
    """S2: where it is made, with the name of the field."""
    with pytest.raises(error, match=next(iter(wrong))):
        Cost(**wrong)


def test_every_refusal_is_an_admission_error() -> None:
    """L3: so that one `except` catches them, and misuse is not among them."""
    for refusal in (LineFull, WaitTimeout, PoolClosed, LeaseLost, PoolUnavailable):
        assert issubclass(refusal, AdmissionError)
    assert not issubclass(AdmissionError, (RuntimeError, ValueError))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "4", None])
def test_a_pools_size_is_a_whole_number_of_at_least_one(wrong: int) -> None:
    """R2: `ValueError` or `TypeError`, before there is a pool."""
    with pytest.raises((ValueError, TypeError), match="slots"):
        SlotPool(wrong)
    if wrong is not None:
        with pytest.raises((ValueError, TypeError), match="kv_tokens"):
            SlotPool(1, kv_tokens=wrong)


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan")])
def test_a_weight_is_above_0(wrong: float) -> None:
    """F2: `ValueError`, and nobody has arrived."""
    pool = SlotPool(1)
    with pytest.raises(ValueError, match="weight"):
        pool.admit(weight=wrong)
    with pytest.raises(ValueError, match="weight"):
        pool.reserve(weight=wrong)


@pytest.mark.parametrize(
    ("name", "wrong"), [("slots", 10**30), ("config", None), ("park_budget", 0), ("park_budget", 3)]
)
def test_a_pool_is_made_of_the_right_things(name: str, wrong: object) -> None:
    """R2, E7: above all, 0 is no budget, and not the one of the run either."""
    parts = {"slots": 4, name: wrong}
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be "):
        SlotPool(**parts)  # type: ignore[arg-type]


def test_a_pool_says_what_it_is() -> None:
    """W1: in the repr, and by its name."""
    pool = SlotPool(4, name="gpu-0")
    assert repr(pool) == "<SlotPool 'gpu-0': 0 of 4 slots held, 0 waiting, 0 parked>"
    assert pool.name == pool.statistics().name == "gpu-0"
    assert pool.statistics().kv_tokens is None
