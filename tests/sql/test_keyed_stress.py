"""Producers collect, replace and debounce over few keys while workers claim: no item is lost or duplicated.

    python -m tests.sql.test_keyed_stress 60

runs the load for a minute with 6 producers and 3 workers, and prints the counts.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter

import psycopg

from jobherd import Client, Unique
from jobherd.sql.migrate import migrate
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster
from tests.support.queue import Queue

COLLECT = Unique(by=("n",), conflict="collect", collect="items")
REPLACE = Unique(by=("n",), conflict="replace")
WAITING = """
    SELECT kind, payload ->> 'n', array_agg(id) FROM (
        SELECT id, kind, payload FROM jobherd.ready WHERE attempts = 0 UNION ALL
        SELECT id, kind, payload FROM jobherd.scheduled WHERE attempts = 0 UNION ALL
        SELECT id, kind, payload FROM jobherd.parked WHERE attempts = 0) AS waiting
     GROUP BY 1, 2 HAVING count(*) > 1
"""
ITEMS = """
    SELECT item::int, count(*) FROM jobherd.jobs CROSS JOIN LATERAL json_array_elements_text(payload -> 'items') AS item
     WHERE kind = 'a:collect' GROUP BY 1
"""


class Storm:
    """Concurrent producers, workers and a watcher, with their counts and errors."""

    def __init__(self, dsn: str, keys: int, seed: int) -> None:
        self.dsn, self.keys, self.dice = dsn, keys, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.committed: list[int] = []
        self.wrong: list[object] = []
        self.over = threading.Event()

    def run(self, calls: int, producers: int, workers: int, seconds: float = LIMIT) -> None:
        """Let each producer make `calls` calls, for at most `seconds` seconds."""
        until = time.monotonic() + seconds
        ending = [
            threading.Thread(target=self._produce, args=(number, calls, until, self.dice.random()))
            for number in range(producers)
        ]
        rest = [threading.Thread(target=self._work, args=(self.dice.random(),)) for _ in range(workers)]
        rest += [threading.Thread(target=self._watch)]
        for thread in (*rest, *ending):
            thread.start()
        for thread in ending:
            thread.join()
        self.over.set()
        for thread in rest:
            thread.join(LIMIT)
        self._count()

    def _produce(self, number: int, calls: int, until: float, seed: float) -> None:
        dice = random.Random(seed)
        with psycopg.connect(self.dsn) as connection, Client(connection=connection) as client:
            for call in range(calls):
                if time.monotonic() > until:
                    return
                key, rolls_back = dice.randrange(self.keys), dice.random() < 0.1
                items = [10_000_000 * number + 10 * call + place for place in range(dice.choice((1, 1, 3)))]
                debounce = dice.choice((None, None, "2ms"))
                try:
                    with connection.transaction(force_rollback=rolls_back):
                        payload = {"n": key, "items": items}
                        job = client.enqueue("a:collect", payload, unique=COLLECT, debounce=debounce)
                        self.counts["new" if job.new else "collected"] += 1
                        client.enqueue("a:replace", {"n": key, "text": call}, unique=REPLACE, debounce=debounce)
                    if not rolls_back:
                        self.committed += items
                except psycopg.errors.DeadlockDetected:
                    self.counts["deadlocks"] += 1
                except psycopg.Error as problem:
                    self.wrong.append(problem)

    def _work(self, seed: float) -> None:
        dice = random.Random(seed)
        with Queue(self.dsn) as queue:
            child = queue.child()
            while not self.over.is_set():
                queue.promote()
                for job in child.claim(dice.randrange(1, 6)):
                    outcome = dice.choice(("ok", "ok", "failed", "retry"))
                    child.settle(job.token, [job.id], outcome, delay=0.0, error="why", code="NO")
                    self.counts["settled"] += 1

    def _watch(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not self.over.is_set():
                self.wrong += connection.execute(WAITING).fetchall()
                self.counts["snapshots"] += 1

    def _count(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = dict(connection.execute(ITEMS).fetchall())
        self.wrong += [("lost", item) for item in self.committed if item not in found]
        self.wrong += [("twice", item) for item, count in found.items() if count > 1]
        self.wrong += [("never committed", item) for item in found.keys() - set(self.committed)]


def test_no_collected_item_is_lost_or_duplicated(database):
    storm = Storm(database, keys=3, seed=7)
    storm.run(calls=50, producers=4, workers=2)
    assert storm.wrong == []
    assert min(storm.counts[what] for what in ("new", "collected", "settled", "snapshots")) > 0


def main() -> int:
    with Cluster() as cluster, cluster.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        storm = Storm(dsn, keys=20, seed=int(time.time()))
        storm.run(calls=10**9, producers=6, workers=3, seconds=float(sys.argv[1]))
    print(dict(storm.counts), f"{len(storm.committed)} items", "wrong:", storm.wrong[:20])
    return bool(storm.wrong)


if __name__ == "__main__":
    sys.exit(main())
