"""The policies make no system call and read no clock: they import nothing that could."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from jobherd.supervisor import policy

FILES = sorted(Path(policy.__file__).resolve().parent.glob("*.py"))
NEEDED = {"__future__", "collections", "dataclasses", "enum", "signal", "typing"}
"""What values need of the standard library. `signal` gives the names of signals."""


def imported(file: Path) -> set[str]:
    """The top-level modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_policy_imports_only_what_values_need(file):
    assert imported(file) & sys.stdlib_module_names <= NEEDED


@pytest.mark.parametrize("name", ["plan", "shutdown", "stopping", "replacement", "wakeups", "stragglers", "exits"])
def test_a_decision_gets_facts_without_methods_that_write(name):
    text = next(file for file in FILES if file.stem == name).read_text()
    assert "fleet: Fleet," not in text
    assert "policy.fleet import" not in text
