"""Kill workers and maintenance processes under jobs that wait for child jobs: each child job exists once.

python -m tests.faults.children [--jobs 1000] [--kills 300]

Each job spawns one child job and then four, and gathers their results. A kill is SIGKILL to a random
child process of a supervisor; the kills are spread over the steps of the jobs. At the end each job
has returned the results of its child jobs, no child job was enqueued or has ended twice, and no job
waits or runs any more.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import psycopg

from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("step_work.py")
HERDS = 2
CHILDREN = 5
STEPS = 4
DEADLINE = 900.0
QUICK = ("--db-retry-initial", "0.2s")
LEFT = "SELECT count(*) FROM jobherd.jobs WHERE state NOT IN ('completed', 'failed', 'cancelled', 'expired')"
DONE = "SELECT count(*) FROM jobherd.steps"
END = """
SELECT (SELECT count(*) FROM jobherd.history WHERE kind = 'fault:parent' AND state = 'completed' AND result::text = '[0,10,20,30,40]'),
       (SELECT count(*) FROM jobherd.history WHERE kind = 'fault:child' AND state = 'completed'),
       (SELECT count(DISTINCT id) FROM jobherd.history WHERE kind = 'fault:child'),
       (SELECT count(*) FROM (SELECT job FROM jobherd.steps GROUP BY job HAVING count(*) = 4) AS whole),
       (SELECT count(*) FROM jobherd.flows WHERE state = 'completed' AND pending = 0 AND failed = 0),
       (SELECT count(*) FROM jobherd.waits) + (SELECT count(*) FROM jobherd.ends) + (SELECT count(*) FROM jobherd.running),
       (SELECT count(*) FROM jobherd.steps s JOIN jobherd.history h ON h.id = s.job WHERE s.token < h.token)"""


def run(
    dsn: str, dice: random.Random, *, jobs: int, kills: int, workers: int
) -> tuple[int, list[int], tuple[int, ...]]:
    """Run the jobs; return the number of kills, the exit codes of the supervisors, and the counts of END."""
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        herds = [
            stack.enter_context(Herd(dsn, WORK, "--queues", "default", *QUICK, workers=workers)) for _ in range(HERDS)
        ]
        connection.execute("SELECT jobherd.enqueue('fault:parent') FROM generate_series(1, %s)", [jobs])
        killed, until = 0, time.monotonic() + DEADLINE
        while time.monotonic() < until and connection.execute(LEFT).fetchone()[0]:
            time.sleep(dice.uniform(0.02, 0.2))
            # At a fixed pace, a slow machine would kill each process while it starts.
            is_due = killed * STEPS * jobs < kills * connection.execute(DONE).fetchone()[0]
            pids = dice.choice(herds).children() if is_due else []
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(dice.choice(pids), signal.SIGKILL)
                killed += 1
        codes = [herd.stop() for herd in herds]
        return killed, codes, connection.execute(END).fetchone()


def main() -> int:
    given = arguments(__doc__, jobs=1000, kills=300, workers=2)
    report = Report(f"children: {given.jobs:,} jobs with {CHILDREN} child jobs each, {given.kills} kills", given.seed)
    with ground() as (_, dsn):
        report.on(dsn)
        began = time.monotonic()
        killed, codes, found = run(
            dsn, random.Random(given.seed), jobs=given.jobs, kills=given.kills, workers=given.workers
        )
        parents, children, different, whole, flows, left, earlier = found
        wanted = CHILDREN * given.jobs
        report.fact(
            "faults",
            f"{killed} kills in {time.monotonic() - began:.0f} s; {earlier} records of earlier claims were used",
        )
        report.holds("each job returned the results of its child jobs", parents == given.jobs, parents)
        report.holds("each child job has ended once", (children, different) == (wanted, wanted), (children, different))
        report.holds("each job has four records", whole == given.jobs, whole)
        report.holds("each flow of child jobs is completed", flows == 2 * given.jobs, flows)
        report.holds("no job waits or runs, and no end is unprocessed", left == 0, left)
        report.holds("every supervisor exited with 0", codes == [0] * HERDS, codes)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
