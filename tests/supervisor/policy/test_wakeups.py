"""Which idle children are woken, and when producers notify.

Each test builds a slot table, passes the time as a number, and checks the planned actions.
"""

from __future__ import annotations

import os
import signal

import pytest

from jobherd.supervisor.events.poll import Poll
from jobherd.supervisor.policy.actions import WakeChild
from jobherd.supervisor.policy.child_kinds import MAINTENANCE
from jobherd.supervisor.policy.wakeups import BUSY, wants_notify
from jobherd.workers.ipc.pipes import Inbox, MembersEnded, MoreWork, OpensIn, WentIdle, open_pipe, send
from tests.supervisor.policy.story import Story


@pytest.mark.promise("E25")
def test_one_request_wakes_one_idle_child_and_a_wakeup_under_way_counts():
    story = Story().up()
    story.idle(0, 1)
    story.slot_table.request_wakeups()
    assert story.names() == [("WakeChild", 0)]
    story.idle(0, 1)  # the first worker's board does not show its claim yet
    story.slot_table.request_wakeups()
    assert story.names() == [("WakeChild", 1)]
    story.idle(0, claims=2)
    story.slot_table.request_wakeups()
    assert story.names() == [("WakeChild", 0)]


def test_wakeup_request_is_dropped_if_no_child_is_idle():
    story = Story().up()
    story.slot_table.request_wakeups(3)
    assert story.step() == []
    assert story.slot_table.pending_wakeups == 0


def test_worker_that_found_more_work_wakes_the_next():
    story = Story().up()
    story.idle(0, 1)
    story.slot_table.on_message(story.slot_table.slots[0], MoreWork(), story.now)
    assert story.names() == [("WakeChild", 0)]


class Patient:
    """Settings with a poll interval so long that no poll is due."""

    poll = 1e9
    now = property(lambda self: self)


def test_one_worker_is_woken_when_a_rate_limit_opens_and_the_earliest_counts():
    story = Story().up()
    poll = Poll(story.slot_table, Patient())
    poll.step(story.now)
    story.step()
    assert poll.wake_at(story.now) > story.now + 1e6
    for seconds in (5.0, 2.0, 9.0):
        story.slot_table.on_message(story.slot_table.slots[0], OpensIn(seconds), story.now)
    assert poll.wake_at(story.now) == story.now + 2.0
    story.idle(0, 1)
    poll.step(story.now + 1.9)
    assert story.names() == []
    poll.step(story.now + 2.0)
    assert story.names() == [("WakeChild", 0)]
    assert poll.wake_at(story.now) > story.now + 1e6, "the worker reports the next opening"


def test_maintenance_process_is_woken_when_jobs_of_a_flow_have_ended():
    story = Story().up()
    story.slot_table.kinds_to_wake.clear()
    story.slot_table.on_message(story.slot_table.slots[0], MembersEnded(), story.now)
    assert story.slot_table.kinds_to_wake == {MAINTENANCE}


def test_members_ended_message_survives_the_pipe():
    reading, writing = open_pipe()
    send(writing, MembersEnded())
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb"):
        assert Inbox().take(pipe.read(64)) == [MembersEnded()]


def test_opens_in_message_survives_the_pipe():
    reading, writing = open_pipe()
    send(writing, OpensIn(0.25))
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb"):
        assert Inbox().take(pipe.read(64)) == [OpensIn(0.25)]


def test_each_child_is_woken_when_the_database_reconnects():
    story = Story().up()
    story.slot_table.on_database_down()
    story.slot_table.on_database_up(story.now)
    assert {name for name, _ in story.names()} == {"WakeChild"}


def test_stopped_worker_is_not_woken_until_it_continues():
    story = Story().up()
    stopped = story.slot_table.slots[0]
    story.slot_table.on_stopped(stopped, signal.SIGSTOP, story.now)
    story.idle(0, 1)
    story.slot_table.request_wakeups()
    assert story.names() == [("WakeChild", 1)]
    story.slot_table.on_continued(stopped)
    story.idle(0)
    assert story.names() == [("WakeChild", 0)]


def test_wakeup_of_a_dead_child_goes_to_the_next_idle_child():
    story = Story().up()
    story.idle(0, 1)
    story.slot_table.request_wakeups()
    assert story.step() == [WakeChild(story.slot_table.slots[0])]
    story.dies(0)
    assert WakeChild(story.slot_table.slots[1]) in story.step()


def test_request_wakes_each_idle_worker_if_workers_are_reserved():
    story = Story(reserved=(("high", 1),)).up()
    story.idle(0, 1)
    story.slot_table.request_wakeups()
    assert story.names() == [("WakeChild", 0), ("WakeChild", 1)]


def looked(story, **idle):
    """Report a reading of the status boards: `w0=(idle, times idle)`."""
    story.slot_table.on_idle_counts({int(name[1:]): seen for name, seen in idle.items()}, story.now)


def test_producers_notify_until_every_worker_has_been_busy_for_a_while():
    story = Story().up()
    assert wants_notify(story.slot_table, story.now), "before the first reading, a worker may be idle"
    looked(story, w0=(False, 0), w1=(False, 0))
    assert wants_notify(story.slot_table, story.now + BUSY - 0.01)
    assert not wants_notify(story.slot_table, story.now + BUSY)


@pytest.mark.parametrize("w1", [(True, 4), (False, 4)], ids=["is idle", "was idle since the last read"])
def test_idle_worker_restarts_the_time_until_notifications_end(w1):
    story = Story().up()
    looked(story, w0=(False, 0), w1=(False, 3))
    looked(story, w0=(False, 0), w1=(False, 3))
    story.now += 0.1
    looked(story, w0=(False, 0), w1=w1)
    assert wants_notify(story.slot_table, story.now + 10)
    looked(story, w0=(False, 0), w1=(False, w1[1]))
    assert not wants_notify(story.slot_table, story.now + BUSY)


def test_idle_message_counts_at_once_and_a_supervisor_without_workers_counts_as_idle():
    story = Story().up()
    looked(story, w0=(False, 0), w1=(False, 0))
    story.slot_table.on_message(story.slot_table.slots[0], WentIdle(), story.now)
    assert wants_notify(story.slot_table, story.now + 10)
    looked(story, w0=(False, 0), w1=(False, 0))
    assert not wants_notify(story.slot_table, story.now + 10)
    looked(story)
    assert wants_notify(story.slot_table, story.now + 10)


def test_request_for_all_wakeups_wakes_each_idle_worker_once():
    story = Story(workers=3).up()
    story.idle(0, 2)
    story.slot_table.request_all_wakeups()
    assert story.names() == [("WakeChild", 0), ("WakeChild", 2)]
    assert story.names() == []
