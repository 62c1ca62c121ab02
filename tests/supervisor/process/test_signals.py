"""To be told to stop before the loop stands, at the moments at which Python passes on no exception as it is."""

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
def test_told_to_stop_where_no_exception_passes_is_an_orderly_stop(torn: str):
    done = subprocess.run(
        [sys.executable, "-c", TOLD.format(torn=torn)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "RuntimeError" not in done.stderr


def test_what_is_torn_while_it_is_made_is_no_cause_for_a_warning():
    command = [sys.executable, "-W", "error", "-c", TOLD.format(torn=UNCLOSED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0
    assert "ResourceWarning" not in done.stderr


def test_an_error_of_the_start_is_not_taken_for_a_stop():
    torn = CLASS.replace("tell()", "raise ValueError(name)")
    done = subprocess.run(
        [sys.executable, "-c", TOLD.format(torn=torn)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 1
    assert "ValueError: field" in done.stderr
