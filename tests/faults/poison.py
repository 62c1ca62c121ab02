"""Run jobs that kill their own worker, in a separate queue, next to ordinary jobs.

Counted: how many processes each such job ends, and how much the jobs of the other queue slow down.

The same jobs are drained with and without poison, in turn. Each poisonous job may end `max_crashes`
processes, 3 by default, and no more. Then it fails, and its error contains the reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg

from tests.bench.jobs import drain, wait_until
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
BENCH = Path(__file__).parents[1] / "bench" / "work.py"


def main() -> int:
    given = arguments(__doc__, pairs=5, jobs=300_000, poison=1, workers=2)
    report = Report(
        f"poison: {given.poison} at a time that end their process, beside {given.jobs:,} jobs of another queue"
    )
    with (
        ground() as (_, dsn),
        Herd(dsn, WORK, "--handlers", str(BENCH), "--queues", "default,deadly", workers=given.workers) as herd,
    ):
        report.on(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            drain(connection, given.jobs)
            beside, alone = [], []
            for _ in range(given.pairs):
                alone.append(drain(connection, given.jobs))
                for _ in range(given.poison):
                    connection.execute("SELECT jobherd.enqueue('fault:deadly', '{}', '{\"queue\": \"deadly\"}')")
                beside.append(drain(connection, given.jobs))
                wait_until(
                    lambda: (
                        not connection.execute(
                            "SELECT 1 FROM jobherd.jobs WHERE kind = 'fault:deadly' AND state <> 'failed'"
                        ).fetchone()
                    )
                )
            found = connection.execute(
                "SELECT crashes, error_code, min(error), count(*) FROM jobherd.history WHERE kind = 'fault:deadly' AND state = 'failed' GROUP BY 1, 2"
            ).fetchall()
            for row in found:
                report.fact("ended so", row)
        report.figure(
            "drain beside poison, against the same without", beside, alone, unit="jobs/s", aim=0.95, at_least=True
        )
        report.holds(
            "each poison job has ended three processes, and failed",
            sum(row[3] for row in found if row[0] == 3) == given.pairs * given.poison,
            found,
        )
        report.holds("the supervisor exited with 0", herd.stop() == 0)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
