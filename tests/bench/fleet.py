"""Measure what a large fleet costs without the work of its jobs.

The figures are the supervisor's processor time at full drain, the processor time of all processes
while no jobs arrive, and each worker's memory.

The supervisor's time is the kernel's count in nanoseconds, over drains of several seconds: in a
short drain, waking all workers would be a large part. The statements of an idle fleet are its
transactions, which the server counts. Memory is a worker's unique memory (USS): it does not include
what the worker shares with its supervisor and other workers.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import psycopg

from tests.bench.jobs import ended, hold, is_empty, load, release, wait_until
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")


def processor(pid: int) -> float:
    """Processor seconds of a process with one thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def private(pid: int) -> float:
    """Megabytes of private memory of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_\w+: +(\d+) kB", text, re.MULTILINE)) * 1024 / 1e6


def main() -> int:
    given = arguments(__doc__, children=64, jobs=1_000_000, batch=100, runs=5, seconds=60.0)
    report = Report(f"fleet: {given.children} children")
    with (
        ground() as (cluster, dsn),
        Herd(dsn, WORK, "--claim-size", str(given.batch), workers=given.children) as herd,
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(cluster.dsn(), autocommit=True) as outside,
    ):
        report.on(dsn)
        name = connection.info.dbname

        def counted() -> int:
            row = outside.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [name]
            ).fetchone()
            return row[0]

        time.sleep(10)  # Until the fleet has started and the server has counted its transactions.
        family = [herd.pid, *herd.children()]
        used, before, start = sum(map(processor, family)), counted(), time.monotonic()
        time.sleep(given.seconds)
        took = time.monotonic() - start
        idle, statements = (sum(map(processor, family)) - used) / took, (counted() - before) / took
        memory = [private(pid) for pid in herd.worker_pids()]
        shares = []
        for _ in range(given.runs):
            hold(connection)
            load(connection, given.jobs // given.runs)
            used = processor(herd.pid)
            start_at = release(connection)
            wait_until(lambda: is_empty(connection), glance=0.05)
            used = processor(herd.pid) - used
            shares.append(100 * used / ended(connection, start_at)[-1])
        report.holds("the supervisor exited with 0", herd.stop() == 0)
    report.figure("parent at full drain", shares, unit="% of a core", aim=2)
    report.figure("idle fleet, all processes", [100 * idle], unit="% of a core", aim=0.5)
    report.figure("idle fleet", [statements], unit="statements/s", aim=3)
    report.figure("private memory of an idle child", memory, unit="MB", aim=12)
    report.fact("largest child, MB", f"{max(memory):.1f} of {len(memory)}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
