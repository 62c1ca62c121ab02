"""Workers of this version keep running when a later version adds a column to the jobs, and lose no value of it.

Each statement is prepared before the column exists, as in the session of such a worker.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.rows import dict_row

from jobherd.handlers._values.outcome import OK
from jobherd.workers.job.finished import Finished, settlement
from tests.sql.test_gates import gated
from tests.support.queue import Line, Queue
from tests.support.remote import Gateway, RemoteSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.queue import Child

LATER = "ALTER TABLE jobherd.{} ADD COLUMN later text"
WHERE_IT_IS = """
SELECT 'ready', later FROM jobherd.ready WHERE id = %(job)s UNION ALL SELECT 'parked', later FROM jobherd.parked WHERE id = %(job)s
UNION ALL SELECT 'scheduled', later FROM jobherd.scheduled WHERE id = %(job)s
UNION ALL SELECT 'running', j.later FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j WHERE j.id = %(job)s"""


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        queue.connection.prepare_threshold = 0
        yield queue


@pytest.fixture
def child(queue):
    child = queue.child()
    child.connection.prepare_threshold = 0
    return child


def add_the_column(queue: Queue) -> None:
    for table in ("ready", "scheduled", "parked"):
        queue.run(LATER.format(table))


def where(queue: Queue, job: int) -> tuple[str, str | None]:
    [found] = queue.connection.execute(WHERE_IT_IS, {"job": job}).fetchall()
    return found


def claim(child: Child, job: int) -> int:
    [claimed] = child.claim(1)
    assert claimed.id == job
    assert claimed.token is not None
    return claimed.token


def claim_one(child: Child, job: int) -> None:
    rows = child.connection.execute(child.queue.text("claim/claim_job"), child.parameters(1)).fetchall()
    assert [row[1] for row in rows] == [job]


def claim_more(child: Child, job: int) -> None:
    """Add the job to a claim that has another job."""
    queue = child.queue
    first = queue.enqueue("a:b", priority=-1)
    token = claim(child, first)
    parameters = child.parameters(1) | {"token": token, "kind": "a:b"}
    rows = child.connection.execute(queue.text("claim/claim_more"), parameters).fetchall()
    assert [row[1] for row in rows] == [job]
    assert child.settle(token, [first], "ok") == [first]


def claim_under_a_limit(child: Child, job: int) -> None:
    child.queue.run("SELECT jobherd.set_limit(kind => 'a:b', max_running => 9)")
    assert [row["id"] for row in gated(child)] == [job]


def park(child: Child, job: int) -> None:
    child.queue.run("SELECT jobherd.set_limit(kind => 'a:b', max_running => 1)")
    first = child.queue.enqueue("a:b", priority=-1)
    rows = gated(child)
    assert [row["id"] for row in rows] == [first]
    assert gated(child) == []
    assert child.settle(rows[0]["token"], [first], "ok") == [first]


def park_and_return(child: Child, job: int) -> None:
    park(child, job)
    child.queue.run("SELECT jobherd.set_limit(kind => 'a:b')")
    moved = child.queue.connection.execute(child.queue.text("maintenance/release_parked"), {"most": 9})
    assert moved.rowcount == 1


def park_and_claim(child: Child, job: int) -> None:
    park(child, job)
    assert [row["id"] for row in gated(child)] == [job]


def settled(outcome: str, **more: object) -> Callable[[Child, int], None]:
    def settle(child: Child, job: int) -> None:
        assert child.settle(claim(child, job), [job], outcome, **more) == [job]

    return settle


def reschedule_and_promote(child: Child, job: int) -> None:
    child.queue.run("SELECT jobherd.reschedule(%s, now() + interval '1 h')", job)
    child.queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s'")
    assert child.queue.promote() == 1


def reschedule_and_retry(child: Child, job: int) -> None:
    child.queue.run("SELECT jobherd.reschedule(%s, now() + interval '1 h')", job)
    assert child.queue.retry(job) == "ready"


def requeued(name: str, **parameters: Any) -> Callable[[Child, int], None]:
    def requeue(child: Child, job: int) -> None:
        claim(child, job)
        parameters.update({key: getattr(child, of) for key, of in parameters.items() if of in ("id", "supervisor")})
        child.queue.connection.execute(child.queue.text(f"recover/{name}"), parameters)

    return requeue


def release_the_rest(child: Child, job: int) -> None:
    first = child.queue.enqueue("a:b", priority=-1)
    claimed = child.claim(2)
    rest = {"child": child.id, "token": claimed[0].token, "job": first, "called": None}
    child.connection.execute(child.queue.text("recover/requeue_rest"), rest)
    assert child.settle(claimed[0].token, [first], "ok") == [first]


def a_child_dies(child: Child, job: int) -> None:
    claim(child, job)
    assert child.queue.supervisor().reclaim(dead=[child.supervisor]) == (1, 1)


def orphan(child: Child, job: int) -> None:
    claim(child, job)
    child.queue.run("DELETE FROM jobherd.children")
    assert child.queue.orphans() == [job]


def gateway_of(child: Child) -> Gateway:
    """Return a gateway that sends through the child's session, where its statements stay prepared."""
    gateway = Gateway(child.queue)
    gateway.connection = child.connection
    return gateway


def claim_for_a_slot(child: Child, job: int) -> None:
    gateway = gateway_of(child)
    [dealt] = gateway.claim((gateway.open(), 1))
    assert dealt.jobs == [job]


MOVES: dict[str, tuple[Callable[[Child, int], object], str]] = {
    "claim_jobs": (claim, "running"),
    "claim_job": (claim_one, "running"),
    "claim_more": (claim_more, "running"),
    "claim_slots": (claim_for_a_slot, "running"),
    "claim_gated": (claim_under_a_limit, "running"),
    "park": (park, "parked"),
    "release_parked": (park_and_return, "ready"),
    "claim of a parked job": (park_and_claim, "running"),
    "retry": (settled("retry", error="why"), "ready"),
    "retry later": (settled("retry", error="why", delay=60.0), "scheduled"),
    "snooze": (settled("snoozed", delay=60.0), "scheduled"),
    "abandoned": (settled("abandoned"), "ready"),
    "promote_due": (reschedule_and_promote, "ready"),
    "retry_as": (reschedule_and_retry, "ready"),
    "requeue_unacknowledged": (requeued("requeue_unacknowledged", child="id", known_tokens=[]), "ready"),
    "requeue_rest": (release_the_rest, "ready"),
}
LAST: dict[str, tuple[Callable[[Child, int], object], str]] = {
    "requeue_child": (lambda child, job: (claim(child, job), child.release(cleared=[])), "ready"),
    "unregister_supervisor": (requeued("unregister_supervisor", supervisor="supervisor"), "ready"),
    "reclaim_supervisors": (a_child_dies, "ready"),
    "requeue_orphans": (orphan, "ready"),
}
"""Moves after which the child process is not registered."""


@pytest.mark.parametrize("name", [*MOVES, *LAST])
def test_value_of_an_added_column_moves_with_the_job(queue, child, name):
    move, there = {**MOVES, **LAST}[name]
    if name in MOVES:
        move(child, queue.enqueue("a:b"))
        queue.run("DELETE FROM jobherd.running")
        queue.run("DELETE FROM jobherd.parked")
        queue.run("DELETE FROM jobherd.ready")
        queue.run("DELETE FROM jobherd.gates")
    add_the_column(queue)
    job = queue.enqueue("a:b")
    queue.run("UPDATE jobherd.ready SET later = 'kept' WHERE id = %s", job)
    move(child, job)
    assert where(queue, job) == (there, "kept")


@pytest.mark.parametrize("outcome", ["ok", "together", "failed"])
def test_claim_made_before_the_column_was_added_can_be_settled(queue, child, outcome):
    jobs = queue.enqueue_many("a:b", 3)
    tokens = [claim(child, job) for job in jobs]
    line = Line(child.connection, child.id)

    def settle(place: int) -> None:
        if outcome == "ok":
            done = settlement(
                child.id, tokens[place], [Finished(jobs[place], OK, ran=0.1, keep=3)], ran_on="h/1", now=1.0
            )
            assert line.run("settle/settle_completed", done) == [(1,)]
        elif outcome == "together":
            one = RemoteSession(child.supervisor, child.id, 1)
            assert len(gateway_of(child).settle_claims((one, tokens[place], [jobs[place]]))) == 1
        else:
            assert child.settle(tokens[place], [jobs[place]], "failed", error="why") == [jobs[place]]

    settle(0)
    add_the_column(queue)
    settle(1)
    assert queue.states(jobs) == [*["failed" if outcome == "failed" else "completed"] * 2, "running"]
    assert queue.run("SELECT DISTINCT attempts FROM jobherd.history") == [(1,)]


def rows_of(child: Child, statement: str, **more: object) -> list[dict[str, Any]]:
    cursor = child.connection.cursor(row_factory=dict_row)
    return cursor.execute(child.queue.text(statement), child.parameters(1) | more).fetchall()


def rows_of_more(child: Child) -> list[dict[str, Any]]:
    first = child.queue.enqueue("a:b", priority=-1, tenant="acme")
    return rows_of(child, "claim/claim_more", token=claim(child, first), kind="a:b")


def rows_of_slots(child: Child) -> list[dict[str, Any]]:
    gateway = gateway_of(child)
    session = gateway.open()
    assert session is not None
    return gateway.claim_raw((session, 1))


CLAIMS: dict[str, Callable[[Child], list[dict[str, Any]]]] = {
    "claim_jobs": lambda child: child.claim_raw(1),
    "claim_job": lambda child: rows_of(child, "claim/claim_job"),
    "claim_more": rows_of_more,
    "claim_gated": gated,
    "claim_slots": rows_of_slots,
}


@pytest.mark.parametrize("name", CLAIMS)
def test_each_claim_returns_an_attribute_that_was_added_to_the_extras(queue, child, name):
    """No claim lists the attributes: each statement returns all of them, as one document."""
    claim_again, prepared = CLAIMS[name], queue.enqueue("a:b", tenant="acme")
    if name == "claim_gated":
        queue.run("SELECT jobherd.set_limit(kind => 'a:b', max_running => 9)")
    assert [row["id"] for row in claim_again(child)] == [prepared]
    queue.run("ALTER TYPE jobherd.extras ADD ATTRIBUTE later text")
    job = queue.enqueue("a:b", tenant="acme", payload_bytes=b"\x00\xff")
    queue.run("UPDATE jobherd.ready SET extras.later = 'kept' WHERE id = %s", job)
    [row] = claim_again(child)
    extras = json.loads(row["extras"])
    assert (row["id"], extras["tenant"], extras["later"], extras["payload_bytes"]) == (job, "acme", "kept", r"\x00ff")
