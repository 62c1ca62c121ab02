"""What the rollup costs a drain: the time that a keeper spends counting, against the time that the machine's cores had meanwhile.

One long drain with full history; the server counts the time of the function itself, waiting for a core included. What is counted late is
counted before the end is taken, so nothing of it is left out.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psycopg

from tests.bench.jobs import drain, wait_until
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
COUNTED = "SELECT coalesce(sum(completed), 0)::bigint FROM jobherd.rollup"
SPENT = "SELECT calls, total_time / 1000 FROM pg_stat_user_functions WHERE funcname = 'count_past'"


def main() -> int:
    given = arguments(__doc__, jobs=400_000, workers=2, runs=3, batch=100)
    report = Report(f"rollup: {given.jobs} no-op jobs, {given.workers} workers")
    cores = len(os.sched_getaffinity(0))
    shares: list[float] = []
    each: list[float] = []
    with ground() as (cluster, _), fresh(cluster) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET track_functions = 'pl'")
        with Herd(dsn, WORK, "--batch", str(given.batch), workers=given.workers) as herd:
            drain(connection, given.jobs // 10)
            done = given.jobs // 10
            wait_until(lambda: connection.execute(COUNTED).fetchone()[0] == done)
            for _ in range(given.runs):
                calls, spent = spent_by(connection)
                start = time.monotonic()
                rate = drain(connection, given.jobs)
                took = given.jobs / rate
                done += given.jobs
                wait_until(lambda now=done: connection.execute(COUNTED).fetchone()[0] == now)
                more, later = spent_by(connection)
                each.append(1e6 * (later - spent) / given.jobs)
                shares.append(100 * (later - spent) / (took * cores))
                print(
                    f"  {rate:.0f} jobs/s, {more - calls} looks, {later - spent:.2f} s of {took:.1f}, {time.monotonic() - start:.0f} s in all",
                    file=sys.stderr,
                )
            report.holds("the supervisor left well", herd.stop() == 0)
        [(counted, kept)] = connection.execute(f"SELECT ({COUNTED}), (SELECT count(*) FROM jobherd.history)").fetchall()
    report.figure("counting a job into the rollup", each, unit="us")
    report.figure("share of all cores while draining", shares, unit="%", aim=1.5)
    report.holds("the rollup holds what the history holds", counted == kept, f"{counted} of {kept}")
    return report.end()


def spent_by(connection: psycopg.Connection) -> tuple[int, float]:
    """How often was counted, and for how many seconds."""
    time.sleep(1.5)  # the server publishes its counts once a second
    return connection.execute(SPENT).fetchone() or (0, 0.0)


if __name__ == "__main__":
    sys.exit(main())
