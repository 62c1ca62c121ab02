"""Supervisors under the kinds of login that hardened and managed servers use."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd import Client
from tests.cli.shell import jobherd
from tests.support.gate import Gate
from tests.support.herd import Herd
from tests.support.queue import Queue

HANDLERS = """
from jobherd import handler
from tests.support.gate import at_gate

@handler("l:gate", timeout="5m")
def gate(label: str) -> str:
    return at_gate(label)

@handler("l:moved", timeout="5m", transactional=True)
def moved(label: str) -> str:
    return at_gate(label)
"""


@pytest.fixture
def login(database):
    """The DSN of a login whose sessions switch to another role."""
    with psycopg.connect(database, autocommit=True) as connection:
        for role in ("t_vault", "t_app"):
            connection.execute(f"DROP ROLE IF EXISTS {role}")
        connection.execute("CREATE ROLE t_app IN ROLE jobherd_work")
        connection.execute("CREATE ROLE t_vault LOGIN NOINHERIT IN ROLE t_app")
        connection.execute("ALTER ROLE t_vault SET role = 't_app'")
        yield make_conninfo(database, user="t_vault")
        connection.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 't_vault'")
        connection.execute("DROP ROLE t_vault, t_app")


@pytest.mark.parametrize("kind", ["l:gate", "l:moved"])
@pytest.mark.parametrize("hardened", [False, True], ids=["may end its sessions", "may not end its sessions"])
def test_job_of_a_killed_worker_runs_again_with_and_without_pg_terminate_backend(
    database, login, tmp_path, gate: Gate, kind, hardened
):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with Queue(database) as queue, Client(database) as client:
        if hardened:
            queue.run("REVOKE EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) FROM PUBLIC")
        with Herd(login, tmp_path, workers=1) as herd:
            herd.wait_ready()
            job = client.enqueue(kind, {"label": "one"})
            os.kill(gate.wait_arrival("one").pid, signal.SIGKILL)
            gate.wait_arrival("one").open("again")
            assert client.wait(job, timeout=60)["state"] == "completed"
            answer = jobherd("doctor", "--json", dsn=login)
            said = [found["text"] for found in answer.json["findings"] if "pg_terminate_backend" in found["text"]]
            assert len(said) == hardened, said
