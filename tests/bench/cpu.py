"""Measure CPU-bound work on all cores.

Jobs of 20 ms of pure Python run on two workers, against two plain processes with the same work.

Runs are in pairs, and the order within a pair alternates. Every run uses new processes, and no
supervisor runs next to the plain ones. The figure is the median of the pairs' ratios of wall time,
with its interval. The work is a fixed number of rounds, the same function in both. The product's wall
time is from before the enqueue call to the end of the last job.

Wall time is valid only on a machine without other load. So the benchmark also measures the processor
time of supervisor, child processes and server together. The two differ: waiting for a commit costs
only wall time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from tests.bench.work import spin
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import ROOT, Herd, descendants

WORK = Path(__file__).with_name("work.py")


def calibrate(seconds: float) -> int:
    """Rounds of work that take `seconds` here, by the fastest of 20 tries, which other processes disturb least."""
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        spin(20)
        best = min(best, time.perf_counter() - start)
    return round(20 * seconds / best)


def plain(processes: int, jobs: int, rounds: int) -> tuple[float, float]:
    """Wall and processor seconds of plain processes that share the jobs.

    From the start signal, when all are ready, to the last end.
    """
    started = [
        subprocess.Popen(
            [sys.executable, str(WORK), str(jobs // processes + (number < jobs % processes)), str(rounds)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()  # The process is ready.
    start = time.monotonic()
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    used = 0.0
    for process in started:
        assert process.stdout is not None
        used += float(process.stdout.readline())  # The process has finished.
    wall = time.monotonic() - start
    for process in started:
        process.stdout.close()
        process.wait()
    return wall, used


def product(
    connection: psycopg.Connection, jobs: int, rounds: int, expected: float, roots: list[int]
) -> tuple[float, float]:
    """Wall and processor seconds of the same work as jobs.

    The wall time uses the database's clock; the processor time is that of `roots` and their descendants.
    """
    before = processor_seconds(roots)
    (start,) = connection.execute("SELECT clock_timestamp()").fetchone()
    connection.execute(
        "INSERT INTO jobherd.ready (kind, payload) SELECT 'bench:burn', json_build_object('rounds', %s::int) FROM generate_series(1, %s)",
        [rounds, jobs],
    )
    time.sleep(expected * 0.95)  # This process uses no processor time next to the jobs.
    while True:
        done, last, wrong = connection.execute(
            "SELECT count(*), max(finished_at), count(*) FILTER (WHERE state <> 'completed') FROM jobherd.history WHERE created_at >= %s",
            [start],
        ).fetchone()
        assert not wrong, "jobs failed"
        if done == jobs:
            return (last - start).total_seconds(), processor_seconds(roots) - before
        time.sleep(0.1)


def processor_seconds(roots: list[int]) -> float:
    """Processor seconds of these processes and their live and dead descendants so far."""
    ticks = 0
    for pid in {*roots, *(each for root in roots for each in descendants(root))}:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> int:
    given = arguments(__doc__, pairs=10, seconds=8.5, workers=2, job=0.02, batch=500)
    rounds = calibrate(given.job)
    jobs = int(given.seconds * given.workers / given.job)
    report = Report("cpu: jobs of pure Python against plain processes")
    with ground() as (cluster, dsn):
        report.on(dsn)
        pairs: list[tuple[float, float]] = []
        processor: list[tuple[float, float]] = []

        def jobs_run() -> tuple[float, float]:
            with (
                fresh(cluster) as own,
                Herd(own, WORK, "--poll", "5m", "--claim-size", str(given.batch), workers=given.workers) as herd,
                psycopg.connect(own, autocommit=True) as connection,
            ):
                product(connection, 20, rounds, 0.2, [])  # Warm up.
                return product(connection, jobs, rounds, given.seconds, [herd.pid, cluster.pid])

        for number in range(given.pairs):
            if number % 2:
                bare, bare_used = plain(given.workers, jobs, rounds)
                ours, used = jobs_run()
            else:
                ours, used = jobs_run()
                bare, bare_used = plain(given.workers, jobs, rounds)
            pairs.append((ours, bare))
            processor.append((used, bare_used))
            print(
                f"  pair {number + 1}: {ours:.3f} s and {bare:.3f} s, ratio {ours / bare:.4f}; processor {used:.2f} s and {bare_used:.2f} s,"
                f" ratio {used / bare_used:.4f}",
                file=sys.stderr,
                flush=True,
            )
    report.fact(
        "jobs a run",
        f"{jobs} of {given.job * 1000:g} ms ({rounds} rounds), {given.workers} workers, batches of at most {given.batch}",
    )
    report.fact("wall, plain processes, s", ", ".join(f"{bare:.2f}" for _, bare in pairs))
    report.fact("wall, jobs, s", ", ".join(f"{ours:.2f}" for ours, _ in pairs))
    report.figure(
        "jobs of 20 ms, wall time", [ours for ours, _ in pairs], [bare for _, bare in pairs], unit="s", aim=1.02
    )
    report.figure(
        "jobs of 20 ms, processor time",
        [used for used, _ in processor],
        [bare for _, bare in processor],
        unit="s",
        aim=1.05,
    )
    report.holds("every run took at least 8 s", all(min(pair) >= 8 for pair in pairs) or given.seconds < 8)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
