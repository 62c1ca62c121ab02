"""Measure what a group costs: how fast its jobs are drained, and when its callback starts.

python -m tests.bench.join [--jobs 100000] [--workers 2] [--runs 5]

In turn one drain of plain no-op jobs and one of a group of them with a callback, both loaded into a
paused queue, durable, with full history. The rate of the group is compared with that of the plain
jobs. The delay is from the end of the last member to the time at which the callback became ready, by
the database's clock.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import psycopg

from tests.bench.jobs import drain, hold, release, wait_until
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
LEAST = 0.65
"""Lowest share of the rate of a drain without a group."""
MOST = 0.1
"""Most seconds from the last end to the callback."""
ENDED = "SELECT ended_at IS NOT NULL FROM jobherd.flows WHERE id = %s"
CALLED = "SELECT state = 'completed' FROM jobherd.jobs WHERE kind = 'bench:hold'"


def join(connection: psycopg.Connection, jobs: int) -> tuple[float, float]:
    """Drain a group of `jobs` jobs. Return its jobs per second, and the seconds until the callback became ready."""
    hold(connection)
    members = [
        orjson.dumps(
            {"n": n, "user_id": 1234567, "action": "send_welcome_email", "locale": "en_GB", "ref": "ab12cd34ef56"}
        ).decode()
        for n in range(jobs)
    ]
    nodes = [
        {"node": "member", "kind": "bench:noop", "payloads": members},
        {"node": "callback", "kind": "bench:hold", "payload": {"seconds": 0}, "on": "success"},
    ]
    (flow,) = connection.execute(
        "SELECT jobherd.start_flow('join', %s::jsonb)", [orjson.dumps(nodes).decode()]
    ).fetchone()
    start = release(connection)
    wait_until(lambda: connection.execute(ENDED, [flow]).fetchone()[0])
    wait_until(lambda: connection.execute(CALLED).fetchone()[0])
    ended, callbacks, delay = connection.execute(
        "SELECT extract(epoch FROM m.last)::double precision, c.jobs, extract(epoch FROM c.ready_at - m.last)::double precision"
        "  FROM (SELECT max(h.finished_at) AS last FROM jobherd.history h WHERE (h.extras).flow = %s AND (h.extras).flow > 0) AS m,"
        "       (SELECT count(*) AS jobs, min(h.run_at) AS ready_at FROM jobherd.history h WHERE h.kind = 'bench:hold') AS c",
        [flow],
    ).fetchone()
    assert callbacks == 1, f"{callbacks} callbacks"
    return jobs / (ended - start), delay


def main() -> int:
    given = arguments(__doc__, jobs=100_000, workers=2, runs=5)
    report = Report(f"join: a group of {given.jobs} no-op jobs, {given.workers} workers")
    plain: list[float] = []
    joined: list[float] = []
    delays: list[float] = []
    with ground() as (cluster, dsn):
        report.on(dsn)
        for _ in range(given.runs):
            with (
                fresh(cluster) as own,
                Herd(own, WORK, "--claim-size", "100", workers=given.workers),
                psycopg.connect(own, autocommit=True) as connection,
            ):
                plain.append(drain(connection, given.jobs))
            with (
                fresh(cluster) as own,
                Herd(own, WORK, "--claim-size", "100", workers=given.workers),
                psycopg.connect(own, autocommit=True) as connection,
            ):
                rate, delay = join(connection, given.jobs)
                joined.append(rate)
                delays.append(delay)
    report.figure("group, against the same jobs without one", joined, plain, unit="jobs/s", aim=LEAST, at_least=True)
    report.figure("callback after the last end", delays, unit="s", aim=MOST)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
