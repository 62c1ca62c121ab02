"""Producers, workers and rollbacks use a few keys at once: no snapshot ever has two live jobs with the same key.

    python -m tests.sql.test_unique_stress 60

runs it for a minute with 8 producers and 3 workers, and prints what it did.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter

import psycopg

from jobherd import Client
from jobherd.sql.migrate import migrate
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster
from tests.support.queue import Queue

LIVE = """
    SELECT payload ->> 'n', array_agg(id) FROM (
        SELECT id, payload FROM jobherd.ready UNION ALL SELECT id, payload FROM jobherd.scheduled
        UNION ALL SELECT id, payload FROM jobherd.parked
        UNION ALL SELECT j.id, j.payload FROM jobherd.running CROSS JOIN LATERAL unnest(jobs) AS j) AS live
     GROUP BY 1 HAVING count(*) > 1
"""


class Storm:
    """Runs producers, workers, retries and a sweep at once, and counts what they did."""

    def __init__(self, dsn: str, keys: int, seed: int) -> None:
        self.dsn, self.keys, self.dice = dsn, keys, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[object] = []
        self.over = threading.Event()

    def run(self, calls: int, producers: int, workers: int, seconds: float = LIMIT) -> None:
        """Let each producer make the given number of calls, but stop after the given number of seconds."""
        until = time.monotonic() + seconds
        ending = [
            threading.Thread(target=self._produce, args=(calls, until, self.dice.random())) for _ in range(producers)
        ]
        rest = [threading.Thread(target=self._work, args=(self.dice.random(),)) for _ in range(workers)]
        rest += [
            threading.Thread(target=self._sweep),
            threading.Thread(target=self._watch),
            threading.Thread(target=self._retry, args=(self.dice.random(),)),
        ]
        for thread in (*rest, *ending):
            thread.start()
        for thread in ending:
            thread.join()
        self.over.set()
        for thread in rest:
            thread.join(LIMIT)

    def _guarded(self, problem: psycopg.Error) -> None:
        if isinstance(problem, psycopg.errors.DeadlockDetected):
            self.counts["deadlocks"] += 1
        else:
            self.wrong.append(problem)

    def _produce(self, calls: int, until: float, seed: float) -> None:
        dice = random.Random(seed)
        with psycopg.connect(self.dsn) as connection, Client(connection=connection) as client:
            for _ in range(calls):
                if time.monotonic() > until:
                    return
                try:
                    with connection.transaction(force_rollback=dice.random() < 0.1):
                        numbers = [dice.randrange(self.keys) for _ in range(dice.choice((1, 1, 1, 7)))]
                        found = client.enqueue_many(
                            "a:b",
                            ({"n": n} for n in numbers),
                            unique=("n",),
                            delay=dice.choice((None, None, 0.001)),
                        )
                        if None in found:
                            self.wrong.append(("no id", numbers, found))
                        self.counts["calls"] += 1
                        self.counts["new"] += sum(job.new for job in found)
                except psycopg.Error as problem:
                    self._guarded(problem)

    def _work(self, seed: float) -> None:
        dice = random.Random(seed)
        with Queue(self.dsn) as queue:
            child = queue.child()
            while not self.over.is_set():
                queue.promote()
                for job in child.claim(dice.randrange(1, 6)):
                    outcome = dice.choice(("ok", "ok", "failed", "retry", "snoozed"))
                    child.settle(job.token, [job.id], outcome, delay=0.0, error="why", code="NO")
                    self.counts["settled"] += 1

    def _retry(self, seed: float) -> None:
        """Retry and cancel by hand."""
        dice = random.Random(seed)
        with Queue(self.dsn) as queue:
            while not self.over.is_set():
                for (job,) in queue.run("SELECT id FROM jobherd.history ORDER BY random() LIMIT 5"):
                    self.counts[f"retried: {queue.retry(job)}"] += 1
                for (job,) in queue.run("SELECT id FROM jobherd.ready ORDER BY random() LIMIT 1"):
                    if dice.random() < 0.5:
                        queue.cancel(job)

    def _sweep(self) -> None:
        with Queue(self.dsn) as queue:
            while not self.over.is_set():
                parameters = {"after": None, "most": 1000}
                row = queue.connection.execute(queue.text("maintenance/sweep_keys"), parameters).fetchone()
                self.counts["swept"] += row[1] if row else 0

    def _watch(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not self.over.is_set():
                self.wrong += connection.execute(LIVE).fetchall()
                self.counts["snapshots"] += 1


def test_no_snapshot_has_two_live_jobs_with_the_same_key(database):
    storm = Storm(database, keys=20, seed=7)
    storm.run(calls=60, producers=5, workers=3)
    assert storm.wrong == []
    assert storm.counts["new"] > 20
    assert storm.counts["swept"] > 0
    assert storm.counts["retried: conflict"] + storm.counts["retried: ready"] > 0


def main() -> int:
    with Cluster() as cluster, cluster.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        storm = Storm(dsn, keys=100, seed=int(time.time()))
        storm.run(calls=10**9, producers=8, workers=3, seconds=float(sys.argv[1]))
    print(dict(storm.counts), "wrong:", storm.wrong)
    return bool(storm.wrong)


if __name__ == "__main__":
    sys.exit(main())
