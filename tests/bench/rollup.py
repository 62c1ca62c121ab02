"""Measure what the rollup costs a drain.

The figure is the server's processor time to count jobs, against all processor time to drain them.

Rates are not compared, because a hundredth of the work is lost in their noise. The maintenance process
cannot count meanwhile, and a session of the benchmark counts the drained jobs in the same way: one
update that finds all jobs, and one that finds none, because a fleet at full drain reads most rows
twice. The time of the drain includes supervisor, child processes and server.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg

from jobherd import sql
from jobherd.workers.maintenance.rollup import LAG
from tests.bench.cpu import processor_seconds
from tests.bench.fleet import processor
from tests.bench.jobs import drain
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
COUNTED = "SELECT coalesce(sum(completed), 0)::bigint FROM jobherd.rollup"


def main() -> int:
    given = arguments(__doc__, jobs=300_000, workers=2, runs=5, batch=100)
    report = Report(f"rollup: {given.jobs} no-op jobs, {given.workers} workers")
    counting: list[float] = []
    draining: list[float] = []
    with ground() as (cluster, _), fresh(cluster) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        connection.execute(
            "SELECT pg_advisory_lock(hashtext('jobherd.count_past'))"
        )  # With this lock, maintenance processes do not count.
        connection.execute(sql.load("session/force_index_plans"), {"local": False})
        backend = connection.info.backend_pid

        def look() -> float:
            before = processor(backend)
            connection.execute(sql.load("maintenance/update_rollup"), {"span": 300.0, "lag": LAG}).fetchone()
            return processor(backend) - before

        with Herd(dsn, WORK, "--claim-size", str(given.batch), workers=given.workers) as herd:
            drain(connection, given.jobs // 10)
            look()
            for _ in range(given.runs):
                before = processor_seconds([herd.pid, cluster.pid])
                drain(connection, given.jobs)
                draining.append(1e6 * (processor_seconds([herd.pid, cluster.pid]) - before) / given.jobs)
                counting.append(1e6 * (look() + look()) / given.jobs)
            report.holds("the supervisor exited with 0", herd.stop() == 0)
        while connection.execute(sql.load("maintenance/update_rollup"), {"span": 86400.0, "lag": LAG}).fetchone()[1]:
            continue
        [(counted, kept)] = connection.execute(f"SELECT ({COUNTED}), (SELECT count(*) FROM jobherd.history)").fetchall()
    report.figure("counting a job, against draining it, processor time", counting, draining, unit="us", aim=0.015)
    report.holds("the rollup equals the history", counted == kept, f"{counted} of {kept}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
