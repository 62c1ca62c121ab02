"""Measure a backlog of a million jobs.

What does a claim read, how fast are the first jobs drained, and are the last ones as fast?

As many jobs again are scheduled for tomorrow. Three figures: the buffers of a claim, against those
at 100 jobs; the rate of the first 20,000 (and of the next, five times), against a queue that has only
20,000, in turn; and then, of a million in one drain, the rate of the last tenth against the first,
five times. Only the server itself runs ANALYZE and VACUUM.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psycopg

from tests.bench.claim import explain
from tests.bench.jobs import drain, ended, hold, is_claimed, is_empty, load, load_later, place, release, wait_until
from tests.support.figures import Report, at
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd
from tests.support.queue import Queue

WORK = Path(__file__).with_name("work.py")
SMALL = 100
CLAIM = 100


def main() -> int:
    given = arguments(__doc__, jobs=1_000_000, some=20_000, workers=2, batch=100, pairs=5, runs=5)
    report = Report(f"backlog: {given.jobs:,} waiting and {given.jobs:,} scheduled")
    with ground() as (cluster, dsn), contextlib.ExitStack() as stack:
        report.on(dsn)

        def queue(waiting: int) -> tuple[str, psycopg.Connection]:
            own = stack.enter_context(fresh(cluster))
            connection = stack.enter_context(psycopg.connect(own, autocommit=True))
            hold(connection)
            load(connection, waiting)
            return own, connection

        buffers = {}
        small, little = queue(SMALL)
        load_later(little, SMALL)
        large, many = queue(given.jobs)
        load_later(many, given.jobs)
        for size, own in ((SMALL, small), (given.jobs, large)):
            with Queue(own) as asked:
                asked.run("SELECT jobherd.resume('default')")
                buffers[size] = [float(explain(asked, CLAIM)[1]) for _ in range(given.pairs)]
                asked.run("SELECT jobherd.pause('default')")
        report.figure(
            f"buffers of a claim of {CLAIM}, against {SMALL} waiting", buffers[given.jobs], buffers[SMALL], aim=1.15
        )

        herds = [
            stack.enter_context(Herd(own, WORK, "--claim-size", str(given.batch), workers=given.workers))
            for own in (large, small)
        ]
        release(little)
        wait_until(lambda: is_empty(little))
        first: list[float] = []
        alone: list[float] = []
        for _ in range(given.pairs):
            alone.append(drain(little, given.some))
            beyond = place(many, given.some)
            start = release(many)
            wait_until(lambda beyond=beyond: is_claimed(many, beyond), glance=0.02)
            hold(many)
            first.append(given.some / ended(many, start)[given.some - 1])
        report.figure(
            f"first {given.some:,}, against a queue of {given.some:,}",
            first,
            alone,
            unit="jobs/s",
            aim=0.95,
            at_least=True,
        )

        tenths: list[list[float]] = []
        for run in range(given.runs):
            # In the first run the rest of the pairs' backlog is still there.
            load(many, given.some * given.pairs if run == 0 else given.jobs)
            start = release(many)
            wait_until(lambda: is_empty(many), glance=0.5)
            tenths.append(by_tenth(ended(many, start)))
            hold(many)
            report.fact("each tenth, jobs/s", ", ".join(f"{rate:,.0f}" for rate in tenths[-1]))
        first, last = [rates[0] for rates in tenths], [rates[-1] for rates in tenths]
        report.figure(
            f"last {given.jobs // 10:,}, against the first {given.jobs // 10:,}",
            last,
            first,
            unit="jobs/s",
            aim=0.8,
            at_least=True,
        )
        middle = [at([rates[part] for rates in tenths], 0.5) for part in range(10)]
        report.curve(
            "jobs/s by share of the backlog that is gone",
            "drained",
            [(10.0 * part + 5, rate) for part, rate in enumerate(middle)],
        )
        wanted = given.jobs * given.runs + given.some * given.pairs
        done = many.execute("SELECT count(*) FROM jobherd.history WHERE state = 'completed'").fetchone()[0]
        report.holds("every job was completed", done == wanted, done)
        report.holds("both supervisors exited with 0", [herd.stop() for herd in herds] == [0, 0])
    return report.end()


def by_tenth(times: list[float]) -> list[float]:
    """Jobs per second in each tenth of a drain, given the seconds at which its jobs ended."""
    tenth = len(times) // 10
    marks = [0.0, *(times[tenth * part - 1] for part in range(1, 11))]
    return [tenth / (after - before) for before, after in zip(marks, marks[1:], strict=False)]


if __name__ == "__main__":
    sys.exit(main())
