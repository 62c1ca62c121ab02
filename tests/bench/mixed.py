"""Measure realistic work, against the plain drain of the same run.

All settings are the defaults. First drains of the same number of jobs run in turn: plain jobs in one
queue; over 16 queues with 3 priorities each; with payloads of 10 kB; by two supervisors with half of
the workers each; and with 4 producers that commit one job at a time.

Then short jobs are enqueued one by one: alone, and in one queue with long jobs of 1 ms to 2 s. The
figure is the time to their start. The long jobs are limited to all workers but one: without a free
worker each short job would have to wait for one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import sys
import time
from pathlib import Path

import psycopg

from tests.bench import jobs
from tests.support.figures import Report, at
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
PLAIN, QUEUES, LARGE, TWO, BESIDE = (
    "plain",
    "16 queues of 3 priorities",
    "payloads of 10 kB",
    "two supervisors",
    "next to 4 producers",
)
PRODUCERS = 4
GAP = 0.02
"""Seconds between two short jobs."""
LONGEST = 2.0
SPREAD = """
INSERT INTO jobherd.ready (kind, payload, queue, priority)
SELECT 'bench:noop', {payload}, CASE n %% 16 WHEN 0 THEN 'default' ELSE 'q' || n %% 16 END, n %% 3 FROM generate_series(1, %s) AS n
"""
LATER = """SELECT jobherd.enqueue('bench:noop', options => '{"delay": "1 day"}')"""
HEAVY = """
INSERT INTO jobherd.ready (kind, payload)
SELECT 'bench:noop', json_build_object('n', n, 'ref', repeat('0123456789', 1000)) FROM generate_series(1, %s) AS n
"""


def produce(dsn: str) -> None:
    """Commit one job after another, due tomorrow, until the process is killed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            connection.execute(LATER, prepare=True)


def drain(connection: psycopg.Connection, dsn: str, what: str, count: int) -> float:
    """Load `count` jobs into paused queues, release them, and return the jobs per second until the last one's end."""
    held = ["default", *(f"q{number}" for number in range(1, 16))]
    connection.execute("SELECT jobherd.pause(name, 'loading') FROM unnest(%s::text[]) AS name", [held])
    if what is QUEUES:
        connection.execute(SPREAD.format(payload=jobs.PAYLOAD), [count])
    elif what is LARGE:
        connection.execute(HEAVY, [count])
    else:
        jobs.load(connection, count)
    with contextlib.ExitStack() as stack:
        if what is BESIDE:
            for _ in range(PRODUCERS):
                process = multiprocessing.Process(target=produce, args=(dsn,), daemon=True)
                process.start()
                stack.callback(process.join)
                stack.callback(process.terminate)
            (before,) = connection.execute("SELECT count(*) FROM jobherd.scheduled").fetchone()
            jobs.wait_until(
                lambda: connection.execute("SELECT count(*) > %s FROM jobherd.scheduled", [before + 100]).fetchone()[0]
            )
        (start,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())::double precision").fetchone()
        connection.execute("SELECT jobherd.resume(name) FROM unnest(%s::text[]) AS name", [held])
        jobs.wait_until(lambda: jobs.is_empty(connection))
    times = jobs.ended(connection, start)
    assert len(times) == count, f"{len(times)} of {count} jobs were completed"
    return count / times[-1]


def starts(connection: psycopg.Connection, count: int) -> list[float]:
    """Enqueue `count` short jobs one by one, and return the milliseconds until each has started."""
    sent: dict[int, float] = {}
    for number in range(count):
        due, before = time.monotonic() + GAP, time.time()
        (job,) = connection.execute(
            "SELECT jobherd.enqueue('bench:stamp', %s)", (f'{{"n": {number}}}',), prepare=True
        ).fetchone()
        sent[job] = before
        time.sleep(max(0.0, due - time.monotonic()))

    def stamps() -> dict[int, float]:
        return dict(
            connection.execute(
                "SELECT id, result::text::double precision FROM jobherd.history WHERE kind = 'bench:stamp' AND id = ANY (%s)",
                [list(sent)],
            ).fetchall()
        )

    jobs.wait_until(lambda: len(stamps()) == count)
    return [(at_ - sent[job]) * 1000 for job, at_ in stamps().items()]


def drains(report: Report, cluster: object, count: int, workers: int, runs: int) -> None:
    """Measure every kind of drain against the plain one."""
    found: dict[str, list[float]] = {what: [] for what in (PLAIN, QUEUES, LARGE, TWO, BESIDE)}
    for number in range(runs):
        for what in list(found)[:: -1 if number % 2 else 1]:
            herds = 2 if what is TWO else 1
            with (
                fresh(cluster) as own,
                contextlib.ExitStack() as stack,
                psycopg.connect(own, autocommit=True) as connection,
            ):
                for _ in range(herds):
                    stack.enter_context(Herd(own, WORK, workers=workers // herds))
                found[what].append(drain(connection, own, what, count))
    for what, rates in found.items():
        if what is not PLAIN:
            report.figure(f"drain of {count:,}, {what}, against one plain queue", rates, found[PLAIN], unit="jobs/s")


def main() -> int:
    given = arguments(__doc__, jobs=50_000, workers=2, runs=5, starts=300)
    report = Report("mixed: work as it is in practice")
    dice = random.Random(given.seed)
    with ground() as (cluster, dsn):
        report.on(dsn)
        drains(report, cluster, given.jobs, given.workers, given.runs)
        alone: list[float] = []
        beside: list[float] = []
        with Herd(dsn, WORK, workers=4), psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT jobherd.set_limit(kind => 'bench:hold', max_running => 3)")
            starts(connection, 30)
            for _ in range(given.runs):
                alone.append(at(starts(connection, given.starts), 0.99))
                seconds = [dice.choice((0.001, 0.01, 0.1, LONGEST)) for _ in range(given.starts)]
                with connection.cursor().copy("COPY jobherd.ready (kind, payload) FROM STDIN") as copy:
                    for one in seconds:
                        copy.write_row(("bench:hold", f'{{"seconds": {one}}}'))
                beside.append(at(starts(connection, given.starts), 0.99))
                connection.execute("DELETE FROM jobherd.ready WHERE kind = 'bench:hold'")
                connection.execute("DELETE FROM jobherd.parked WHERE kind = 'bench:hold'")
                jobs.wait_until(lambda: jobs.is_empty(connection))
    report.figure("start p99 of short jobs next to long ones, against alone", beside, alone, unit="ms", aim=2.0)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
