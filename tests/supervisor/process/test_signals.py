"""Signals to stop before the loop runs, at points where Python swallows or wraps exceptions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.shell import LIMIT

TOLD = """
import os, signal, sys
import psycopg
from jobherd.supervisor.cli import main, run
from jobherd.supervisor.process.signals import hold

def tell():
    os.kill(os.getpid(), signal.SIGTERM)

hold()
{torn}
sys.exit(main(["run", "--dsn", "postgresql://127.0.0.1:1/none", "--handlers", "jobherd.handlers.jobs_purge", "--log-format", "text"]))
"""
CLASS = """
class Field:
    def __set_name__(self, owner, name):
        tell()

def _make_schema(*_):
    type("Torn", (), {"field": Field()})  # Python 3.11 makes a RuntimeError of what comes out of this

run._make_schema = _make_schema
"""
FINALIZER = """
class Left:
    def __del__(self):
        tell()

def connect(*_, **__):
    Left()  # of a finalizer nothing is passed on
    raise psycopg.OperationalError("away")

run.connect = connect
"""

UNCLOSED = """
import warnings

class Connection:
    def __del__(self):
        warnings.warn("deleted while still open", ResourceWarning)

def connect(*_, **__):
    made = Connection()
    tell()

run.connect = connect
"""


@pytest.mark.parametrize("torn", [CLASS, FINALIZER], ids=["class", "finalizer"])
def test_stop_signal_where_python_hides_exceptions_stops_with_exit_code_0(torn: str):
    done = subprocess.run(
        [sys.executable, "-c", TOLD.format(torn=torn)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "RuntimeError" not in done.stderr


def test_stop_signal_during_a_connection_attempt_causes_no_resource_warning():
    command = [sys.executable, "-W", "error", "-c", TOLD.format(torn=UNCLOSED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0
    assert "ResourceWarning" not in done.stderr


def test_error_during_the_start_does_not_count_as_a_stop_request():
    torn = CLASS.replace("tell()", "raise ValueError(name)")
    done = subprocess.run(
        [sys.executable, "-c", TOLD.format(torn=torn)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 1
    assert "ValueError: field" in done.stderr
