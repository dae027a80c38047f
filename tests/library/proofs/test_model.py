"""The core against the oracle, at random; and broken cores, each of which that must catch.

For longer than usual: ``PROOF_SOAK=20 pytest --timeout=0 tests/library/proofs``. With ``PROOF_ROUGH=1``, a
failure is shown as it was found, and not made as short as it can be, which takes minutes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.library.proofs.broken import BROKEN_BUDGETS, BROKEN_CORES, machine_with
from tests.library.proofs.machine import AdmissionMachine

if TYPE_CHECKING:
    from trio_admission import ParkBudget
    from trio_admission._core import Core

SOAK = int(os.environ.get("PROOF_SOAK", "1"))  # how many times as long as usual

QUICK = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=SOAK == 1,
    database=None,
    phases=[Phase.generate, *([] if "PROOF_ROUGH" in os.environ else [Phase.shrink])],  # not Phase.explain
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
FIRST_FAILURE = settings(QUICK, max_examples=400, derandomize=True, phases=[Phase.generate])


def test_a_core_does_what_the_design_says() -> None:
    """G1, G2, G4, G5, G6, G7, L1, R1, E1, E2, E7, E8, E9, F1, F2, F3, F4, S1, S2, W1: as in `machine`."""
    run_state_machine_as_test(AdmissionMachine, settings=settings(QUICK, max_examples=60 * SOAK))


@pytest.mark.parametrize("core", BROKEN_CORES)
def test_the_model_catches_a_core_that(core: type[Core]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_with(core=core), settings=FIRST_FAILURE)


@pytest.mark.parametrize("budget", BROKEN_BUDGETS)
def test_the_model_catches_a_budget_that(budget: type[ParkBudget]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_with(budget=budget), settings=FIRST_FAILURE)
