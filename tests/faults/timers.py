"""Run a million jobs, some of which return within a millisecond of their timeout.

No timer ends a job other than its own.

A timer is set and disarmed for each job, and its signal can arrive late. A timer that acted on the
wrong job would end it before its timeout. So every job that was ended by its timeout must have run
for that time, and no other job may be ended.
"""

from __future__ import annotations

import random
import sys
import time

import psycopg

from tests.faults.campaign import WORK
from tests.support.audit import WAITING
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

CHUNK = 20_000
PUT = """
SELECT count(jobherd.enqueue(
    CASE WHEN random() < %s THEN 'fault:edge' ELSE 'fault:brief' END, jsonb_build_object('seconds', %s + 0.002 * (random() - 0.5))))
  FROM generate_series(1, %s)"""
ENDED = """
SELECT kind, error_code, count(*), min(extract(epoch FROM finished_at - started_at))::double precision FROM jobherd.history GROUP BY 1, 2"""
"""Completed jobs are not kept in the history."""
TIMEOUT = 0.005
"""Timeout of `fault:edge`, in seconds."""
PATIENCE = 600.0
"""Seconds for a chunk of jobs."""
ROUNDING = 0.0002
"""Seconds by which a recorded attempt may be too short.

Its times are recorded in microseconds, and its deadline uses the worker's own clock.
"""


def wait_until_at_most(connection: psycopg.Connection[tuple[int]], jobs: int) -> None:
    until = time.monotonic() + PATIENCE
    while (left := connection.execute(WAITING).fetchone()) is not None and left[0] > jobs:
        assert time.monotonic() < until, f"{left[0]} jobs are left"
        time.sleep(0.05)


def main() -> int:
    given = arguments(__doc__, jobs=1_000_000, edges=0.005, workers=2)
    random.seed(given.seed)
    report = Report(
        f"timers: {given.jobs} jobs, {given.edges:.1%} of them at their timeout of {TIMEOUT * 1000:g} ms", given.seed
    )
    with ground() as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        with Herd(dsn, WORK, workers=given.workers) as herd:
            begun = time.monotonic()
            for done in range(0, given.jobs, CHUNK):
                connection.execute(PUT, [given.edges, TIMEOUT, min(CHUNK, given.jobs - done)])
                wait_until_at_most(connection, CHUNK if done + CHUNK < given.jobs else 0)
            elapsed = time.monotonic() - begun
            code = herd.stop()
        report.fact("jobs a second", f"{given.jobs / elapsed:.0f}")
        report.holds("the supervisor exited with 0", code == 0, code)
        ended = {(kind, error): (count, least) for kind, error, count, least in connection.execute(ENDED)}
        times, least = ended.pop(("fault:edge", "JOB_TIMEOUT"), (0, 0.0))
        report.fact("jobs ended by their timeout", times)
        report.holds(
            "some jobs timed out, and each had run for the timeout",
            times > 0 and least >= TIMEOUT - ROUNDING,
            f"{least * 1000:.2f} ms at least",
        )
        report.holds("no other job was ended or failed", not ended, ended or "")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
