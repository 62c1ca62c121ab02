"""Measure how fast no-op jobs are drained, durable, against the ceiling of this server in the same run.

The runs take turns: one drain of the product with full history for each claim size, one that keeps
only failures, and one of the ceiling (`ceiling.py`), which claims in its own best batches and keeps
nothing. The jobs are loaded into a paused queue, directly before and without ANALYZE. The time is from
its release to the last job's end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg

from tests.bench.ceiling import Ceiling
from tests.bench.jobs import PAYLOAD, drain
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
BATCHES = (100, 500)


def main() -> int:
    given = arguments(__doc__, jobs=100_000, workers=2, runs=5)
    report = Report(f"drain: {given.jobs} no-op jobs, {given.workers} workers")
    ours: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    forgotten: list[float] = []
    ceiling: list[float] = []
    with ground() as (cluster, dsn), Ceiling(dsn, processes=given.workers) as plain:
        report.on(dsn)
        for _ in range(given.runs):
            ceiling.append(plain.drain(given.jobs, PAYLOAD))
            for batch in BATCHES:
                with (
                    fresh(cluster) as own,
                    Herd(own, WORK, "--claim-size", str(batch), workers=given.workers),
                    psycopg.connect(own, autocommit=True) as connection,
                ):
                    ours[batch].append(drain(connection, given.jobs))
                    if batch == max(BATCHES):
                        forgotten.append(drain(connection, given.jobs, kind="bench:forgotten", kept=False))
        single = []
        with (
            fresh(cluster) as own,
            Herd(own, WORK, "--claim-size", "1", workers=given.workers),
            psycopg.connect(own, autocommit=True) as connection,
        ):
            single = [drain(connection, given.jobs // 20) for _ in range(given.runs)]
    for batch in BATCHES:
        report.figure(
            f"drain in batches of {batch}, full history, against the ceiling", ours[batch], ceiling, unit="jobs/s"
        )
    report.figure(
        f"drain in batches of {max(BATCHES)}, failures kept, against the ceiling",
        forgotten,
        ceiling,
        unit="jobs/s",
        aim=0.5,
        at_least=True,
    )
    report.figure("drain in batches of 1", single, unit="jobs/s")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
