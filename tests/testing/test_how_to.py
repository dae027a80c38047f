"""The tests of docs/how-to/test-your-own-code.md, run as its readers run them."""

from __future__ import annotations

import pytest

from tests.support.page import Page

pytest_plugins = ["pytester"]

PAGE = Page("how-to/test-your-own-code.md")
VIRTUAL, STILL, OVER_MEMORY, OVER_TCP = (block for block in PAGE.blocks("python") if "def test_" in block)


def run(pytester: pytest.Pytester, block: str) -> pytest.RunResult:
    pytester.makepyfile(test_page=block)
    return pytester.runpytest("--strict-markers", "-W", "error")


@pytest.mark.parametrize(("block", "tests"), [(VIRTUAL, 1), (OVER_MEMORY, 3), (OVER_TCP, 1)])
def test_the_tests_on_the_page_pass(pytester: pytest.Pytester, block: str, tests: int) -> None:
    """Without a line of configuration, and with strict markers."""
    run(pytester, block).assert_outcomes(passed=tests)


def test_a_test_that_stands_still_fails_as_the_page_shows(pytester: pytest.Pytester) -> None:
    """Below its name, and without the tracebacks of those who were cancelled."""
    result = run(pytester, STILL)
    result.assert_outcomes(failed=1)
    (shown,) = PAGE.blocks("text")
    result.stdout.fnmatch_lines(
        ["*_ test_a_lease_inside_a_lease _*", "", *shown.splitlines()], consecutive=True
    )
    assert len(result.outlines) < 30
