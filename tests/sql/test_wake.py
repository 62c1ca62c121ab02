"""Who is notified of new jobs, and when nobody is.

Looked at where it is decided, in the transaction that brings them.
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
    """A session that listens. It sleeps, that is holds the sleep keys, only when told to."""

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
        """What was notified so far.

        Notifications are delivered in the order of commits, so our own mark is the last.
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
    """Bring a job into ready by one of the ways there are."""
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
def test_while_nobody_sleeps_nobody_is_notified(queue, ears, door):
    enter(queue, door)
    assert "default" not in ears.heard()


@pytest.mark.parametrize("door", DOORS)
def test_while_somebody_sleeps_each_transaction_notifies(queue, ears, door):
    ears.sleep()
    enter(queue, door)
    # these come in first
    assert ears.heard().count("default") == (2 if door in {"settle/settle_jobs", "recover/requeue_child"} else 1)


def test_who_commits_may_be_somebody_who_may_do_nothing_here(queue, ears, producer):
    """It calls a function of the application's that runs as its owner.

    Until PostgreSQL 18 what is deferred runs as the committing role.
    """
    ears.sleep()
    producer.execute(
        "CREATE FUNCTION public.order_receipt() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ SELECT jobherd.enqueue('a:b') $$"
    )
    producer.commit()
    # a role that every server has, and to which this schema has granted nothing
    producer.execute("SET ROLE pg_monitor")
    producer.commit()
    producer.execute("SELECT public.order_receipt()")
    producer.commit()
    assert ears.heard() == ["default"]


@pytest.mark.parametrize("isolation", psycopg.IsolationLevel)
def test_a_job_that_was_second_when_it_was_put_in_is_the_first_when_it_is_committed(queue, ears, producer, isolation):
    """The maintenance process has looked meanwhile, and sleeps until its poll."""
    first = queue.enqueue("a:b", delay=3600)
    assert ears.heard() == ["@due"]
    producer.isolation_level = isolation
    producer.execute("SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": 7200}')")
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s' WHERE id = %s", first)
    assert queue.promote() == 1
    assert queue.run(queue.text("maintenance/find_next_due")) == []
    producer.commit()
    assert ears.heard() == ["@due"]


def test_a_sleeper_notifies_itself(queue, ears):
    """The parent gives jobs back through the session that holds its keys, and its own keys do not stop it."""
    ears.sleep()
    enqueue(ears.connection)
    assert ears.heard() == ["default"]
    ears.wake()
    enqueue(ears.connection)
    assert ears.heard() == []


def test_one_notification_for_each_queue_of_a_transaction_however_the_rows_come(queue, ears, producer):
    ears.sleep()
    for name in ("default", "mail", "default", "mail", "media", "default"):
        enqueue(producer, name)
    producer.commit()
    assert sorted(ears.heard()) == ["default", "mail", "media"]
    enqueue(producer, "mail")
    producer.commit()
    assert ears.heard() == ["mail"], "the note of one transaction is not taken for another's"


def test_a_name_within_a_name_is_another_queue(queue, ears, producer):
    ears.sleep()
    for name in ("mail.eu", "mail", "ail", "eu"):
        enqueue(producer, name)
    producer.commit()
    assert sorted(ears.heard()) == ["ail", "eu", "mail", "mail.eu"]


@pytest.mark.parametrize("how", ["wake/disable_notify", "the session ends"])
def test_the_last_sleeper_takes_the_notifications_with_it(queue, ears, how):
    other, another = Ears(queue), Ears(queue)
    other.sleep()
    another.sleep()
    for sleeper, left in ((other, ["default"]), (another, [])):
        if how == "wake/disable_notify":
            sleeper.wake()
        else:
            backend = sleeper.connection.info.backend_pid
            sleeper.connection.close()
            queue.run("SELECT pg_terminate_backend(%s, 10000)", backend)  # waits for its end; it may have ended
        enqueue(queue.connection)
        assert ears.heard() == left


@pytest.mark.parametrize("isolation", psycopg.IsolationLevel)
def test_what_counts_is_who_sleeps_at_the_commit(ears, producer, isolation):
    producer.isolation_level = isolation
    enqueue(producer)
    ears.sleep()
    producer.commit()
    assert ears.heard() == ["default"]
    enqueue(producer)
    ears.wake()
    producer.commit()
    assert ears.heard() == []


def test_a_savepoint_that_is_rolled_back_takes_its_note_with_it(ears, producer):
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


def test_an_error_that_is_caught_takes_its_note_with_it(ears, producer):
    ears.sleep()
    producer.execute(
        """DO $$ BEGIN
               BEGIN PERFORM jobherd.enqueue('a:b'); RAISE EXCEPTION 'no'; EXCEPTION WHEN raise_exception THEN END;
               PERFORM jobherd.enqueue('a:b');
           END $$"""
    )
    producer.commit()
    assert ears.heard() == ["default"]


def test_of_many_rows_one_waits_for_the_commit(queue, ears):
    ears.sleep()
    queue.run("SET track_functions = 'pl'")
    with queue.connection.transaction():
        for _ in range(3):
            queue.enqueue_many("a:b", 10_000)
    queue.run("SELECT pg_stat_force_next_flush()")
    assert ears.heard() == ["default"]
    assert queue.run("SELECT calls FROM pg_stat_user_functions WHERE funcname = 'wake_sleepers'") == [(1,)]


def test_a_job_that_is_gone_at_the_commit_harms_nobody(ears, producer):
    ears.sleep()
    producer.execute("SELECT jobherd.cancel(jobherd.enqueue('a:b'))")
    producer.commit()
    assert ears.heard() == ["default"]


def test_who_has_looked_stands_in_the_gate_until_its_jobs_are_visible(queue, ears, producer):
    assert ears.committing() == []
    enqueue(producer)
    assert ears.committing() == [], "before its commit it has not looked"
    producer.execute("SET CONSTRAINTS ALL IMMEDIATE")  # the look of the commit, and time to look at it
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


def test_a_producer_keeps_no_key(queue, producer):
    enqueue(producer)
    producer.commit()
    assert queue.run("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]


def test_a_producer_that_cannot_enter_the_gate_notifies_and_does_not_wait(queue, ears, producer):
    queue.run("SELECT pg_advisory_lock(1785684584, 0)")
    enqueue(producer)
    producer.commit()
    assert ears.heard() == ["default"]
