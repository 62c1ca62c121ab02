"""Three supervisors reclaim the jobs of a fourth while other sessions change the same jobs.

A maintenance process sweeps for orphans, operators cancel, retry and delete, and a worker of the supervisor that was
presumed dead still records outcomes.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from jobherd import sql
from tests.support.patience import LIMIT
from tests.support.queue import Queue

ROUNDS = 10
RECLAIM = {"lease": 0.0, "patient": True, "clock": None}
RECLAIMED, SETTLED, CANCELLED = 0, 3, 5
FIRST = {0: SETTLED, 1: RECLAIMED, 2: RECLAIMED, 3: CANCELLED}
"""Round -> index in `deeds` of the statement that runs before all others.

So each possible end of a job occurs, whichever process is quicker.
"""
PLACES = """
SELECT id, state, attempts, crashes, started_at IS NOT NULL FROM jobherd.history WHERE id = ANY (%(jobs)s)
UNION ALL SELECT id, 'waits', attempts, crashes, false FROM jobherd.ready WHERE id = ANY (%(jobs)s)
UNION ALL SELECT id, 'waits', attempts, crashes, false FROM jobherd.scheduled WHERE id = ANY (%(jobs)s)
UNION ALL SELECT j.id, 'runs', j.attempts, j.crashes, false FROM jobherd.running r, unnest(r.jobs) AS j WHERE j.id = ANY (%(jobs)s)"""
TRIED = "SELECT job, count(*) FILTER (WHERE started_at IS NOT NULL), count(*) FILTER (WHERE outcome = 'lost') FROM jobherd.attempts GROUP BY 1"


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        queue.run("ALTER TABLE jobherd.ready DISABLE TRIGGER wake")
        yield queue


class Actors:
    """One session per actor. All wait at a barrier until every session is ready."""

    def __init__(self, queue, count):
        self.sessions = [psycopg.connect(queue.dsn, autocommit=True) for _ in range(count)]
        queue.opened += self.sessions
        self.barrier = threading.Barrier(count)
        self.pool = ThreadPoolExecutor(count)

    def act(self, deeds, first=None):
        """Run all deeds at once, the one with index `first` before the rest. Return the rows of each."""
        over = threading.Event()

        def do(number, session, text, parameters):
            self.barrier.wait(LIMIT)
            if first not in (None, number):
                assert over.wait(LIMIT)
            try:
                return session.execute(text, parameters).fetchall()
            finally:
                if number == first:
                    over.set()

        futures = [
            self.pool.submit(do, number, session, *deed)
            for number, (session, deed) in enumerate(zip(self.sessions, deeds, strict=True))
        ]
        return [future.result(LIMIT) for future in futures]


@pytest.fixture
def actors(queue):
    actors = Actors(queue, 9)
    yield actors
    actors.pool.shutdown()


@pytest.mark.parametrize("named", [True, False], ids=["known to be dead", "whose lease has expired"])
def test_job_changed_by_many_at_once_is_in_one_table_and_counted_once(queue, actors, named):
    dice = random.Random(4)
    reapers = [queue.supervisor() for _ in range(3)]
    became = []
    for turn in range(ROUNDS):
        dead = queue.supervisor()
        children = [dead.child(), dead.child()]
        jobs = queue.enqueue_many("a:b", 6, max_attempts=1 + turn % 2)
        claims = [child.claim(3) for child in children]
        mine = [job.id for job in claims[0]]
        if not named:
            queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 h' WHERE id = %s", dead.id)
        reclaims = [
            (
                sql.load("recover/reclaim_supervisors"),
                {**RECLAIM, "supervisor": reaper.id, "dead": [dead.id] if named else []},
            )
            for reaper in reapers
        ]
        late = children[0].settlement(claims[0][0].token, mine, "ok")
        cancelled, retried, deleted, also = (dice.choice(jobs) for _ in range(4))
        if FIRST.get(turn) == CANCELLED:  # a job that no deed settles, retries or deletes
            cancelled = next(job.id for job in claims[1] if job.id not in (retried, deleted))
        deeds = [
            *reclaims,
            (sql.load("settle/settle_jobs"), late),
            (sql.load("recover/requeue_orphans"), {}),
            ("SELECT jobherd.cancel(%s)", [cancelled]),
            ("SELECT jobherd.cancel(%s)", [also]),
            ("SELECT jobherd.retry(%s)", [retried]),
            ("SELECT jobherd.delete(%s)", [deleted]),
        ]
        *taken, settled, swept, [(by_cancel,)], [(by_also,)], [(by_retry,)], [(by_delete,)] = actors.act(
            deeds, FIRST.get(turn)
        )
        for child in children:
            child.connection.close()

        def sees(turn=turn, deeds=deeds, taken=taken, settled=settled, swept=swept):
            return f"round {turn}: {taken=} {settled=} {swept=} {deeds[5:]}"

        swept += queue.run(sql.load("recover/requeue_orphans"))  # the first sweep skips claims whose rows are locked
        gone = {deleted} if by_delete == "deleted" else set()
        assert sum(row[0][0] for row in taken) == 1, sees()
        assert sum(row[0][1] for row in taken) + len(settled) + len(swept) == len(jobs), sees()
        assert settled in ([], [(job,) for job in mine]), sees()
        places = queue.connection.execute(PLACES, {"jobs": jobs}).fetchall()
        assert sorted(place[0] for place in places) == sorted(set(jobs) - gone), sees()
        tried = {job: (runs, lost) for job, runs, lost in queue.run(TRIED)}
        for job, state, attempts, crashes, started in places:
            runs, lost = tried.get(job, (0, 0))
            assert state in {"waits", "completed", "failed", "cancelled"}, sees()
            assert (runs + started, crashes) == (1, 0), (job, state, sees())
            assert attempts in ({0, 1} if job == retried else {1}), (job, state, sees())
            assert lost <= 1, sees()
            assert state != "completed" or (job,) in settled, sees()
        assert not gone & tried.keys(), sees()
        for answer, job in ((by_cancel, cancelled), (by_also, also), (by_retry, retried), (by_delete, deleted)):
            assert answer is not None or job in gone, (job, sees())
        became += [state for _, state, *_ in places]
        queue.run("TRUNCATE jobherd.ready, jobherd.history, jobherd.attempts")
    print({state: became.count(state) for state in sorted(set(became))})
    assert {"waits", "completed", "failed", "cancelled"} <= set(became), "each state occurs"
