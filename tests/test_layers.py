"""Imports point one way."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trio_admission

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "trio_admission"
GATEWAY = ROOT / "web" / "trio_admission_web"

# From the ground up: each of them knows only those before it. docs/contributing.md shows the same map.
PURE = (
    "_errors", "_records", "_config",
    "_states", "_budget", "_claim", "_line", "_holdings", "_announcer",
    "_granting", "_core",
)  # fmt: skip
WAITING = ("_lease", "_reservation", "_pool")
HOUSE = (*PURE, *WAITING, "__init__", "testing")


@dataclass(frozen=True)
class Import:
    """One imported name: ``from MODULE import NAME``, or ``import MODULE``."""

    module: str
    name: str | None
    only_for_types: bool


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def dotted(path: Path) -> str:
    """Return the module's name, as it is imported."""
    root = GATEWAY.parent if GATEWAY in path.parents else ROOT
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    package = dotted(path) if path.name == "__init__.py" else dotted(path).rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, None, node in typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                module = importlib.util.resolve_name("." * node.level + module, package)
            yield from (Import(module, alias.name, node in typing_only) for alias in node.names)


def parts_of_library(found: Import) -> str:
    """Return the library's module that an import is of."""
    return found.module.removeprefix("trio_admission").lstrip(".").split(".")[0] or "__init__"


def is_of_library(found: Import) -> bool:
    return found.module.split(".")[0] == "trio_admission"


def test_the_map_is_complete() -> None:
    assert {path.relative_to(LIBRARY).parts[0].removesuffix(".py") for path in modules(LIBRARY)} == set(HOUSE)


def test_the_map_for_contributors_is_the_same() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    house = text.partition("trio_admission/ ")[2].partition("pytest_trio_admission")[0]
    names = [word for line in house.splitlines()[1:] for word in line[:36].split() if word.startswith("_")]
    assert names == [name for name in HOUSE if name not in {"__init__", "testing"}]


def test_the_map_of_the_gateway_is_complete() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    house = text.partition("web/trio_admission_web/ ")[2].partition("\n\n")[0]
    named = [word.rstrip("/") for line in house.splitlines()[1:] for word in line[4:28].split()]
    there = {path.relative_to(GATEWAY).parts[0].removesuffix(".py") for path in modules(GATEWAY)}
    assert sorted(named) == sorted(there - {"__init__", "__main__"})


@pytest.mark.parametrize("path", modules(LIBRARY), ids=dotted)
def test_a_module_of_the_library_knows_only_what_is_below_it(path: Path) -> None:
    part = path.relative_to(LIBRARY).parts[0].removesuffix(".py")
    below = set(HOUSE[: HOUSE.index(part)])
    if part == "testing":
        below.add(part)
    known = {
        parts_of_library(found)
        for found in imports(path)
        if is_of_library(found) and not found.only_for_types
    }
    assert known <= below


@pytest.mark.parametrize("path", modules(LIBRARY), ids=dotted)
def test_the_library_depends_on_trio_alone(path: Path) -> None:
    others = {found.module.split(".")[0] for found in imports(path)} - sys.stdlib_module_names
    assert others <= {"trio", "trio_admission"}


@pytest.mark.parametrize("part", PURE)
def test_the_core_is_pure(part: str) -> None:
    """It neither waits nor knows Trio, not even its types; so a test can turn its clock."""
    path = LIBRARY / f"{part}.py"
    assert not [found for found in imports(path) if found.module.split(".")[0] == "trio"]
    assert not waits(path)


@pytest.mark.parametrize("path", modules(LIBRARY), ids=dotted)
def test_every_await_is_in_three_modules(path: Path) -> None:
    if waits(path):
        assert path.parent != LIBRARY or path.stem in WAITING


def waits(path: Path) -> bool:
    kinds = (ast.Await, ast.AsyncWith, ast.AsyncFor)
    return any(isinstance(node, kinds) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_the_library_does_not_load_its_testing_helpers() -> None:
    assert not [
        found
        for path in LIBRARY.glob("*.py")
        for found in imports(path)
        if "testing" in parts_of_library(found)
    ]


@pytest.mark.parametrize("path", modules(GATEWAY), ids=dotted)
def test_the_gateway_uses_public_names_only(path: Path) -> None:
    public = {name for name in vars(trio_admission) if not name.startswith("_")}
    for found in imports(path):
        if is_of_library(found):
            assert found.module == "trio_admission", found
            assert found.name in public, found


@pytest.mark.parametrize("path", modules(GATEWAY / "wire"), ids=dotted)
def test_the_wire_formats_know_nothing_of_pools(path: Path) -> None:
    """Bytes in, bytes out: they use each other, the table of problems and the standard library."""
    for found in imports(path):
        top = found.module.split(".")[0]
        if top == "trio_admission_web":
            assert found.module.split(".")[1] in {"wire", "problems"}, found
        else:
            assert top in sys.stdlib_module_names, found


@pytest.mark.parametrize(
    "name",
    [
        "gateway",
        "passage",
        "refusals",
        "telling",
        "reply",
        "limits",
        "condition",
        "probing",
        "placement",
        "slot_files",
        "seats",
        "relay",
        "backend",
        "turns",
        "calls",
        "approvals",
        "resumes",
        "tools/tool",
    ],
)
def test_the_pool_glue_knows_nothing_of_wire_formats(name: str) -> None:
    """It knows what an exchange is, and no dialect."""
    for found in imports(GATEWAY / f"{name}.py"):
        if found.module.startswith("trio_admission_web.wire"):
            assert found.module == "trio_admission_web.wire.exchange", found
            assert found.only_for_types, found


def test_the_table_of_problems_knows_nobody() -> None:
    assert not [found for found in imports(GATEWAY / "problems.py") if "trio" in found.module]
