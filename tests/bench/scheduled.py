"""Lateness of scheduled jobs: from a job's run_at to its handler's first statement, on an otherwise idle system.

Each time is random to the microsecond; the poll backstop is at its maximum, so a job that starts was started by a timer.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import psycopg

from tests.support.figures import Report, at
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")


def main() -> int:
    given = arguments(__doc__, jobs=200, seconds=20.0, workers=2)
    dice = random.Random(given.seed)
    report = Report("scheduled: lateness of scheduled jobs", given.seed)
    with ground() as (_, dsn), Herd(dsn, WORK, "--poll", "5m", workers=given.workers) as herd:
        report.on(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            first = time.time() + 2.0
            for _ in range(given.jobs):  # in no order: each may be the new earliest
                options = json.dumps({"run_at": _stamp(connection, first + dice.random() * given.seconds)})
                connection.execute("SELECT jobherd.enqueue('bench:stamp', '{}', %s)", [options])
            time.sleep(max(0.0, first + given.seconds + 1.0 - time.time()))
            herd.stop()
            rows = connection.execute(
                "SELECT result::text::double precision - extract(epoch FROM run_at)::double precision FROM jobherd.history WHERE state = 'completed'"
            ).fetchall()
    late = [row[0] * 1000 for row in rows]
    report.holds(f"all {given.jobs} jobs ran", len(late) == given.jobs, len(late))
    report.holds("none ran before its time", min(late) >= 0, f"{min(late):.3f} ms the earliest")
    report.spread("lateness", late)
    report.figure("lateness of a scheduled job p99", [at(late, 0.99)], unit="ms", aim=50)
    return report.end()


def _stamp(connection: psycopg.Connection, epoch: float) -> str:
    return connection.execute("SELECT to_timestamp(%s)::text", [epoch]).fetchone()[0]


if __name__ == "__main__":
    sys.exit(main())
