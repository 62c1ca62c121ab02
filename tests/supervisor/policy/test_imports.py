"""Policies make no system calls and read no clock, because they import nothing that could."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from jobherd.supervisor import policy

FILES = sorted(Path(policy.__file__).resolve().parent.glob("*.py"))
NEEDED = {"__future__", "collections", "dataclasses", "enum", "signal", "typing"}
"""Standard modules that define values; `signal` is needed for the names of signals."""


def imported(file: Path) -> set[str]:
    """Return the top-level modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_policy_imports_only_standard_modules_that_define_values(file):
    assert imported(file) & sys.stdlib_module_names <= NEEDED


@pytest.mark.parametrize("name", ["plan", "shutdown", "stopping", "replacement", "wakeups", "stragglers", "exits"])
def test_deciding_module_does_not_import_the_writable_slot_table(name):
    text = next(file for file in FILES if file.stem == name).read_text()
    assert "slot_table: SlotTable," not in text
    assert "policy.slot_table import" not in text
