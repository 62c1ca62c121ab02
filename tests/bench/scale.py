"""Measure how cost grows with workers (1 to 256 simulated claimers), and with queues that hold jobs.

The figures are in docs/explanation/scaling.md.

Claimers only claim and settle, so from two of them on the server is as busy as it can be. What more of
them lose, they lose to each other. For the queues the benchmark counts a claim's buffers, which do not
depend on the machine.
"""

from __future__ import annotations

import sys
from typing import Final

import psycopg

from tests.bench.claim import explain
from tests.bench.claimers import Claimers
from tests.bench.jobs import load
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.queue import Queue

MANY: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCHES: Final = (1, 10, 100)
QUEUES: Final = (1, 10, 100, 1000)
WAITING: Final = "SELECT count(*) FROM (SELECT FROM jobherd.ready LIMIT %s) AS few"
SPREAD: Final = "INSERT INTO jobherd.ready (kind, queue) SELECT 'bench:noop', 'q' || lpad((n %% %(queues)s)::text, 4, '0') FROM generate_series(1, 10 * %(queues)s) AS n"


def main() -> int:
    given = arguments(__doc__, most=256, seconds=1.5, rounds=3)
    report = Report(f"scale: 1 to {given.most} claimers, 1 to {QUEUES[-1]:,} queues")
    many = [number for number in MANY if number <= given.most]
    with ground() as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        with Claimers(dsn, given.most) as claimers:
            load(connection, 200_000)
            claimers.run(given.most, batch=10, seconds=1.0)  # Warm up: all plans are made and all pages are cached.
            for batch in BATCHES:
                found = {number: [] for number in many}
                for _ in range(given.rounds):
                    for number in many:
                        lack = (100_000 if batch == 1 else 300_000) - connection.execute(WAITING, [300_000]).fetchone()[
                            0
                        ]
                        if lack > 0:
                            load(connection, lack)
                        found[number].append(claimers.run(number, batch=batch, seconds=given.seconds))
                alone = [run.each for run in found[1]]
                for number in many:
                    runs = found[number]
                    if number in {1, 2, 16, 64, given.most}:
                        report.figure(
                            f"claims of {batch}, {number} claimers", [run.rate for run in runs], unit="jobs/s"
                        )
                        report.figure(
                            f"claims of {batch}, {number} claimers, the server",
                            [run.each for run in runs],
                            alone,
                            unit="us a job",
                        )
                report.curve(
                    "jobs/s by claimers", f"claims of {batch}", [(number, found[number][-1].rate) for number in many]
                )
                report.curve(
                    "the server's us a job by claimers",
                    f"claims of {batch}",
                    [(number, found[number][-1].each) for number in many],
                )
                report.fact(
                    f"claims of {batch}, ms an exchange",
                    ", ".join(f"{number}: {found[number][-1].p50:.1f}" for number in many),
                )
        with Queue(dsn) as queue:
            plain = 0.0
            for queues in QUEUES:
                queue.run("TRUNCATE jobherd.ready")
                queue.connection.execute(SPREAD, {"queues": queues})
                buffers = float(explain(queue, 10)[1])
                plain = plain or buffers
                report.figure(f"buffers of a claim of 10, {queues:,} queues hold jobs", [buffers], [plain])
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
