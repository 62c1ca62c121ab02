"""A process gets no file descriptor at the moment it needs one.

It waits or is replaced, logs the cause, and works again when descriptors are available.

The test sets the limit from outside and leaves a given number of descriptors: a process may still open the
first file, and not the next.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.patience import LIMIT
from tests.support.processes import children_of
from tests.system.test_flood import web_of
from tests.system.test_metrics import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Stage

QUICK = {
    "db_retry_initial": "100ms",
    "db_retry_max": "500ms",
    "respawn_initial": "10ms",
    "respawn_max": "100ms",
    "poll": "1s",
    "lease": "5m",
}
SPARE = (0, 1)
"""Files that may still be opened.

One is enough for the socket of a session; waiting for the server's answer needs another.
"""
RESTS = 4
END = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE %s"


@contextmanager
def confined(pid: int, spare: int) -> Iterator[None]:
    """Let a process open only this many more files within the block."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = (number for number in itertools.count() if number not in taken)
    most = next(itertools.islice(free, spare, None))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def shut(stage: Stage, who: str) -> Iterator[None]:
    """Reject new connections within the block, and end the sessions of this name."""
    allow = "ALTER DATABASE {} ALLOW_CONNECTIONS {}"
    name = stage.call("SELECT current_database()::text")
    with psycopg.connect(make_conninfo(stage.dsn, dbname="postgres"), autocommit=True) as elsewhere:
        elsewhere.execute(allow.format(name, "false"))
        try:
            stage.call(END, who)
            yield
        finally:
            elsewhere.execute(allow.format(name, "true"))


def rests(pid: int) -> int:
    """Return how often a process has waited so far; -1 if it is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    except FileNotFoundError:
        return -1


def let_try(stage: Stage, *pids: int) -> None:
    """Wait until each process, which only tries to reconnect, has failed and waited several times, or has ended."""
    before = {pid: rests(pid) for pid in pids}
    stage.wait(
        lambda: all(not seen <= rests(pid) < seen + RESTS for pid, seen in before.items()),
        "several attempts to reconnect by each process",
    )


@pytest.mark.parametrize("spare", SPARE)
def test_worker_and_maintenance_process_reconnect_once_file_descriptors_are_available(stage: Stage, spare: int):
    fleet = stage.run_fleet(workers=1, **QUICK)
    before = (fleet.workers()[0], fleet.maintenance())
    mark = len(fleet.log)
    with ExitStack() as confinement:
        with shut(stage, "jobherd:%e%:_:%"):
            jobs = [stage.enqueue("t:noop"), stage.enqueue("t:noop", delay=0.01)]
            for who in ("worker 0", "maintenance"):
                fleet.wait_log(
                    lambda event, who=who: event["process"] == who and "the database is away" in event["message"],
                    after=mark,
                )
            for pid in before:
                confinement.enter_context(confined(pid, spare))
        let_try(stage, *before)
    stage.wait_all(jobs, "completed")
    assert (fleet.workers()[0], fleet.maintenance()) == before
    assert not fleet.said(lambda event: event.get("level") == "critical")
    assert stage.run("SELECT DISTINCT attempts FROM jobherd.history") == [(1,)]
    assert fleet.stop() == 0


def test_supervisor_without_file_descriptors_logs_the_cause_and_reconnects_later(stage: Stage):
    fleet = stage.run_fleet(workers=1, **QUICK)
    before = children_of(fleet.pid)
    mark = len(fleet.log)
    with ExitStack() as confinement:
        with shut(stage, "jobherd:supervisor:%"):
            fleet.wait_log(
                lambda event: event["process"] == "supervisor" and "the database is away" in event["message"],
                after=mark,
            )
            confinement.enter_context(confined(fleet.pid, 0))
        let_try(stage, fleet.pid)
        fleet.signal(signal.SIGUSR1)
        fleet.wait_log("no database: the connection failed: Too many open files", after=mark)
        stage.wait_state(stage.enqueue("t:noop"), "completed")
    fleet.wait_log("the database is there", after=mark)
    assert children_of(fleet.pid) == before
    assert fleet.stop() == 0


def test_metrics_answer_again_once_file_descriptors_are_available(stage: Stage):
    fleet = stage.run_fleet(workers=1, http="127.0.0.1:0", **QUICK)
    address = fleet.wait_log("metrics and health on")["message"].split(" on ")[1]
    web = web_of(fleet)
    host, port = address.removeprefix("http://").split(":")
    assert fetch(address, "/livez")[0] == 200
    with confined(web, 0), socket.create_connection((host, int(port)), LIMIT):
        fleet.wait_log("http: cannot take a connection: OSError")
        stage.wait_state(stage.enqueue("t:noop"), "completed")
    assert fetch(address, "/livez")[0] == 200
    assert web_of(fleet) == web
    assert fleet.stop() == 0
