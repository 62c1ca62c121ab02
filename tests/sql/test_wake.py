"""When new jobs notify supervisors with idle workers, and when not.

The transaction that adds the jobs decides, so the tests examine that transaction.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.support.patience import LIMIT
from tests.support.queue import Queue

DOORS = (
    "enqueue",
    "enqueue/enqueue_jobs",
    "insert",
    "copy",
    "retry",
    "maintenance/promote_due",
    "settle/settle_jobs",
    "recover/requeue_child",
)


class Ears:
    """A session that listens. It holds the sleep keys, as with idle workers, only between `sleep` and `wake`."""

    def __init__(self, queue):
        self._queue = queue
        self.connection = psycopg.connect(queue.dsn, autocommit=True)
        queue.opened.append(self.connection)
        self.connection.execute(queue.text("wake/listen_jobs"))

    def sleep(self):
        self.connection.execute(self._queue.text("wake/enable_notify"))

    def wake(self):
        self.connection.execute(self._queue.text("wake/disable_notify"))

    def committing(self, seen=None):
        return [
            row[0]
            for row in self.connection.execute(
                self._queue.text("wake/find_committing_producers"), {"seen": seen}
            ).fetchall()
        ]

    def heard(self):
        """Return the notifications so far.

        PostgreSQL delivers notifications in the order of commits, so the mark sent here is the last.
        """
        self._queue.run("SELECT pg_notify('jobherd_jobs', '@mark')")
        notes = []
        for note in self.connection.notifies(timeout=LIMIT):
            if note.payload == "@mark":
                return notes
            notes.append(note.payload)
        pytest.fail("the mark never came")


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def ears(queue):
    return Ears(queue)


@pytest.fixture
def producer(queue):
    connection = psycopg.connect(queue.dsn)
    queue.opened.append(connection)
    return connection


def enqueue(connection, queue="default"):
    connection.execute("SELECT jobherd.enqueue('a:b', '{}', jsonb_build_object('queue', %s::text))", [queue])


def enter(queue, door):
    """Put a job into `ready` in the given way."""
    match door:
        case "enqueue":
            enqueue(queue.connection)
        case "enqueue/enqueue_jobs":
            queue.enqueue_many("a:b", 3)
        case "insert":
            queue.run("INSERT INTO jobherd.ready (kind) VALUES ('a:b'), ('a:c')")
        case "copy":
            with queue.connection.cursor().copy("COPY jobherd.ready (kind) FROM STDIN") as copy:
                copy.write("a:b\na:c\n")
        case "retry":
            queue.retry(queue.enqueue("a:b", delay=3600))
        case "maintenance/promote_due":
            queue.run("INSERT INTO jobherd.scheduled (kind, run_at) VALUES ('a:b', now() - interval '1 second')")
            assert queue.promote() == 1
        case "settle/settle_jobs" | "recover/requeue_child":
            queue.enqueue("a:b")
            child = queue.child()
            (job,) = child.claim(1)
            assert child.settle(job.token, [job.id], "abandoned") if door == "settle/settle_jobs" else child.release()


@pytest.mark.parametrize("door", DOORS)
def test_without_idle_workers_new_jobs_do_not_notify(queue, ears, door):
    enter(queue, door)
    assert "default" not in ears.heard()


@pytest.mark.parametrize("door", DOORS)
def test_with_idle_workers_each_transaction_notifies_once(queue, ears, door):
    ears.sleep()
    enter(queue, door)
    # These two ways enqueue the job first, which notifies too.
    assert ears.heard().count("default") == (2 if door in {"settle/settle_jobs", "recover/requeue_child"} else 1)


def test_committing_role_needs_no_privileges_on_the_schema(queue, ears, producer):
    """The role calls a SECURITY DEFINER function of the application.

    Before PostgreSQL 18, a deferred trigger runs as the committing role.
    """
    ears.sleep()
    producer.execute(
        "CREATE FUNCTION public.order_receipt() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ SELECT jobherd.enqueue('a:b') $$"
    )
    producer.commit()
    # Every server has this role. It has no privileges on this schema.
    producer.execute("SET ROLE pg_monitor")
    producer.commit()
    producer.execute("SELECT public.order_receipt()")
    producer.commit()
    assert ears.heard() == ["default"]


@pytest.mark.parametrize("isolation", psycopg.IsolationLevel)
def test_scheduled_job_that_is_the_earliest_at_its_commit_notifies(queue, ears, producer, isolation):
    """The maintenance process has queried meanwhile, and would otherwise wait until its next poll."""
    first = queue.enqueue("a:b", delay=3600)
    assert ears.heard() == ["@due"]
    producer.isolation_level = isolation
    producer.execute("SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": 7200}')")
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s' WHERE id = %s", first)
    assert queue.promote() == 1
    assert queue.run(queue.text("maintenance/find_next_due")) == []
    producer.commit()
    assert ears.heard() == ["@due"]


def test_supervisor_with_idle_workers_notifies_itself(queue, ears):
    """The supervisor releases jobs in the session that holds its sleep keys, and its own keys do not conflict."""
    ears.sleep()
    enqueue(ears.connection)
    assert ears.heard() == ["default"]
    ears.wake()
    enqueue(ears.connection)
    assert ears.heard() == []


def test_transaction_notifies_once_for_each_queue_in_any_order_of_rows(queue, ears, producer):
    ears.sleep()
    for name in ("default", "mail", "default", "mail", "media", "default"):
        enqueue(producer, name)
    producer.commit()
    assert sorted(ears.heard()) == ["default", "mail", "media"]
    enqueue(producer, "mail")
    producer.commit()
    assert ears.heard() == ["mail"], "the note of one transaction does not affect the next"


def test_queue_whose_name_is_part_of_another_name_is_notified_too(queue, ears, producer):
    ears.sleep()
    for name in ("mail.eu", "mail", "ail", "eu"):
        enqueue(producer, name)
    producer.commit()
    assert sorted(ears.heard()) == ["ail", "eu", "mail", "mail.eu"]


@pytest.mark.parametrize("how", ["wake/disable_notify", "the session ends"])
def test_notifications_stop_when_no_supervisor_has_idle_workers(queue, ears, how):
    other, another = Ears(queue), Ears(queue)
    other.sleep()
    another.sleep()
    for sleeper, left in ((other, ["default"]), (another, [])):
        if how == "wake/disable_notify":
            sleeper.wake()
        else:
            backend = sleeper.connection.info.backend_pid
            sleeper.connection.close()
            queue.run(
                "SELECT pg_terminate_backend(%s, 10000)", backend
            )  # waits until the session ends; it may have ended already
        enqueue(queue.connection)
        assert ears.heard() == left


@pytest.mark.parametrize("isolation", psycopg.IsolationLevel)
def test_idle_workers_at_the_commit_decide_whether_it_notifies(ears, producer, isolation):
    producer.isolation_level = isolation
    enqueue(producer)
    ears.sleep()
    producer.commit()
    assert ears.heard() == ["default"]
    enqueue(producer)
    ears.wake()
    producer.commit()
    assert ears.heard() == []


def test_rolled_back_savepoint_neither_notifies_nor_suppresses_a_notification(ears, producer):
    ears.sleep()
    enqueue(producer, "first")
    for kept in (False, True, False):
        with producer.transaction(force_rollback=not kept):
            enqueue(producer, "inner")
    with producer.transaction(force_rollback=True):
        enqueue(producer, "gone")
    with producer.transaction(force_rollback=True):
        with producer.transaction():
            enqueue(producer, "last")
    enqueue(producer, "last")
    producer.commit()
    assert sorted(ears.heard()) == ["first", "inner", "last"]


def test_caught_error_does_not_suppress_a_notification(ears, producer):
    ears.sleep()
    producer.execute(
        """DO $$ BEGIN
               BEGIN PERFORM jobherd.enqueue('a:b'); RAISE EXCEPTION 'no'; EXCEPTION WHEN raise_exception THEN END;
               PERFORM jobherd.enqueue('a:b');
           END $$"""
    )
    producer.commit()
    assert ears.heard() == ["default"]


def test_only_one_of_many_rows_runs_the_deferred_trigger(queue, ears):
    ears.sleep()
    queue.run("SET track_functions = 'pl'")
    with queue.connection.transaction():
        for _ in range(3):
            queue.enqueue_many("a:b", 10_000)
    queue.run("SELECT pg_stat_force_next_flush()")
    assert ears.heard() == ["default"]
    assert queue.run("SELECT calls FROM pg_stat_user_functions WHERE funcname = 'wake_sleepers'") == [(1,)]


def test_job_that_is_canceled_before_its_commit_still_notifies(ears, producer):
    ears.sleep()
    producer.execute("SELECT jobherd.cancel(jobherd.enqueue('a:b'))")
    producer.commit()
    assert ears.heard() == ["default"]


def test_producer_is_in_the_gate_from_its_check_until_its_jobs_are_visible(queue, ears, producer):
    assert ears.committing() == []
    enqueue(producer)
    assert ears.committing() == [], "the producer checks only at its commit"
    producer.execute("SET CONSTRAINTS ALL IMMEDIATE")  # runs the check of the commit before the commit
    (seen,) = ears.committing()
    with psycopg.connect(queue.dsn) as newcomer:
        enqueue(newcomer)
        newcomer.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert len(ears.committing()) == 2
        assert ears.committing([seen]) == [seen], "a later session is not waited for"
        producer.commit()
        assert queue.count("ready") == 1
        assert ears.committing([seen]) == []
        enqueue(producer)
        producer.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert ears.committing([seen]) == [], "nor is the next transaction of the same session"
        newcomer.rollback()
        producer.rollback()
    assert ears.committing() == []


def test_producer_keeps_no_advisory_lock(queue, producer):
    enqueue(producer)
    producer.commit()
    assert queue.run("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]


def test_producer_that_cannot_enter_the_gate_notifies_and_does_not_wait(queue, ears, producer):
    queue.run("SELECT pg_advisory_lock(1785684584, 0)")
    enqueue(producer)
    producer.commit()
    assert ears.heard() == ["default"]
