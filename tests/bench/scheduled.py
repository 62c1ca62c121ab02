"""Measure the lateness of scheduled jobs.

The time is from a job's run_at to its handler's first statement: with ten jobs a second on an
otherwise idle system, and with a thousand a second.

Each run_at is random to the microsecond. The poll is at its maximum, so a job starts only because of
a timer.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import psycopg

from tests.support.figures import Report, at
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
ENQUEUE = """
WITH start AS (SELECT extract(epoch FROM clock_timestamp())::double precision + %(ahead)s AS first),
     sent AS (SELECT jobherd.enqueue('bench:stamp', '{}', jsonb_build_object('run_at', to_timestamp(first + random() * %(seconds)s)))
                FROM start, generate_series(1, %(jobs)s))
SELECT first FROM start WHERE (SELECT count(*) FROM sent) > 0
"""
"""The run_at times are in random order: each job may be the new earliest."""
LATE = """
SELECT result::text::double precision - extract(epoch FROM run_at)::double precision FROM jobherd.history WHERE state = 'completed' AND id > %s
"""


def main() -> int:
    given = arguments(__doc__, seconds=10.0, few=10, many=1000, runs=5, workers=2)
    report = Report("scheduled: lateness of scheduled jobs", given.seed)
    with ground() as (_, dsn):
        report.on(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT setseed(%s)", [given.seed / 10**6])
            for rate, runs in ((given.few, 1), (given.many, given.runs)):
                found = [lateness(report, dsn, connection, round(rate * given.seconds), given) for _ in range(runs)]
                report.spread(f"lateness at {rate} a second", [each for late in found for each in late])
                report.figure(
                    f"lateness of a scheduled job p99, {rate:,} due a second",
                    [at(late, 0.99) for late in found],
                    unit="ms",
                    aim=50,
                )
    return report.end()


def lateness(
    report: Report, dsn: str, connection: psycopg.Connection, jobs: int, given: argparse.Namespace
) -> list[float]:
    """The milliseconds from run_at to start of `jobs` jobs, spread over `given.seconds` seconds."""
    with Herd(dsn, WORK, "--poll", "5m", workers=given.workers) as herd:
        (after,) = connection.execute("SELECT coalesce(max(id), 0) FROM jobherd.history").fetchone()
        (first,) = connection.execute(
            ENQUEUE, {"jobs": jobs, "seconds": given.seconds, "ahead": 2.0 + jobs / 2000}
        ).fetchone()
        assert first > time.time(), "the first job was due before the last one was enqueued"
        time.sleep(first + given.seconds + 1.0 - time.time())
        report.holds("the supervisor exited with 0", herd.stop() == 0)
    rows = connection.execute(LATE, [after]).fetchall()
    late = [row[0] * 1000 for row in rows]
    report.holds(f"all {jobs} jobs ran", len(late) == jobs, len(late))
    report.holds("no job ran before its time", min(late) >= 0, f"{min(late):.3f} ms the earliest")
    return late


if __name__ == "__main__":
    sys.exit(main())
