"""Measure enqueue to start on an idle system, against the floor measured in the same run.

The time is from just before the enqueue call to the handler's first statement. One job of the product
and one of the floor run in turn, 20 ms apart, so that both see the same machine. The poll is at its
maximum of 5 minutes, so a job starts only because a worker was woken for it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psycopg

from tests.bench.floor import Floor
from tests.support.figures import Report, at
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
GAP = 0.02
STRETCHES = {0.5: 10, 0.99: 5}
"""Number of parts of the run, by percentile.

The percentiles are compared part by part, so that their ratio has an interval.
"""


def main() -> int:
    given = arguments(__doc__, jobs=1500, workers=2, warm_up=30)
    report = Report("latency: enqueue to start on an idle system")
    with ground() as (_, dsn), Floor(dsn) as floor, Herd(dsn, WORK, "--poll", "5m", workers=given.workers) as herd:
        report.on(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            ours: list[float] = []
            bare: list[float] = []
            sent: dict[int, float] = {}

            def product(number: int) -> None:
                before = time.time()
                row = connection.execute(
                    "SELECT jobherd.enqueue('bench:stamp', %s)", (f'{{"n": {number}}}',), prepare=True
                ).fetchone()
                assert row is not None
                sent[row[0]] = before

            calls: list[float] = []
            bare_calls: list[float] = []
            for number in range(-given.warm_up, 0):
                product(number)
                time.sleep(GAP)
                floor.start(number)
            warm = set(sent)
            for number in range(given.jobs):
                due = time.monotonic() + GAP
                product(number)
                calls.append((time.monotonic() - due + GAP) * 1000)
                time.sleep(max(0.0, due - time.monotonic()))
                due = time.monotonic() + GAP
                bare.append(floor.start(number))
                bare_calls.append(floor.call)
                time.sleep(max(0.0, due - time.monotonic()))
            herd.stop()  # After the drain every outcome is written.
            stamps = dict(
                connection.execute(
                    "SELECT id, result::text::double precision FROM jobherd.history WHERE state = 'completed'"
                ).fetchall()
            )
            ours = [(stamps[job] - before) * 1000 for job, before in sent.items() if job in stamps and job not in warm]
    report.holds(f"all {given.jobs} jobs started and completed", len(ours) == given.jobs, len(ours))
    report.holds("no job waited for a poll", max(ours) < 5000, f"at most {max(ours):.1f} ms")
    report.spread("product", ours)
    report.spread("floor", bare)
    report.spread("  the product's enqueue call alone", calls)
    report.spread("  the floor's enqueue call alone", bare_calls)
    for (share, count), aim in zip(STRETCHES.items(), (1.1, 1.3), strict=True):
        # In the order of the calls, so that each part of the product and the same part of the floor
        # saw the same machine.
        length = max(1, given.jobs // count)
        stretches = [slice(length * number, length * (number + 1)) for number in range(min(count, given.jobs))]
        found, floors = ([at(values[each], share) for each in stretches] for values in (ours, bare))
        report.figure(f"start latency p{share * 100:g}", found, floors, unit="ms", aim=aim)
    report.fact("ratio p95", f"{at(ours, 0.95) / at(bare, 0.95):.3f}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
