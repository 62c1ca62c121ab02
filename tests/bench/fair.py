"""Measure what a flood of one partition costs the others if partitions take turns, and what a claim reads.

python -m tests.bench.fair [--flood 200000] [--others 23000] [--backlog 1000000] [--runs 3]

First the jobs of 10,000 other partitions are drained alone, then behind a flood that was enqueued
before them, in turn. Both times are from the release of the queue to the end of the last of these
jobs, and to the end of half of them. Then a claim is explained at 10,001 partitions; the flood has
most of the backlog.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import psycopg

from tests.sql.test_turns_cost import FILL, buffers
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd
from tests.support.queue import Queue

WORK = Path(__file__).with_name("work.py")
PARTITIONS = 10_000
MOST = 20
"""Most buffers for each claimed job."""
LOAD = """
INSERT INTO jobherd.ready (kind, queue, payload, extras, lane)
SELECT 'bench:noop', 'crm', '{}', jobherd.with_partition(NULL, name), jobherd.lane_of(name)
  FROM (SELECT 'flood' AS name FROM generate_series(1, %s)
        UNION ALL SELECT 'p' || n %% %s FROM generate_series(1, %s) AS n) AS jobs"""
LEFT = "SELECT count(*) FROM jobherd.waiting WHERE (extras).partition <> 'flood'"
ENDS = """
SELECT percentile_disc('{0.5,1}'::double precision[]) WITHIN GROUP (ORDER BY finished_at - %s)
  FROM jobherd.history WHERE (extras).partition <> 'flood'"""


def delays(dsn: str, flood: int, others: int, workers: int) -> tuple[float, float]:
    """The seconds until half of the other partitions' jobs have ended, and until all have."""
    with Herd(dsn, WORK, workers=workers), psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT jobherd.pause('crm'), jobherd.fair('crm')")
        connection.execute(LOAD, [flood, PARTITIONS, others])
        connection.execute("VACUUM ANALYZE jobherd.ready")
        ((at,),) = connection.execute("SELECT clock_timestamp() FROM jobherd.resume('crm')").fetchall()
        while connection.execute(LEFT).fetchall()[0][0] or connection.execute(
            "SELECT EXISTS (SELECT FROM jobherd.running, unnest(jobs) AS j WHERE (j.extras).partition <> 'flood')"
        ).fetchall() == [(True,)]:
            time.sleep(0.2)
        connection.execute("SELECT jobherd.pause('crm')")
        ((found,),) = connection.execute(ENDS, [at]).fetchall()
        return found[0].total_seconds(), found[1].total_seconds()


def main() -> int:
    given = arguments(__doc__, flood=200_000, others=23_000, backlog=1_000_000, workers=2, runs=3)
    report = Report(f"fair: {given.others:,} jobs of {PARTITIONS:,} partitions behind {given.flood:,} of one")
    alone, behind = [], []
    with ground() as (cluster, dsn):
        report.on(dsn)
        for _ in range(given.runs):
            with fresh(cluster) as own:
                alone.append(delays(own, 0, given.others, given.workers))
            with fresh(cluster) as own:
                behind.append(delays(own, given.flood, given.others, given.workers))
        for place, name in enumerate(("half of them", "all")):
            report.figure(
                f"{name} have ended, with the flood against without it",
                [run[place] for run in behind],
                [run[place] for run in alone],
                unit="s",
                aim=2.0,
            )
        with fresh(cluster) as own, Queue(own) as queue:
            queue.run(FILL, given.backlog - 10 * PARTITIONS, PARTITIONS)
            queue.run("SELECT jobherd.fair('crm')")
            queue.run("VACUUM ANALYZE jobherd.ready")
            child = queue.child()
            buffers(child, 16)  # The first claim reads the catalog.
            for wanted in (16, 100):
                found = [buffers(child, wanted) for _ in range(50)]
                read = [touched / jobs for jobs, touched in found]
                report.holds(
                    f"a claim of {wanted} reads no more than {MOST} buffers a job", statistics.mean(read) <= MOST,
                    f"{statistics.mean(read):.1f} on average, {max(read):.1f} at most",
                )  # fmt: skip
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
