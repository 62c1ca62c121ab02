"""Tests that the gateway's bookkeeping does no I/O. It reaches no network, database or clock."""

from __future__ import annotations

import ast

import pytest

from tests.support.herd import ROOT

ALLOWED = {"__future__", "typing", "dataclasses", "enum", "heapq", "collections.abc"}


@pytest.mark.parametrize("name", ["actions", "state", "sessions", "tasks", "deadlines", "assignment", "settlements"])
def test_bookkeeping_module_imports_no_module_for_io_or_time(name):
    tree = ast.parse((ROOT / "workers" / "gateway" / f"{name}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    assert {module for module in found - ALLOWED if not module.startswith("jobherd.workers.gateway.")} == set()
