"""How fast 20,000 jobs that do nothing are drained, durable and with full history, by the size of the batch a child claims.

The jobs are loaded into a paused queue, right before and without ANALYZE; the time runs from the resumption to the end of the last job.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psycopg

from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")


def drain(dsn: str, jobs: int, batch: int, workers: int) -> float:
    """Jobs a second."""
    with Herd(dsn, WORK, "--batch", str(batch), workers=workers), psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT jobherd.pause('default', 'loading')")
        connection.execute(
            "INSERT INTO jobherd.ready (kind, payload) SELECT 'bench:noop', json_build_object('n', n) FROM generate_series(1, %s) AS n",
            [jobs],
        )
        (start,) = connection.execute("SELECT clock_timestamp()").fetchone()
        connection.execute("SELECT jobherd.resume('default')")
        until = time.monotonic() + 120
        while time.monotonic() < until:
            time.sleep(0.2)
            # Cheap: waiting jobs are looked at by an index, and only their absence asks for the count.
            if not connection.execute("SELECT EXISTS (SELECT FROM jobherd.ready) OR EXISTS (SELECT FROM jobherd.running)").fetchone()[0]:
                break
        done, last = connection.execute("SELECT count(*), max(finished_at) FROM jobherd.history WHERE state = 'completed'").fetchone()
        assert done == jobs, f"{done} of {jobs} jobs were completed"
        return jobs / (last - start).total_seconds()


def main() -> int:
    given = arguments(__doc__, jobs=20_000, workers=2, runs=3)
    report = Report(f"drain: {given.jobs} no-op jobs, {given.workers} workers, full history")
    with ground() as (cluster, dsn):
        report.on(dsn)
        for batch in (1, 10, 100):
            found = []
            for _ in range(given.runs):
                with fresh(cluster) as own:
                    found.append(drain(own, given.jobs, batch, given.workers))
            report.fact(
                f"batch {batch:>3}, jobs/s",
                f"median {sorted(found)[len(found) // 2]:,.0f} (of {', '.join(f'{each:,.0f}' for each in found)})",
            )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
