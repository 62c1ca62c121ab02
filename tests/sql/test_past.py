"""The cost of a statement does not grow with the history.

Each statement runs with a short and with a long history, and must touch about as many buffers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from jobherd import sql
from jobherd.supervisor.cli.database import connect
from tests.support.patience import LIMIT
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

LITTLE, MUCH = 20_000, 200_000
DAYS = 7
DEEPER = 3 * (DAYS + 2)
"""Buffers for a level or two more in the indexes of each partition that the statement reads; nothing else may grow."""
FILL = """
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, crashes, state, queue, kind, payload,
                                 error)
    SELECT n, now() - make_interval(secs => %(jobs)s - n), now(), now() - make_interval(secs => %(jobs)s - n), now() - make_interval(secs => %(jobs)s - n), current_date + 1 + (n %% %(days)s)::integer,
           n, 0, 1, 0, CASE WHEN n %% 100 = 0 THEN 'failed' ELSE 'completed' END, 'default', 'a:b', '{}', CASE WHEN n %% 100 = 0 THEN 'broken' END
      FROM generate_series(1, %(jobs)s) AS n
"""


@pytest.fixture(scope="module")
def pasts(cluster, template):
    """Yield a queue with a history of 20,000 jobs and one with 200,000. Job ids start at 1 in both."""
    with (
        cluster.database(template=template) as short,
        cluster.database(template=template) as long,
        Queue(short) as little,
        Queue(long) as much,
    ):
        for queue, jobs in ((little, LITTLE), (much, MUCH)):
            queue.connection.execute(sql.load("maintenance/keep_partitions"), {"ahead": DAYS + 1, "most": None})
            queue.connection.execute(FILL, {"jobs": jobs, "days": DAYS})
            queue.run("SELECT setval('jobherd.job_ids', %s)", jobs)
            queue.run("VACUUM ANALYZE jobherd.history")
        yield little, much


def touched(connection: psycopg.Connection, text: str, parameters: dict[str, object]) -> int:
    """Return the buffers that a statement touches on its second run, with warm caches. Both runs are rolled back."""
    buffers = 0
    for _ in range(2):
        with connection.transaction(force_rollback=True):
            row = connection.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text, parameters).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            scanned = {node.get("CTE Name") for node in nodes(plan)}
            # A writing CTE that no other node reads runs after the rest. The top node does not count its buffers.
            unread = [
                node
                for node in plan.get("Plans", ())
                if node.get("Subplan Name", "").removeprefix("CTE ") not in scanned and "Operation" in node
            ]
            buffers = sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in [plan, *unread])
    return buffers


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


PAGE = {
    "before": 2**62,
    "states": None,
    "kind": None,
    "queue": None,
    "tenant": None,
    "code": None,
    "scan": 50,
    "limit": 20,
}
PURGE = {"after": 0, "most": 100, "cutoff": "infinity", "states": ["completed"], "kind": None}


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        ("observe/show_job", {"id": 1000}),
        ("observe/show_jobs", {"ids": [1000, 1001]}),
        ("observe/list_states", {"ids": [1000, 10**9]}),
        ("observe/list_jobs", PAGE),
        ("observe/list_jobs", PAGE | {"states": ["failed"]}),
        ("control/cancel_job", {"id": 1000, "actor": None, "reason": None}),
        ("control/cancel_job", {"id": 10**9, "actor": None, "reason": None}),
        ("control/retry_job", {"id": 1000, "actor": None, "reason": None}),
        ("control/purge_history", PURGE),
        ("control/purge_history", PURGE | {"kind": "no:such"}),
        ("control/purge_history", PURGE | {"after": 10**9}),
    ],
)
def test_statement_about_history_costs_the_same_however_long_the_history_is(pasts, statement, parameters):
    little, much = (touched(queue.connection, queue.text(statement), parameters) for queue in pasts)
    print(f"{statement}: {little} and {much} buffers")
    assert much <= little * 1.15 + DEEPER


def test_claim_and_settlement_cost_the_same_however_long_the_history_is(pasts):
    found = []
    for queue in pasts:
        child = queue.child()
        queue.enqueue_many("a:b", 40)
        claim = touched(child.connection, queue.text("claim/claim_jobs"), child.parameters(20))
        batch = child.claim(20)
        settle = child.settlement(batch[0].token, [job.id for job in batch], "ok")
        found.append((claim, touched(child.connection, queue.text("settle/settle_jobs"), settle)))
        child.settle(batch[0].token, [job.id for job in batch], "ok")
    (claim, settle), (claim_later, settle_later) = found
    print(f"claim {claim} and {claim_later} buffers, settlement {settle} and {settle_later}")
    assert claim_later <= claim * 1.15
    assert settle > 40
    assert settle_later <= settle * 1.15 + 20  # an index is a level deeper


def test_connection_disables_jit(database):
    """PostgreSQL 15 estimates the view over all partitions as so expensive that it compiles it.

    Compiling takes hundreds of times as long as the query.
    """
    with connect(database, name="test") as connection:
        assert connection.execute("SHOW jit").fetchone() == ("off",)


def test_purge_walks_the_ids_in_batches_and_ends(database):
    with Queue(database) as queue:
        queue.connection.execute(FILL, {"jobs": 250, "days": DAYS})
        after, gone = 0, []
        while after is not None:
            jobs, after = queue.connection.execute(
                queue.text("control/purge_history"), PURGE | {"after": after}
            ).fetchone()
            gone.append(jobs)
        assert gone == [99, 99, 50, 0]
        assert queue.run("SELECT state, count(*) FROM jobherd.history GROUP BY state") == [("failed", 2)]


def test_job_with_1500_attempts_shows_the_latest_1000(database):
    with Queue(database) as queue:
        job = queue.enqueue("a:b")
        queue.run(
            "INSERT INTO jobherd.attempts (job, token, attempt, outcome, finished_at, drop_on)"
            " SELECT %s, n, 1, 'snoozed', now() - make_interval(secs => 2000 - n), current_date + (n %% 3)::integer FROM generate_series(1, 1500) AS n",
            job,
        )
        found = queue.job(job)["history"]
        assert [each["token"] for each in found] == list(range(501, 1501))


def test_finished_job_is_found_while_its_row_moves_to_its_partition(database):
    """Race: a reader lists the partitions, then waits for the default partition while rows move out of it.

    Without the guard it would find the job in no partition.
    """
    with Queue(database) as queue, psycopg.connect(database) as maintenance:
        child = queue.child()
        job = queue.enqueue("a:b")
        child.settle(child.claim(1)[0].token, [job], "ok", keep=3)
        assert queue.run("SELECT count(*) FROM jobherd.history_default") == [(1,)]
        maintenance.execute(sql.load("maintenance/keep_partitions"), {"ahead": 3, "most": None})
        found: list = []
        reader = threading.Thread(
            target=lambda: found.extend(queue.run("SELECT state FROM jobherd.jobs WHERE id = %s", job))
        )
        reader.start()
        while not maintenance.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:
            assert reader.is_alive(), "the reader did not wait for the lock"
        maintenance.commit()
        reader.join(LIMIT)
        assert found == [("completed",)]
        assert queue.run("SELECT count(*) FROM jobherd.history_default") == [(0,)]
