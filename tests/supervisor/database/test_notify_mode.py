"""When producers notify the supervisor.

The session is real; each test calls its steps and passes the time and the idle flags.
"""

from __future__ import annotations

import time

import psycopg
import pytest

from jobherd.supervisor.database.connection import DatabaseConnection
from jobherd.supervisor.database.notify_mode import NotifyMode, Stage
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.policy.wakeups import BUSY
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.pipes import Ready, WentIdle
from tests.support.patience import LIMIT
from tests.support.queue import Queue


class Parent:
    """A supervisor's session, its notify mode, and one worker whose idle flag the test sets."""

    def __init__(self, dsn):
        self.db = DatabaseConnection(
            dsn, schema="jobherd", application_name="parent", retry_initial=0.05, retry_max=1.0
        )
        self.slot_table, self.control = SlotTable(Limits()), ControlBlock()
        self.notify_mode = NotifyMode(self.db, self.slot_table, self.control, self)
        self.idle = True
        self.slot = next(self.slot_table.workers())
        self.slot_table.on_fork(self.slot, pid=1, incarnation=1, now=0.0, started=0, jitter=0.0)
        self.slot_table.on_message(self.slot, Ready(1, 1), 0.0)

    def turn(self, ahead=0.0):
        now = time.monotonic() + ahead
        self.db.step(now)
        self.notify_mode.step(now)
        self.db.step(now)

    def until(self, condition, ahead=0.0):
        limit = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < limit, (self.notify_mode.stage, self.db.link, self.db.trouble)
            self.turn(ahead)

    def anyone_idle(self):
        return self.idle

    def notified(self):
        return self.notify_mode.stage is Stage.ON

    def be_busy(self):
        self.idle = False
        self.slot_table.on_idle_counts({self.slot.number: (False, self.slot.seen.times_idle)}, time.monotonic())


@pytest.fixture
def parent(database):
    parent = Parent(database)
    yield parent
    parent.db.close()


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def producer(database):
    with psycopg.connect(database) as connection:
        yield connection


def keys(queue):
    """Return the number of sleep keys that are locked."""
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785684584 AND objid BETWEEN 1 AND 16 AND granted"
    return queue.run(held)[0][0]


def look(connection):
    """Insert a job and check the sleep keys, as a commit does."""
    connection.execute("SELECT jobherd.enqueue('a:b')")
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_new_session_takes_the_sleep_keys_and_wakes_idle_workers(parent, queue):
    epoch = parent.control.epoch
    assert not parent.control.notified
    parent.until(parent.notified)
    assert keys(queue) == 16
    assert parent.control.notified
    assert parent.control.epoch > epoch
    assert parent.slot_table.pending_wakeups == 1


def test_notify_mode_waits_for_producers_that_checked_the_keys_before_but_not_for_later_ones(parent, queue, producer):
    look(producer)
    parent.until(lambda: parent.notify_mode.stage is Stage.WAITING)
    assert not parent.control.notified
    assert keys(queue) == 16, "a producer that checks the keys from now on notifies"
    assert parent.slot_table.pending_wakeups == 0
    with psycopg.connect(queue.dsn) as newcomer:
        look(newcomer)
        producer.commit()
        parent.until(parent.notified)
        newcomer.rollback()
    assert parent.slot_table.pending_wakeups == 1


def test_sleep_keys_are_released_while_all_workers_are_busy_and_taken_for_the_next_idle_one(parent, queue):
    parent.until(parent.notified)
    parent.be_busy()
    parent.turn(BUSY / 2)
    assert parent.notified()
    parent.turn(BUSY * 2)
    assert not parent.control.notified
    parent.until(lambda: parent.db.is_quiet, BUSY * 2)
    assert keys(queue) == 0
    assert parent.notify_mode.wake_at(time.monotonic() + BUSY * 2) == float("inf"), "otherwise the loop would spin"
    parent.slot_table.pending_wakeups = 0
    parent.slot_table.on_message(parent.slot, WentIdle(), 0.0)
    parent.until(parent.notified)
    assert (keys(queue), parent.slot_table.pending_wakeups) == (16, 1)


def test_worker_that_goes_idle_during_the_switch_off_keeps_the_sleep_keys(parent, queue):
    parent.until(parent.notified)
    parent.be_busy()
    parent.idle = True
    parent.turn(BUSY * 2)
    assert parent.notified()
    assert parent.control.notified
    assert keys(queue) == 16


def test_notify_mode_can_start_again_before_the_keys_are_released(parent, queue):
    parent.until(parent.notified)
    parent.be_busy()
    parent.notify_mode.step(time.monotonic() + 2 * BUSY)
    assert parent.notify_mode.stage is Stage.OFF
    parent.slot_table.on_message(parent.slot, WentIdle(), 0.0)  # both requests are queued, in this order
    parent.until(parent.notified)
    assert keys(queue) == 16


@pytest.mark.parametrize("stage", [Stage.ON, Stage.WAITING])
def test_lost_session_releases_the_sleep_keys_and_the_next_one_takes_them(parent, queue, producer, stage):
    if stage is Stage.WAITING:
        look(producer)
    parent.until(lambda: parent.notify_mode.stage is stage)
    epoch, calls = parent.db.epoch, parent.slot_table.pending_wakeups
    queue.run("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'parent'")
    assert keys(queue) == 0
    producer.rollback()
    parent.until(lambda: parent.notify_mode.stage is Stage.OFF)
    assert not parent.control.notified
    parent.until(parent.notified)
    assert parent.db.epoch > epoch
    assert keys(queue) == 16
    assert parent.slot_table.pending_wakeups == calls + 1


def test_rejected_request_for_the_sleep_keys_is_repeated(parent, queue):
    queue.run("ALTER FUNCTION pg_catalog.pg_advisory_lock_shared(int, int) RENAME TO gone")
    parent.until(lambda: any(event.statement == "wake/enable_notify" for event in parent.db.happened))
    assert parent.notify_mode.stage is Stage.OFF
    queue.run("ALTER FUNCTION pg_catalog.gone(int, int) RENAME TO pg_advisory_lock_shared")
    parent.until(parent.notified)
