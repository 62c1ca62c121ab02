"""Measure when an outcome becomes visible.

The time is from the end of a job, in the middle of a claim, until another session sees it completed,
while a job behind it runs long.

Three situations can delay it: one long job; several short jobs and then a long one; and one long job
while more processes want to run than there are processors. There the long job may only wait for a
processor, and delays the outcomes before it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.support.figures import Report, at
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = Path(__file__).with_name("work.py")
LONG = 0.3
"""Seconds for which the long job runs."""
SHORT = [0.005] * 4
CROWD = 20
"""Processes that only use a processor, at the lowest priority."""
LEADING = 20
"""Jobs of 0 s in front; the last one is measured.

A worker's first claim after it was idle is small.
"""
LOOK = 0.0005
TEACH = 200
"""Jobs of 0 s that run first.

A worker claims several jobs only of a kind whose jobs have been short.
"""


@contextmanager
def crowd(size: int) -> Iterator[None]:
    """Run `size` processes that spin until the end of the block."""
    with ExitStack() as stack:
        for _ in range(size):
            spinner = stack.enter_context(
                subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", "while True: pass"])
            )
            stack.callback(spinner.kill)
        yield


def lateness(dsn: str, between: list[float]) -> float:
    """Milliseconds until the end of a job is visible, while the jobs of `between` and a long one run behind it.

    Each call starts a new supervisor: workers that have run the long job would claim the next one of this
    kind alone.
    """
    with Herd(dsn, WORK, "--poll", "5m", workers=1), psycopg.connect(dsn, autocommit=True) as connection:
        with connection.transaction():
            taught = [enqueue(connection, 0.0) for _ in range(TEACH)]
        for job in taught:
            seen(connection, job)
        with connection.transaction():
            jobs = [enqueue(connection, seconds) for seconds in [0.0] * LEADING + [*between, LONG]]
        late = seen(connection, jobs[LEADING - 1])
        seen(connection, jobs[-1])
    return late


def seen(connection: psycopg.Connection, job: int) -> float:
    """Wait until a job is seen as completed; return the milliseconds since its end."""
    look = "SELECT 1000 * extract(epoch FROM clock_timestamp() - finished_at)::double precision FROM jobherd.history WHERE id = %s"
    while (row := connection.execute(look, [job]).fetchone()) is None:
        time.sleep(LOOK)
    return row[0]


def enqueue(connection: psycopg.Connection, seconds: float) -> int:
    return connection.execute(
        "SELECT jobherd.enqueue('bench:hold', %s)", [json.dumps({"seconds": seconds})]
    ).fetchone()[0]


def main() -> int:
    given = arguments(__doc__, times=25)
    report = Report("visible: when an outcome is to be seen, while a job of its claim runs long")
    with ground() as (_, dsn):
        report.on(dsn)
        for name, between, size in (
            ("behind a long job", [], 0),
            ("behind 20 ms of others and it", SHORT, 0),
            ("behind it, in a crowd", [], CROWD),
        ):
            with crowd(size):
                late = [lateness(dsn, between) for _ in range(given.times)]
            report.spread(f"seen after, {name}", late)
            report.figure(f"seen after, {name}", late, unit="ms")
            report.figure("the same, p90", [at(late, 0.9)], unit="ms", aim=50)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
