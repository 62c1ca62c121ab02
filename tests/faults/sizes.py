"""Run jobs of every size, enqueued without a producer and so without its limits.

A claim takes at most what a worker can hold. PostgreSQL rejects a payload that is too large, and the
error names the constraint.

`python -m tests.faults.sizes`: payloads of 1 to 60 MB by INSERT and by COPY, two hundred of 10 MB at
once, a million keys, six thousand levels, payloads of 100 and 255 MB, results and errors of 100 MB,
and a payload of 60 MB whose worker is killed. No other process dies, every job finishes, including
small jobs enqueued at the same time, and the memory of worker and supervisor is limited.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.support.figures import Report
from tests.support.fleet import Stage
from tests.support.ground import arguments, ground

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.fleet import Fleet

HANDLERS = """
import os
from jobherd import Job, handler

@handler("size:counts", max_attempts=2, timeout="300s")
def counts(job: Job, value: object = "") -> int:
    return len(str(job.payload))

@handler("size:dies", max_attempts=3, max_crashes=3, timeout="300s")
def dies(job: Job, value: object = "") -> int:
    if job.attempt == 1:
        os.kill(os.getpid(), 9)
    return len(str(job.payload))

@handler("size:returns", max_attempts=1, timeout="300s")
def returns(size: int) -> str:
    return "x" * size

@handler("size:raises", max_attempts=1, timeout="300s")
def raises(size: int) -> None:
    raise ValueError("x" * size)
"""
MB = 1_000_000
LIMIT = 600.0
WORKER_MB, PARENT_MB = 900, 100
"""Most memory of a worker, which holds several copies of one payload of 60 MB, or many smaller payloads; and of the
supervisor, which holds no payload."""
STATES = "SELECT kind, coalesce(error_code, state), count(*), left(min(error), 120) FROM jobherd.history GROUP BY 1, 2 ORDER BY 1, 2"
LEFT = "SELECT (SELECT count(*) FROM jobherd.waiting) + (SELECT count(*) FROM jobherd.scheduled) + (SELECT count(*) FROM jobherd.running)"


def noise(size: int) -> str:
    """Return text of this size that compresses to no less than half."""
    return random.Random(size).randbytes(size // 2).hex()


class Puts:
    """Ways to enqueue without Jobherd's producers, which limit the size of payloads."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def insert(self, payload: str, kind: str = "size:counts", count: int = 1, table: str = "ready") -> None:
        self.stage.connection.execute(
            f"INSERT INTO jobherd.{table} (kind, payload) SELECT %s, %s::json FROM generate_series(1, %s)",
            [kind, payload, count],
        )

    def copy(self, payload: str) -> None:
        with self.stage.connection.cursor().copy("COPY jobherd.ready (id, kind, payload) FROM STDIN") as copy:
            copy.write_row((time.monotonic_ns(), "size:counts", payload))


def most_of(fleet: Fleet, pid: int) -> int:
    """The peak memory of a process in MB; 0 if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1000 for line in lines if line.startswith("VmHWM")), 0)


def main() -> int:
    given = arguments(__doc__, batch=200, large=10)
    report = Report(f"sizes: {given.batch} jobs of {given.large} MB in one queue, and everything else that is large")
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn), Stage(dsn, Path(folder), audit=False) as stage:
        report.on(dsn)
        place = stage.write("sizes.py", HANDLERS)
        fleet = stage.run_fleet(workers=1, handlers=place, claim_size=1000, claim_window="0s")
        puts = Puts(stage)

        def through(what: str, put: Callable[[], object], *, dead: int = 0) -> None:
            """Enqueue with `put`, then small jobs, and wait until all finish."""
            ready = len(fleet.said("is ready"))
            begun = time.monotonic()
            with stage.connection.transaction():
                put()
                puts.insert('{"value": "small"}', count=20)
            stage.wait(lambda: not stage.call(LEFT), f"the end of {what}", limit=LIMIT)
            worker = max(most_of(fleet, pid) for pid in fleet.workers().values())
            report.fact(
                what,
                f"{time.monotonic() - begun:.1f} s; at most {worker} MB in the worker, {most_of(fleet, fleet.pid)} MB in the parent",
            )
            report.holds(f"  {dead} processes died", len(fleet.said("is ready")) - ready == dead)
            report.holds(
                "  and no process exceeded its memory limit",
                worker < WORKER_MB and most_of(fleet, fleet.pid) < PARENT_MB,
            )

        def refused(what: str, put: Callable[[], object]) -> None:
            try:
                put()
            except psycopg.errors.CheckViolation as problem:
                report.holds(
                    f"{what} is rejected by a named constraint",
                    "payload" in str(problem.diag.constraint_name),
                    problem.diag.constraint_name,
                )
            else:
                report.holds(f"{what} is rejected by a named constraint", holds=False)

        for size in (1, 10, 60):
            document = f'{{"value": "{noise(size * MB)}"}}'
            through(f"{size} MB by INSERT", lambda document=document: puts.insert(document))
            through(f"{size} MB by COPY", lambda document=document: puts.copy(document))
        many: dict[str, Any] = {
            "alike": f'{{"value": "{"x" * given.large * MB}"}}',
            "noise": f'{{"value": "{noise(given.large * MB)}"}}',
        }
        through(
            f"{given.batch} of {given.large} MB that compress", lambda: puts.insert(many["alike"], count=given.batch)
        )
        through(
            f"{given.batch // 4} of {given.large} MB that do not",
            lambda: puts.insert(many["noise"], count=given.batch // 4),
        )
        through(
            "a hundred of 2 MB that become due",
            lambda: puts.insert(f'{{"value": "{noise(2 * MB)}"}}', count=100, table="scheduled"),
        )
        through(
            "a million keys", lambda: puts.insert('{"value": {' + ", ".join(f'"k{n}": {n}' for n in range(MB)) + "}}")
        )
        through("6,000 levels", lambda: puts.insert('{"value": ' + "[" * 6000 + "]" * 6000 + "}"))
        through("a result of 100 MB", lambda: puts.insert(f'{{"size": {100 * MB}}}', kind="size:returns"))
        through("an error of 100 MB", lambda: puts.insert(f'{{"size": {100 * MB}}}', kind="size:raises"))
        through(
            "60 MB whose worker is killed",
            lambda: puts.insert(f'{{"value": "{noise(60 * MB)}"}}', kind="size:dies"),
            dead=1,
        )
        for size in (100, 255):
            refused(f"{size} MB by INSERT", lambda size=size: puts.insert(f'{{"value": "{"x" * size * MB}"}}'))
            refused(f"{size} MB by COPY", lambda size=size: puts.copy(f'{{"value": "{"x" * size * MB}"}}'))
        for kind, became, count, error in stage.run(STATES):
            report.fact(f"{kind}: {became}", f"{count}" + (f", {error}" if error else ""))
        report.holds("the supervisor exited with 0", fleet.stop() == 0)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
