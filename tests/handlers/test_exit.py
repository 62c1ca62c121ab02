"""A program that enqueues exits at once, and may enqueue during exit."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest

from tests.support.herd import ROOT
from tests.support.patience import LIMIT

BEFORE = """
import atexit, threading
atexit.register(lambda: print([each.name for each in threading.enumerate() if each.name.startswith("jobherd")]))  # runs last
from jobherd import Client, handler

client = Client()

@handler("exit:work")
def work() -> None: ...
"""
PROGRAMS = {
    "a client that is not closed": "client.enqueue('exit:work')",
    "a handler of a coroutine": "import asyncio; asyncio.run(work.aenqueue())",
    "the first enqueue at exit": "atexit.register(client.enqueue, 'exit:work')",
    "a further enqueue at exit": "atexit.register(client.enqueue, 'exit:work'); client.enqueue('exit:work')",
    "a thread that outlives the main one": "threading.Thread(target=lambda: (threading.main_thread().join(), client.enqueue('exit:work'))).start()",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_no_pool_thread_is_left_at_exit(database, program):
    """From CPython 3.13 on, each such thread would delay the exit of the program by 5 s, twice."""
    ran = subprocess.run(
        [sys.executable, "-c", BEFORE + program],
        cwd=ROOT,
        env=os.environ | {"JOBHERD_DSN": database},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")
    with psycopg.connect(database) as connection:
        counted = connection.execute("SELECT count(*) FROM jobherd.ready WHERE kind = 'exit:work'").fetchone()
    assert counted[0] == program.count("client.enqueue") + program.count("aenqueue")
