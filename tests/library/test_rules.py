"""Every rule of a pool is named by a test that would fail without it.

A test names the rules that it proves at the beginning of its docstring: ``G3, L4: ...``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent

# How many rules each letter has: granting, the line's limit, resizing and closing, leases, order between
# flows, slots, watching, configuration, registry.
RULES = {"G": 8, "L": 4, "R": 4, "E": 9, "F": 4, "S": 2, "W": 3, "C": 2, "P": 1}

NAMED = re.compile(r"((?:[A-Z]\d, )*[A-Z]\d): ")


def rules_by_test() -> Iterator[tuple[str, set[str]]]:
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                named = NAMED.match(ast.get_docstring(node) or "")
                yield f"{path.name}::{node.name}", set(named[1].split(", ")) if named else set()


def test_every_rule_is_named_by_a_test() -> None:
    rules = {f"{letter}{number}" for letter, count in RULES.items() for number in range(1, count + 1)}
    proved: set[str] = set().union(*(named for _, named in rules_by_test()))
    assert rules - proved == set(), "no test names these rules"
    assert proved - rules == set(), "there are no such rules"


def test_every_test_of_what_a_pool_does_names_a_rule() -> None:
    suite = {path.name for path in (HERE / "conformance").glob("test_*.py")}
    nameless = [name for name, named in rules_by_test() if name.split("::")[0] in suite and not named]
    assert nameless == []
