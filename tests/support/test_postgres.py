from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg
import pytest

from tests.support import postgres
from tests.support.postgres import Cluster
from tests.support.processes import wait_for_exit

RUN = """
import os, signal
from tests.support.postgres import Cluster
cluster = Cluster()
cluster.start()
print(cluster.pid, cluster._watchdog.pid, cluster.data.parent, flush=True)
signal.pause()
"""


def test_committed_rows_survive_a_kill_of_all_server_processes():
    with Cluster() as cluster:
        with psycopg.connect(cluster.dsn()) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
        cluster.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(cluster.dsn())
        cluster.start()
        with psycopg.connect(cluster.dsn()) as conn:
            assert conn.execute("SELECT n FROM kept").fetchone() == (7,)
        cluster.restart()
        with psycopg.connect(cluster.dsn()) as conn:
            assert conn.execute("SELECT n FROM kept").fetchone() == (7,)


def test_killed_test_run_leaves_no_server_and_no_folder():
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        postmaster, watchdog, folder = run.stdout.readline().split()
        assert os.path.isdir(folder)
        run.send_signal(signal.SIGKILL)
    wait_for_exit(int(postmaster))
    wait_for_exit(int(watchdog))
    assert not os.path.exists(folder)


def test_server_is_durable_and_has_the_requested_version(empty_database: str):
    wanted = os.environ.get("JOBHERD_TEST_PG", "18")
    with psycopg.connect(empty_database) as conn:
        assert conn.info.server_version // 10000 == int(wanted)
        assert conn.execute("SHOW fsync").fetchone() == ("on",)
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert conn.execute("SHOW server_encoding").fetchone() == ("UTF8",)


def test_error_for_a_missing_server_names_the_debian_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOBHERD_TEST_PG", "7")
    with pytest.raises(RuntimeError, match="postgresql-7"):
        postgres.programs()


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_fresh_database_with_the_schema(database: str, turn: int):
    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT to_regclass('jobherd.ready') IS NOT NULL").fetchone() == (True,)
        conn.execute("CREATE TABLE mine ()")
