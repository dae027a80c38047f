"""Runs every Python block of the documentation; the blocks of one page share their names."""

from __future__ import annotations

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["README.md", "docs/**/*.md", "docs/*.md"]
).pytest()
