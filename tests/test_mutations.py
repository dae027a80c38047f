"""`mutations.py` takes too long to run each time. That it still can is seen here."""

from __future__ import annotations

import ast

import pytest

from tests import mutations


@pytest.mark.parametrize(
    "mutation", mutations.MUTATIONS, ids=lambda mutation: f"{mutation.rule} {mutation.fault}"
)
def test_a_mutation_can_be_applied(mutation: mutations.Mutation) -> None:
    """What it changes is in its module, once, and what comes of it is Python."""
    mutant = mutation.mutant()
    assert mutant is not None, f"not exactly one place of {mutation.module} reads {mutation.old!r}"
    ast.parse(mutant)


def test_every_rule_that_tests_name_has_a_mutation_and_the_other_way_round() -> None:
    """Otherwise nothing shows that these tests can fail, or there is nothing that could notice the fault."""
    assert {mutation.rule for mutation in mutations.MUTATIONS} == set(mutations.tests_by_rule())
