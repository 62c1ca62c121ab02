"""Tests the recipe for pytest-xdist of docs/how-to/write/test-handlers.md with the fixtures of Jobherd."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.docs.pages import blocks, named
from tests.support.checkout import import_path
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from pathlib import Path

HANDLER = """
import os
from jobherd import handler

@handler("shop:where")
def where() -> str:
    return os.environ["PYTEST_XDIST_WORKER"]
"""
"""Its job returns the pytest process whose supervisor ran it."""

TESTS = """
import os
import pytest
from jobherd import default_client
from my_handlers.shop import where

@pytest.mark.parametrize("turn", range(2))
def test_a_real_worker_runs_the_jobs_of_its_process(jobherd_worker, turn):
    jobs = [where.enqueue() for _ in range(3)]
    jobherd_worker.drain("my_handlers", timeout="10m")
    assert {default_client().job(job)["result"] for job in jobs} == {os.environ["PYTEST_XDIST_WORKER"]}

def test_jobs_of_the_other_process_are_not_found(jobherd_inline):
    where.enqueue()
    assert len(jobherd_inline.drain([where])) == 1

def test_jobs_are_recorded(jobherd_recorder):
    where.enqueue()
    assert jobherd_recorder.enqueued(where) == [{}]
"""


@pytest.mark.system
def test_each_process_of_pytest_xdist_runs_its_own_jobs(empty_database, tmp_path: Path):
    """Both processes run every test at the same time. Without the recipe, they would run each other's jobs."""
    (recipe,) = (block for block in blocks(named("test-handlers")) if "PYTEST_XDIST_WORKER" in block.text)
    (tmp_path / "my_handlers").mkdir()
    for name, text in (("conftest.py", recipe.text), ("my_handlers/shop.py", HANDLER), ("test_shop.py", TESTS)):
        (tmp_path / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBHERD_", "DATABASE_URL"))}
    own = {
        "JOBHERD_DSN": empty_database,
        "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{import_path()}",
    }
    words = ("-q", "-p", "no:cacheprovider", "-p", "no:django", "-W", "error", "-n", "2", "--dist", "each")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            env=kept | own,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=9 * LIMIT,
            check=False,
        )
    finally:
        with psycopg.connect(empty_database, autocommit=True) as connection:
            for process in ("gw0", "gw1"):
                connection.execute(f"DROP DATABASE IF EXISTS test_{process} WITH (FORCE)")
    assert done.returncode == 0 and "8 passed" in done.stdout, done.stdout + done.stderr
