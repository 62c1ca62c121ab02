"""A claim whose jobs all completed is settled by its own statement: one for plain jobs, one for members of flows.

Each has the same effect as settle_jobs.sql, or none.
"""

from __future__ import annotations

import logging

import psycopg
import pytest

from jobherd.handlers._values.outcome import OK, Outcome
from jobherd.workers.job.finished import Finished, settlement
from jobherd.workers.job.row import claimed_jobs
from jobherd.workers.settle.settler import Settler
from tests.support.queue import Line, Queue

SHOWN = "state, queue, kind, payload::text, result::text, error_code, error, attempts, crashes, priority, ran_on, usage, progress, drop_on - current_date, finished_at - started_at"

WHOLE = ["settle/settle_completed", "settle/settle_members"]
by_each = pytest.mark.parametrize("statement", WHOLE)


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def child(queue):
    return queue.child()


@pytest.fixture
def line(child):
    return Line(child.connection, child.id)


def spoken(job, **more):
    result = Outcome("ok", result='{"n": 1}') if job.id % 2 else OK
    return Finished(job.id, result, ran=0.25, ended=0.0, keep=3, **more)


def written(line, statement, child, jobs, said):
    return line.run(statement, settlement(child.id, jobs[0].token, said, ran_on="host/1", now=1.0))


def test_statements_for_whole_claims_write_the_same_rows_as_settle_jobs(queue, child, line):
    rows = []
    for statement in ("settle/settle_jobs", *WHOLE):
        queue.enqueue_many("a:b", 4, priority=3)
        jobs = child.claim(4)
        said = [spoken(job, usage='{"cpu_user": 1.5}' if place == 2 else None) for place, job in enumerate(jobs)]
        assert written(line, statement, child, jobs, said)
        assert queue.count("running") == 0
        rows.append(
            queue.run(f"SELECT id %% 2, {SHOWN} FROM jobherd.history WHERE token = %s ORDER BY id", jobs[0].token)
        )
    assert len(rows[0]) == 4
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("statement", ["settle/settle_jobs", *WHOLE])
def test_only_jobs_that_are_kept_get_a_history_row(queue, child, line, statement):
    queue.enqueue_many("a:b", 3)
    jobs = child.claim(3)
    said = [Finished(job.id, OK, ran=0.1, keep=0 if place else 7) for place, job in enumerate(jobs)]
    assert written(line, statement, child, jobs, said)
    assert queue.count("running") == 0
    assert queue.run("SELECT id FROM jobherd.history") == [(jobs[0].id,)]


@by_each
def test_outcomes_for_only_part_of_a_claim_settle_nothing(queue, child, line, statement):
    queue.enqueue_many("a:b", 3)
    jobs = child.claim(3)
    assert written(line, statement, child, jobs, [spoken(job) for job in jobs[:2]]) == []
    assert queue.states([job.id for job in jobs]) == ["running"] * 3


@by_each
def test_outcomes_without_the_claim_settle_nothing(queue, child, line, statement):
    queue.enqueue_many("a:b", 2)
    jobs = child.claim(2)
    said = [spoken(job) for job in jobs]
    assert written(line, statement, queue.child(), jobs, said) == []
    child.release()
    assert written(line, statement, child, jobs, said) == []
    assert queue.states([job.id for job in jobs]) == ["ready"] * 2


@by_each
def test_outcomes_in_another_order_than_the_jobs_are_rejected(queue, child, line, statement):
    queue.enqueue_many("a:b", 3)
    jobs = child.claim(3)
    with pytest.raises(psycopg.errors.NotNullViolation):
        written(line, statement, child, jobs, [spoken(job) for job in reversed(jobs)])
    assert queue.states([job.id for job in jobs]) == ["running"] * 3


@by_each
@pytest.mark.parametrize("keep", [7, 0])
def test_job_without_an_outcome_is_not_settled_in_place_of_another(queue, child, line, keep, statement):
    """claim_more adds a job, its answer is lost, and the supervisor releases another job of the claim.

    The number of jobs is then the same as before.
    """
    queue.enqueue_many("a:b", 2)
    jobs = child.claim(2)
    more = queue.enqueue("a:b")
    token = jobs[0].token
    wanted = {"supervisor": child.supervisor, "child": child.id, "token": token, "kind": "a:b", "wanted": 1}
    assert [row[1] for row in child.connection.execute(queue.text("claim/claim_more"), wanted)] == [more]
    child.settle(token, [jobs[1].id], "abandoned", ran=None)
    with pytest.raises(psycopg.errors.NotNullViolation):
        written(line, statement, child, jobs, [Finished(job.id, OK, ran=0.1, keep=keep) for job in jobs])
    assert queue.states([jobs[0].id, jobs[1].id, more]) == ["running", "ready", "running"]


def test_claim_that_lost_a_job_is_settled_for_the_others_and_the_next_claim_is_kept(queue, child, line, caplog):
    queue.enqueue_many("a:b", 4)
    jobs = child.claim(3)
    child.settle(jobs[0].token, [jobs[2].id], "abandoned", ran=None)  # as when the supervisor releases it
    settler = Settler(line, ran_on="host/1")
    with caplog.at_level(logging.WARNING):
        claimed = settler.settle_and_claim(jobs[0].token, [spoken(job) for job in jobs], child.parameters(1))
    assert queue.states([job.id for job in jobs[:2]]) == ["completed"] * 2
    assert [job.id for job in claimed_jobs(claimed)] == [jobs[2].id]
    assert [record.jobs for record in caplog.records] == [str(jobs[2].id)]
    assert queue.count("running") == 1


def test_settle_and_claim_claims_with_the_given_statement(queue, child, line):
    queue.enqueue_many("a:b", 5)
    jobs = child.claim(1)
    claimed = Settler(line, ran_on="host/1").settle_and_claim(
        jobs[0].token, [spoken(jobs[0])], child.parameters(3), by="claim/claim_job"
    )
    assert (len(claimed), line.exchanges) == (1, 1), "claim_job.sql claims one job, whatever is wanted"


def test_settle_and_claim_normally_takes_one_exchange(queue, child, line):
    queue.enqueue_many("a:b", 5)
    jobs = child.claim(3)
    claimed = Settler(line, ran_on="host/1").settle_and_claim(
        jobs[0].token, [spoken(job) for job in jobs], child.parameters(2)
    )
    assert (len(claimed_jobs(claimed)), line.exchanges) == (2, 1)


@pytest.mark.parametrize("keep", [7, 0])
def test_late_settlement_does_not_change_the_next_claim_of_the_worker(queue, child, line, keep):
    """Kept jobs are distinguished by their ids too; jobs that are not kept only by the token."""
    queue.enqueue_many("a:b", 2)
    first = child.claim(1)
    late = settlement(
        child.id, first[0].token, [Finished(first[0].id, OK, ran=0.1, keep=keep)], ran_on="host/1", now=1.0
    )
    assert line.run("settle/settle_completed", late)
    (second,) = child.claim(1)
    assert line.run("settle/settle_completed", late) == []
    assert queue.state(second.id) == "running"
