"""A job moves between tables as a whole row, and keeps every column that the move does not set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jobherd.handlers._values.outcome import OK
from jobherd.workers.job.finished import Finished, settlement
from tests.sql.test_gates import gated
from tests.support.queue import Line, Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.queue import Child, JobRow

FULL = """
INSERT INTO jobherd.{table} (created_at, run_at, expires_at, timeout, last_error, priority, attempts, max_attempts, crashes, alone, queue, kind, payload, extras, lane)
VALUES ('2026-01-02 03:04:05.678901+00', %s, '8000-01-01', 12.5, '{{"code": "OLD"}}', -7, 3, 9, 2, true, 'media', 'a:b', '{{"n": [1, "\\u00e4"]}}',
        jobherd.extras_of('acme', 'https://example.org/hook', '\\x00ff', 41, '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'), 'west')
RETURNING id"""
"""A job in which no column has its default."""
WHERE_IT_IS = """
SELECT to_jsonb(j) FROM (
    SELECT * FROM jobherd.ready UNION ALL SELECT * FROM jobherd.parked
    UNION ALL SELECT (jsonb_populate_record(NULL::jobherd.ready, to_jsonb(s))).* FROM jobherd.scheduled s
    UNION ALL SELECT j.* FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j
) AS j WHERE j.id = %s"""
PAST, FUTURE = "2026-01-02 03:04:06+00", "2090-01-01 00:00:00+00"


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def full(queue: Queue, table: str = "ready", run_at: str = PAST) -> int:
    return queue.run(FULL.format(table=table), run_at)[0][0]


def seen(queue: Queue, job: int) -> dict[str, Any]:
    rows = queue.run(WHERE_IT_IS.replace("SELECT * FROM jobherd.ready", "SELECT * FROM jobherd.ready"), job)
    assert len(rows) == 1, rows
    return rows[0][0]


def changed(queue: Queue, job: int, move: Callable[[], object]) -> dict[str, Any]:
    """Make a move and return the columns that it changed, with their new values."""
    before = seen(queue, job)
    assert all(value not in (None, 0, False, {}, "default") for value in before.values()), before
    move()
    after = seen(queue, job)
    assert after.keys() == before.keys()
    return {name: value for name, value in after.items() if value != before[name]}


def settle(child: Child, job: int, outcome: str, **more: object) -> None:
    token = child.queue.run("SELECT token FROM jobherd.running")[0][0]
    assert child.settle(token, [job], outcome, **more) == [job]


def test_promotion_of_a_due_job_changes_no_column(queue):
    job = full(queue, "scheduled")
    assert changed(queue, job, queue.promote) == {}
    assert queue.count("ready") == 1


@pytest.mark.parametrize("table", ["ready", "scheduled"])
@pytest.mark.parametrize(("to", "there"), [(FUTURE, "scheduled"), (PAST.replace("06", "09"), "ready")])
def test_rescheduling_changes_only_run_at(queue, table, to, there):
    job = full(queue, table, FUTURE if table == "scheduled" else PAST)
    to = to if (table, there) != ("scheduled", "scheduled") else FUTURE.replace("90", "91")
    assert list(changed(queue, job, lambda: queue.run("SELECT jobherd.reschedule(%s, %s)", job, to))) == ["run_at"]
    assert queue.count(there) == 1


@pytest.mark.parametrize("table", ["ready", "scheduled"])
def test_reprioritizing_changes_only_the_priority(queue, table):
    job = full(queue, table, FUTURE if table == "scheduled" else PAST)
    assert changed(queue, job, lambda: queue.run("SELECT jobherd.reprioritize(%s, 5)", job)) == {"priority": 5}


def test_claim_and_release_change_no_column_and_a_running_job_shows_its_attempt(queue):
    job, child = full(queue), queue.child()
    unheard: dict[str, object] = {"child": child.id, "known_tokens": []}
    claimed: list[JobRow] = []
    assert changed(queue, job, lambda: claimed.extend(child.claim(1))) == {}
    assert claimed[0].attempts == queue.job(job)["attempts"] == 4
    assert (
        changed(queue, job, lambda: queue.connection.execute(queue.text("recover/requeue_unacknowledged"), unheard))
        == {}
    )


def test_release_of_a_job_behind_a_long_one_changes_no_column(queue):
    first = queue.enqueue("a:b", queue="media", priority=-8)
    job, child = full(queue), queue.child()
    # A job that must run alone is never claimed behind another one, so the test builds this claim.
    assert len(child.claim(1)) == 1
    queue.run("UPDATE jobherd.running SET jobs = jobs || ARRAY(SELECT r FROM jobherd.ready r WHERE id = %s)", job)
    queue.run("DELETE FROM jobherd.ready WHERE id = %s", job)
    token = queue.run("SELECT token FROM jobherd.running")[0][0]
    rest = {"child": child.id, "token": token, "job": first, "called": None}
    assert changed(queue, job, lambda: queue.connection.execute(queue.text("recover/requeue_rest"), rest)) == {}


CRASHED = {"crashes": 3, "last_error": {"code": "WORKER_CRASHED", "message": "it crashed"}}


@pytest.mark.parametrize(
    ("began", "changes"),
    [(None, {"alone": False}), (True, {"alone": False}), (False, CRASHED)],
)
def test_release_counts_no_attempt_and_a_crash_only_if_the_claim_may_have_caused_it(queue, began, changes):
    job, child = full(queue), queue.child()
    queue.run(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed) VALUES ('a:b', 'a', 0, 5, 4, 7, 30)"
    )
    (claimed,) = child.claim(1)
    cleared = None if began is None else [claimed.token] if began else []
    assert changed(queue, job, lambda: child.release(cleared=cleared)) == changes


def test_job_with_its_last_allowed_crash_fails_or_is_canceled_on_request(queue):
    for cancelled, state, code in ((False, "failed", "WORKER_CRASHED"), (True, "cancelled", "JOB_CANCELLED")):
        job, child = full(queue), queue.child()  # it has crashed twice, and three are the default
        child.claim(1)
        if cancelled:
            queue.cancel(job)
        assert child.release(cleared=[]) == [job]
        found = queue.run("SELECT state, error_code, attempts, crashes FROM jobherd.history WHERE id = %s", job)
        assert found == [(state, code, 3, 3)]


def test_jobs_of_a_claim_that_crashed_its_worker_are_claimed_alone_and_count_no_crash(queue):
    jobs, child = queue.enqueue_many("a:b", 3), queue.child()
    child.claim(3)
    assert sorted(child.release(cleared=[])) == jobs
    assert queue.run("SELECT id, attempts, crashes, alone FROM jobherd.ready ORDER BY id") == [
        (job, 0, 0, True) for job in jobs
    ]
    suspects = [queue.child() for _ in range(4)]
    assert [len(suspect.claim(3)) for suspect in suspects] == [1, 1, 1, 0]


def test_lost_job_changes_only_its_attempts_and_its_error(queue):
    job, child = full(queue), queue.child()
    child.claim(1)
    queue.run("DELETE FROM jobherd.children")
    lost = {"attempts": 4, "last_error": {"code": "WORKER_LOST", "message": "its child was lost"}}
    assert changed(queue, job, queue.orphans) == lost
    child = queue.child()
    child.claim(1)
    taken = changed(queue, job, lambda: queue.supervisor().reclaim(dead=[child.supervisor]))
    assert taken.keys() == {"attempts", "last_error"}


@pytest.mark.parametrize(
    ("outcome", "delay", "changes"),
    [
        ("retry", 0.0, {"run_at", "attempts", "last_error", "crashes", "alone"}),
        ("retry", 30.0, {"run_at", "attempts", "last_error", "crashes", "alone"}),
        ("snoozed", 30.0, {"run_at", "last_error", "crashes", "alone"}),
        ("abandoned", None, {"run_at", "last_error", "crashes", "alone"}),
    ],
)
def test_outcome_that_requeues_a_job_changes_only_the_columns_it_sets(queue, outcome, delay, changes):
    job, child = full(queue), queue.child()
    child.claim(1)
    found = changed(queue, job, lambda: settle(child, job, outcome, delay=delay, crashed=1, code="NEW", error="why"))
    assert found.keys() == changes
    assert (found["crashes"], found["alone"], found["last_error"]) == (3, False, {"code": "NEW", "message": "why"})


def test_parking_and_releasing_a_job_changes_no_column(queue):
    queue.run("SELECT jobherd.set_limit(kind => 'a:b', max_running => 1)")
    queue.enqueue("a:b", queue="media", priority=-8)
    one, other = queue.child(), queue.child()
    gated(one)
    job = full(queue)
    assert changed(queue, job, lambda: gated(other)) == {}
    assert queue.count("parked") == 1
    queue.run("SELECT jobherd.set_limit(kind => 'a:b')")
    assert (
        changed(queue, job, lambda: queue.connection.execute(queue.text("maintenance/release_parked"), {"most": 10}))
        == {}
    )
    assert queue.run("SELECT count(*) FROM jobherd.ready")[0][0] == 1


@pytest.mark.parametrize("outcome", ["ok", "failed", "cancelled", "expired"])
def test_history_keeps_the_columns_of_a_finished_job(queue, outcome):
    job, child = full(queue), queue.child()
    child.claim(1)
    before = seen(queue, job)
    settle(child, job, outcome, **({"code": "NEW", "error": "why"} if outcome == "failed" else {}))
    [[after]] = queue.run("SELECT to_jsonb(h) FROM jobherd.history h WHERE id = %s", job)
    kept = before.keys() & after.keys()
    assert kept == before.keys() - {"expires_at", "last_error", "alone", "lane"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept} | {"attempts": 4}


def whole(child: Child, job: int) -> None:
    line = Line(child.connection, child.id)
    token = child.queue.run("SELECT token FROM jobherd.running")[0][0]
    assert line.run(
        "settle/settle_completed",
        settlement(child.id, token, [Finished(job, OK, ran=0.1, keep=3)], ran_on="host/1", now=1.0),
    )


ENDS: dict[str, Callable[[Child, int], object]] = {
    "settled": lambda child, job: settle(child, job, "failed", error="why", keep=3),
    "settled with its whole claim": whole,
    "released": lambda child, _: child.release(),
    "unheard": lambda child, _: child.queue.connection.execute(
        child.queue.text("recover/requeue_unacknowledged"), {"child": child.id, "known_tokens": []}
    ),
    "left": lambda child, _: child.queue.connection.execute(
        child.queue.text("recover/unregister_supervisor"), {"supervisor": child.supervisor}
    ),
    "reclaimed": lambda child, _: child.queue.supervisor().reclaim(dead=[child.supervisor]),
    "orphaned": lambda child, _: child.queue.run("DELETE FROM jobherd.children") or child.queue.orphans(),
}
"""All ways to end a claimed job that has a cancel request."""


@pytest.mark.parametrize("end", ENDS)
def test_finished_job_that_is_run_again_keeps_its_timeout(queue, end):
    job, child = full(queue), queue.child()
    child.claim(1)
    queue.run("INSERT INTO jobherd.cancels (job) VALUES (%s)", job)
    ENDS[end](child, job)
    again(queue, job)


KEPT = "SELECT array_agg(DISTINCT drop_on - (now() AT TIME ZONE 'UTC')::date) FROM jobherd.{} WHERE {} = %s"


@pytest.fixture(params=["Etc/GMT+12", "Etc/GMT-14"])
def zone(request, monkeypatch):
    """Set the time zone of sessions. At any time, one of the zones has another date than UTC."""
    monkeypatch.setenv("PGTZ", request.param)


@pytest.mark.parametrize("end", ENDS)
def test_finished_job_and_its_attempt_after_a_retry_are_kept_as_long_as_the_kind_declares(zone, queue, end):
    queue.run(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed) VALUES ('a:b', 'media', 0, 5, 3, 3, 3)"
    )
    job, child = full(queue), queue.child()
    child.claim(1)
    queue.run("INSERT INTO jobherd.cancels (job) VALUES (%s)", job)
    ENDS[end](child, job)
    assert queue.run(KEPT.format("history", "id"), job) == [([3],)]
    assert queue.retry(job) == "ready"
    assert queue.run(KEPT.format("attempts", "job"), job) == [([3],)]


@pytest.mark.parametrize("table", ["ready", "scheduled"])
def test_job_canceled_before_it_ran_keeps_its_timeout_when_it_is_run_again(queue, table):
    job = full(queue, table)
    assert queue.cancel(job) == "cancelled"
    again(queue, job)


def again(queue: Queue, job: int) -> None:
    assert queue.run(
        "SELECT timeout, state IN ('completed', 'failed', 'cancelled') FROM jobherd.jobs WHERE id = %s", job
    ) == [(12.5, True)]
    queue.run("SELECT jobherd.enable_webhooks()")  # otherwise the copy of a job with a webhook is rejected
    [[copy]] = queue.run("""SELECT jobherd.retry_edited(%s, '{"n": 2}')""", job)
    assert queue.retry(job) == "ready"
    assert [seen(queue, each)["timeout"] for each in (job, copy)] == [12.5, 12.5]
