"""Kill workers and maintenance processes under jobs of five durable steps: each step is recorded once.

python -m tests.faults.steps [--jobs 10000] [--kills 300]

Two steps are transactions that write an effect, and one is a sleep. A kill is SIGKILL to a random
child process; the kills are spread over the steps. At the end each job is completed with five
records, each effect of a step transaction exists once, the results of the job are those of the
records, and no job waits or runs any more.
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
STEPS = 5
DEADLINE = 900.0
QUICK = ("--db-retry-initial", "0.2s")
LEFT = (
    "SELECT (SELECT count(*) FROM jobherd.ready) + (SELECT count(*) FROM jobherd.scheduled) + (SELECT count(*) FROM jobherd.parked)"
    " + (SELECT coalesce(sum(cardinality(jobs)), 0) FROM jobherd.running)"
)
DONE = "SELECT count(*) FROM jobherd.steps"
END = """
SELECT (SELECT count(*) FROM jobherd.history WHERE state = 'completed'),
       (SELECT count(*) FROM (SELECT job FROM jobherd.steps GROUP BY job HAVING count(*) = 5) AS whole),
       (SELECT count(*) FROM public.effects), (SELECT count(*) FROM (SELECT DISTINCT job, step FROM public.effects) AS one),
       (SELECT count(*) FROM jobherd.history h
         WHERE h.result ->> 0 = (SELECT result #>> '{}' FROM jobherd.steps s WHERE s.job = h.id AND s.name = 'charge')
           AND h.result ->> 1 = (SELECT result #>> '{}' FROM jobherd.steps s WHERE s.job = h.id AND s.name = 'mail')),
       (SELECT count(*) FROM jobherd.steps s JOIN jobherd.history h ON h.id = s.job WHERE s.token < h.token)"""


def main() -> int:
    given = arguments(__doc__, jobs=10_000, kills=300, workers=2)
    dice = random.Random(given.seed)
    report = Report(f"steps: {given.jobs:,} jobs of five steps, {given.kills} kills", given.seed)
    with ground() as (_, dsn), contextlib.ExitStack() as stack:
        report.on(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE public.effects (job bigint, step text)")
            connection.execute(
                "SELECT jobherd.enqueue('fault:steps', '{\"seconds\": 0.002}') FROM generate_series(1, %s)",
                [given.jobs],
            )
        herds = [
            stack.enter_context(Herd(dsn, WORK, "--queues", "default", *QUICK, workers=given.workers))
            for _ in range(HERDS)
        ]
        kills, until, began = 0, time.monotonic() + DEADLINE, time.monotonic()
        with psycopg.connect(dsn, autocommit=True) as connection:
            while time.monotonic() < until and connection.execute(LEFT).fetchone()[0]:
                time.sleep(dice.uniform(0.02, 0.2))
                # At a fixed pace, a slow machine would kill each process while it starts, and run nothing.
                is_due = kills * STEPS * given.jobs < given.kills * connection.execute(DONE).fetchone()[0]
                pids = dice.choice(herds).children() if is_due else []
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(dice.choice(pids), signal.SIGKILL)
                    kills += 1
            left = connection.execute(LEFT).fetchone()[0]
        seconds = time.monotonic() - began
        codes = [herd.stop() for herd in herds]
        with psycopg.connect(dsn, autocommit=True) as connection:
            completed, whole, effects, different, equal, earlier = connection.execute(END).fetchone()
        report.fact("faults", f"{kills} kills in {seconds:.0f} s; {earlier} records of earlier claims were used")
        report.holds("no job is stuck", left == 0, left)
        report.holds("each job is completed", completed == given.jobs, completed)
        report.holds("each has five records", whole == given.jobs, whole)
        report.holds(
            "each effect of a step transaction exists once",
            (effects, different) == (2 * given.jobs, 2 * given.jobs),
            (effects, different),
        )
        report.holds("each job returned what is recorded", equal == given.jobs, equal)
        report.holds("every supervisor exited with 0", codes == [0] * HERDS, codes)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
