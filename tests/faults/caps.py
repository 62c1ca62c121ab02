"""Check concurrency limits of four supervisors while their workers are killed.

The campaign checks the running jobs thousands of times, and they must never exceed a limit. The jobs
take a millisecond, so that they start and end all the time. One limit is on a queue, and one on a
kind that is in two queues. Each check is one statement, which sees one snapshot of the database. At
the end every job must have completed: a place that was not freed would leave jobs behind.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import psycopg

from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
HERDS = 4
QUEUE, KIND = 3, 2
LOAD = """
SELECT jobherd.enqueue('fault:sleep', '{"seconds": 0.001}', jsonb_build_object('queue', q))
  FROM generate_series(1, %s), unnest('{media,default}'::text[]) AS q
UNION ALL
SELECT jobherd.enqueue('fault:quick', '{}', jsonb_build_object('queue', q)) FROM generate_series(1, %s), unnest('{media,default}'::text[]) AS q"""
LOOK = """
SELECT count(*) FILTER (WHERE j.queue = 'media'), count(*) FILTER (WHERE j.kind = 'fault:sleep')
  FROM jobherd.running r CROSS JOIN unnest(r.jobs) AS j"""
WAITING = "SELECT (SELECT count(*) FROM jobherd.waiting) + (SELECT count(*) FROM jobherd.scheduled) + (SELECT count(*) FROM jobherd.running)"


class Looker:
    """Counts the running jobs in a thread, as fast as one session can."""

    def __init__(self, dsn: str) -> None:
        self.seen: list[tuple[int, int]] = []
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._stop = False
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop:
            self.seen += self._connection.execute(LOOK).fetchall()

    def stop(self) -> list[tuple[int, int]]:
        self._stop = True
        self._thread.join()
        self._connection.close()
        return self.seen


def main() -> int:
    given = arguments(__doc__, samples=10_000, kills=30, workers=3, gap=1.0)
    dice = random.Random(given.seed)
    report = Report(
        f"caps: {HERDS} supervisors with {given.workers} workers each, at least {given.samples:,} samples", given.seed
    )
    with ground() as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection, contextlib.ExitStack() as stack:
        report.on(dsn)
        connection.execute(
            "SELECT jobherd.set_limit('media', %s), jobherd.set_limit(kind => 'fault:sleep', max_running => %s)",
            [QUEUE, KIND],
        )
        herds = [
            stack.enter_context(Herd(dsn, WORK, "--claim-window", "0.01", workers=given.workers)) for _ in range(HERDS)
        ]
        looker = Looker(dsn)
        jobs = kills = 0
        start = time.monotonic()
        while (len(looker.seen) < given.samples or kills < given.kills) and time.monotonic() - start < 600:
            if connection.execute(WAITING).fetchall()[0][0] < 400:
                jobs += len(connection.execute(LOAD, [200, 200]).fetchall())
            time.sleep(dice.uniform(0.3, 1.7) * given.gap)
            pids = dice.choice(herds).worker_pids()
            if pids:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd := os.pidfd_open(dice.choice(pids)), signal.SIGKILL)
                    os.close(pidfd)
                    kills += 1
        until = time.monotonic() + 120
        while (left := connection.execute(WAITING).fetchall()[0][0]) and time.monotonic() < until:
            time.sleep(0.2)
        took = time.monotonic() - start
        seen = looker.stop()
        past = dict(connection.execute("SELECT state, count(*) FROM jobherd.history GROUP BY state").fetchall())
        codes = [herd.stop() for herd in herds]
        report.fact("samples", f"{len(seen):,}, in {took:.0f} s with {jobs:,} jobs and {kills} kills")
        report.fact(
            "at the limit",
            f"{sum(queue == QUEUE for queue, _ in seen):,} samples for the queue, {sum(kind == KIND for _, kind in seen):,} for the kind",
        )
        report.holds(
            "no sample exceeds the limit of the queue",
            max(queue for queue, _ in seen) <= QUEUE,
            max(queue for queue, _ in seen),
        )
        report.holds(
            "no sample exceeds the limit of the kind",
            max(kind for _, kind in seen) <= KIND,
            max(kind for _, kind in seen),
        )
        report.holds("enough samples were taken", len(seen) >= given.samples, len(seen))
        report.holds("no slot was lost: no job is left", left == 0, left)
        report.holds("every job completed", past == {"completed": jobs}, past)
        report.holds("every supervisor exited with 0", codes == [0] * HERDS, codes)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
