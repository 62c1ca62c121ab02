"""The bookkeeping does no I/O: it can neither reach a network, a database nor a clock."""

from __future__ import annotations

import ast

import pytest

from tests.support.herd import ROOT

ALLOWED = {"__future__", "typing", "dataclasses", "enum", "heapq", "collections.abc"}


@pytest.mark.parametrize("name", ["actions", "state", "sessions", "tasks", "deadlines", "assignment", "settlements"])
def test_it_imports_values_only(name):
    tree = ast.parse((ROOT / "workers" / "gateway" / f"{name}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    assert {module for module in found - ALLOWED if not module.startswith("jobherd.workers.gateway.")} == set()
