"""A job's open transaction: what it locks, and which sessions it must not block."""

from __future__ import annotations

import psycopg
import pytest

from jobherd import sql
from jobherd.workers.stores.session import session_name
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


class Working:
    """A worker with a claim of one job, and that job's transaction."""

    def __init__(self, queue):
        self.queue = queue
        self.child = queue.child()
        queue.enqueue("a:b")
        (self.job,) = self.child.claim(1)
        self.connection = psycopg.connect(queue.dsn)
        queue.opened.append(self.connection)
        self.connection.autocommit = True
        self.connection.execute(queue.text("settle/register_transaction_session"), {"child": self.child.id})
        self.connection.autocommit = False
        self.xact = self.lock(self.job.token)

    def lock(self, token):
        row = self.connection.execute(
            self.queue.text("settle/lock_claim"), {"child": self.child.id, "token": token, "job": self.job.id}
        ).fetchone()
        return None if row is None else row[0]

    def complete(self):
        parameters = self.child.settlement(self.job.token, [self.job.id], "ok", keep=7, ago=0.0)
        return self.connection.execute(self.queue.text("settle/settle_completed"), parameters).fetchall()


@pytest.mark.promise("B11", "B43", "B56")
def test_writes_and_completion_of_a_job_commit_together(queue):
    queue.run("CREATE TABLE public.effects (job bigint)")
    for end, there in (("rollback", []), ("commit", None)):
        one = Working(queue)
        one.connection.execute("INSERT INTO public.effects VALUES (%s)", [one.job.id])
        assert one.complete() == [(1,)]
        assert queue.state(one.job.id) == "running", "the completion is visible only after the commit"
        getattr(one.connection, end)()
        assert queue.run("SELECT * FROM public.effects") == ([(one.job.id,)] if there is None else there)
        assert queue.state(one.job.id) == ("completed" if there is None else "running")


def test_only_the_holder_of_the_claim_can_begin_a_transaction(queue):
    one = Working(queue)
    assert one.xact is not None
    one.connection.rollback()
    assert one.lock(one.job.token + 1) is None
    one.connection.rollback()
    one.child.release()
    assert one.lock(one.job.token) is None


def test_transaction_requires_a_claim_of_only_one_job(queue):
    queue.enqueue_many("a:b", 2)
    child = queue.child()
    first, _ = child.claim(2)
    lock = {"child": child.id, "token": first.token, "job": first.id}
    assert queue.run("SELECT 1") == [(1,)]
    assert child.connection.execute(queue.text("settle/lock_claim"), lock).fetchall() == []
    child.settle(first.token, [first.id], "abandoned")


def test_transaction_blocks_settlement_and_release_of_its_job_but_no_cancel(queue):
    one = Working(queue)
    queue.run("SET lock_timeout = '100ms'")
    assert queue.cancel(one.job.id) == "cancelling"
    one.child.connection.execute("SET lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        one.child.settle(one.job.token, [one.job.id], "retry")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        one.child.release()
    assert one.complete() == [(1,)]
    one.connection.commit()
    assert one.child.settle(one.job.token, [one.job.id], "retry") == [], "fenced: the job is completed"
    assert queue.state(one.job.id) == "completed"


def test_both_sessions_of_a_dead_worker_are_terminated(queue):
    one = Working(queue)
    me = {"supervisor": one.child.supervisor, "incarnation": one.child.incarnation}
    assert queue.connection.execute(queue.text("recover/terminate_child_sessions"), me).fetchone()[0] == 2
    while queue.connection.execute(queue.text("recover/terminate_child_sessions"), me).fetchone()[0]:
        pass
    assert one.child.release() == [one.job.id]
    asked = {"xact": one.xact, "child": one.child.id, "token": one.job.token}
    assert queue.connection.execute(queue.text("settle/find_transaction_state"), asked).fetchone() == ("aborted", False)


def test_only_the_table_session_of_this_database_and_schema_is_terminated(queue, cluster):
    """Children are numbered separately in each database and schema.

    A running worker of another one would lose its record.
    """
    one = Working(queue)
    me = {"supervisor": one.child.supervisor, "incarnation": one.child.incarnation}
    name = session_name(one.child.id, "jobherd")
    with (
        psycopg.connect(queue.dsn, application_name=name, autocommit=True) as ours,
        psycopg.connect(cluster.dsn(), application_name=name, autocommit=True) as theirs,
        psycopg.connect(queue.dsn, application_name=session_name(one.child.id, "other"), autocommit=True) as neighbour,
    ):
        for statement, parameters in (
            ("table/terminate_table_session", {"child": one.child.id}),
            ("recover/terminate_child_sessions", me),
        ):
            while queue.connection.execute(queue.text(statement), parameters).fetchone()[0]:
                pass
        assert theirs.execute("SELECT 1").fetchone() == neighbour.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            ours.execute("SELECT 1")


def test_name_of_a_table_session_contains_its_whole_number():
    """PostgreSQL cuts the name at 63 bytes.

    A child would be mistaken for one whose number starts with the same digits.
    """
    names = {session_name(child, schema) for child in (1, 12, 2**63 - 1) for schema in ("jobherd", "a" * 41, "b" * 41)}
    assert len(names) == len({name[:63] for name in names}) == 9
    schema = "s" * 41
    text = sql.load("table/terminate_table_session", schema)
    assert session_name(7, schema) == f"jobherd:table:{(schema + '.')[:25]}7"
    assert f"left('{schema}.', 25)" in text


def test_reclaim_terminates_a_jobs_transaction_instead_of_waiting_for_it(queue):
    """If the host is gone, PostgreSQL may not notice for hours."""
    one, other = Working(queue), queue.child()
    queue.enqueue("a:b")
    (beside,) = other.claim(1)
    rescuer = queue.supervisor()
    queue.run("SET lock_timeout = '60s'")
    supervisors, jobs = rescuer.reclaim(dead=[one.child.supervisor])
    assert supervisors == 1
    assert jobs >= 1
    assert queue.state(beside.id) == "retrying"
    while queue.run("SELECT 1 FROM pg_stat_activity WHERE pid = %s", one.connection.info.backend_pid):
        pass
    queue.orphans()
    assert queue.state(one.job.id) == "retrying"
    with pytest.raises(psycopg.OperationalError):
        one.complete()


def test_reclaim_skips_a_job_whose_transaction_does_not_end(queue):
    """Its session is stuck, or its process id is not stored."""
    one, other = Working(queue), queue.child()
    queue.run("UPDATE jobherd.children SET transaction_pid = NULL")
    queue.enqueue("a:b")
    (beside,) = other.claim(1)
    rescuer = queue.supervisor()
    queue.run("SET lock_timeout = '300ms'")
    assert rescuer.reclaim(dead=[one.child.supervisor]) == (1, 1)
    assert [queue.state(job) for job in (beside.id, one.job.id)] == ["retrying", "running"]
    assert one.complete() == [(1,)]
    one.connection.commit()
    assert queue.state(one.job.id) == "completed", "the worker still had its claim"


def test_sweep_for_orphans_skips_a_job_whose_transaction_is_open(queue):
    one = Working(queue)
    queue.run("SET lock_timeout = '60s'")
    queue.run("DELETE FROM jobherd.children WHERE id = %s", one.child.id)
    assert queue.orphans() == []
    one.connection.rollback()
    assert queue.orphans() == [one.job.id]
