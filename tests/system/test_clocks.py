"""Wall clocks of hosts and of the database server that are wrong and jump.

No job times out falsely, starts early, is reclaimed from a live supervisor, or completes twice.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg

from jobherd.sql.migrate import migrate
from tests.support.faketime import Clock
from tests.support.fleet import Stage
from tests.support.postgres import Cluster, quick_place

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gate import Gate

LIMIT = 60.0
DAY = 86400.0
LEASE = "6s"
"""A renewal every 2 s: the tests wait for the next one of each supervisor."""

WORK = """
import time
from jobherd import handler
from tests.support.gate import at_gate

@handler("c:gate", timeout="2m")
def gate(label: str) -> float:
    at_gate(label)
    return time.time()

@handler("c:now")
def now() -> float:
    return time.time()
"""

RESTING = """
SELECT count(*) FROM pg_stat_activity
 WHERE application_name LIKE 'jobherd:maintenance:%%' AND query_start > %s AND query NOT LIKE '%%scheduled%%'"""


def test_hosts_clock_that_jumps_by_a_day_ends_no_job_and_starts_none_early(stage: Stage, gate: Gate):
    """Durations come from the monotonic clock, and timestamps from the database.

    A host's wall clock is used only in its log.
    """
    work = stage.write("work.py", WORK)
    with ExitStack() as stack:
        clocks = {jump: stack.enter_context(Clock()) for jump in (DAY, -DAY)}
        fleets = {
            jump: stage.run_fleet(workers=1, lease=LEASE, handlers=work, environment=clock.environment)
            for jump, clock in clocks.items()
        }
        jobs = [stage.enqueue("c:gate", f'{{"label": "{name}"}}') for name in ("one", "other")]
        arrivals = [gate.wait_arrival("one"), gate.wait_arrival("other")]
        holders = {pid: jump for jump, fleet in fleets.items() for pid in fleet.workers().values()}
        for jump, clock in clocks.items():
            clock.jump(jump)
        due = stage.enqueue("c:now", delay=2)
        beats = stage.run("SELECT id, beat_at FROM jobherd.supervisors ORDER BY id")
        stage.wait(
            lambda: all(now > before for (_, before), (_, now) in zip(beats, stage.run("SELECT id, beat_at FROM jobherd.supervisors ORDER BY id"), strict=True)),
            "a renewal by both supervisors",
            limit=LIMIT,
        )  # fmt: skip
        for job, arrival in zip(jobs, arrivals, strict=True):
            arrival.open()
            row = stage.wait_state(job, "completed", "failed", "retrying", limit=LIMIT)
            assert (row["state"], row["attempts"], row["crashes"]) == ("completed", 1, 0)
            real = stage.call("SELECT extract(epoch FROM clock_timestamp())::double precision")
            assert abs(row["result"] - real - holders[arrival.pid]) < LIMIT, "the worker's clock had not jumped"
        row = stage.wait_state(due, "completed", limit=LIMIT)
        assert row["started_at"] >= row["run_at"]
        assert (row["attempts"], stage.runs(due)) == (1, 1)
        assert stage.completed_twice() == []
        for fleet in fleets.values():
            assert not fleet.said(
                lambda event: (
                    "SIGTERM" in event.get("message", "")
                    and event.get("process") == "supervisor"
                    and "gets" in event["message"]
                )
            )
            assert not fleet.said("reclaimed")
            assert fleet.stop() == 0


def test_database_clock_that_jumps_makes_no_live_supervisor_lose_jobs_or_run_any_twice(tmp_path: Path, gate: Gate):
    with (
        Clock() as clock,
        Cluster(place=quick_place(), environment=clock.environment) as cluster,
        cluster.database() as dsn,
    ):
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        with Stage(dsn, tmp_path) as stage:
            try:
                work = stage.write("work.py", WORK)
                fleets = [stage.run_fleet(workers=1, lease=LEASE, handlers=work, poll="5m") for _ in range(2)]
                supervisors = stage.run("SELECT id FROM jobherd.supervisors ORDER BY id")
                jobs = [stage.enqueue("c:gate", f'{{"label": "{name}"}}') for name in ("one", "other")]
                arrivals = [gate.wait_arrival("one"), gate.wait_arrival("other")]
                due = stage.enqueue("c:now", delay=1800)
                stage.wait_state(stage.enqueue("c:now", delay=1), "ready", limit=LIMIT)
                looked = stage.call("SELECT clock_timestamp()")
                stage.wait(
                    lambda: stage.call(RESTING, looked) == len(fleets),
                    "maintenance processes that have checked for due jobs",
                    limit=LIMIT,
                )
                for jump in (3600.0, 0.0):
                    marks = [len(fleet.log) for fleet in fleets]
                    clock.jump(jump)
                    for fleet, mark in zip(fleets, marks, strict=True):
                        fleet.wait_log("the database's clock has jumped by", after=mark, limit=LIMIT)
                    stage.wait_state(
                        due, "ready", limit=LIMIT
                    )  # by the server's clock, and long before the maintenance processes look again
                assert stage.run("SELECT id FROM jobherd.supervisors ORDER BY id") == supervisors, (
                    "no supervisor was reclaimed"
                )
                for job, arrival in zip(jobs, arrivals, strict=True):
                    arrival.open()
                    row = stage.wait_state(job, "completed", "failed", "retrying", limit=LIMIT)
                    assert (row["state"], row["attempts"], stage.runs(job)) == ("completed", 1, 1)
                assert stage.wait_state(due, "completed", limit=LIMIT)["attempts"] == 1, (
                    "it was due by the server's clock, without a poll"
                )
                stage.wait_state(stage.enqueue("c:now"), "completed", limit=LIMIT)
                assert stage.completed_twice() == []
                assert [fleet.stop() for fleet in fleets] == [0, 0]
            finally:
                stage.show()
