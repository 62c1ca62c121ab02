"""Which children are forked and dismissed while the supervisor serves.

Each test builds a slot table, passes the time as a number, and checks the planned actions.
"""

from __future__ import annotations

import signal

import pytest

from jobherd.supervisor.policy.actions import Fork, Interrupt, Kill
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.supervisor.policy.slot import ChildLimits, State
from jobherd.workers.ipc.current_work import Interruption, Reason
from jobherd.workers.ipc.pipes import EXIT_HANDLERS
from tests.supervisor.policy.story import LEFT, Story, maintenance


def test_missing_children_are_forked_once_the_supervisor_is_registered():
    story = Story()
    story.slot_table.on_registered(0)
    assert story.step() == []
    story.slot_table.on_registered(1)
    assert story.names() == [("Fork", 0), ("Fork", 1), ("Fork", maintenance(story).number)]
    assert all(not isinstance(action, Fork) for action in story.step())


def test_reload_replaces_workers_one_by_one_and_keeps_the_wanted_number():
    story = Story().up()
    story.slot_table.on_signal(signal.SIGHUP, story.now)
    for old, new in ((0, 2), (1, 0)):
        assert story.names() == [("Fork", new)]
        assert story.step() == []
        story.ready(new)
        assert story.names() == [("Dismiss", old)]
        story.dies(old, LEFT)
    story.step()
    assert not story.slot_table.reloading
    assert sum(slot.is_booting_or_ready for slot in story.slot_table.workers()) == 2


@pytest.mark.promise("C17", "C18")
def test_queue_keeps_its_reserved_workers_when_workers_are_replaced():
    story = Story(workers=3, reserved=(("high", 1), ("low", 1))).up()

    def served():
        return sorted(slot.process.reserved for slot in story.slot_table.workers() if slot.is_booting_or_ready)

    assert served() == ["", "high", "low"]
    story.dies(next(slot.number for slot in story.slot_table.workers() if slot.process.reserved == "high"))
    story.step(60)
    assert served() == ["", "high", "low"]
    story.up().slot_table.on_signal(signal.SIGHUP, story.now)
    for _ in range(3):
        story.up()
        for slot in story.slot_table.workers():
            if slot.state is State.LEAVING:
                story.dies(slot.number, LEFT)
    assert served() == ["", "high", "low"]
    assert not story.slot_table.reloading


def test_reload_of_broken_code_keeps_the_old_workers():
    story = Story().up()
    story.slot_table.on_signal(signal.SIGHUP, story.now)
    story.step()
    story.dies(2, Exit(EXIT_HANDLERS, None))
    assert story.slot_table.exit_code is None
    assert story.step(60) == []
    assert [slot.number for slot in story.slot_table.workers() if slot.state is State.READY] == [0, 1]


def test_sigttin_adds_a_worker_and_sigttou_removes_one():
    story = Story().up()
    story.slot_table.on_signal(signal.SIGTTIN, story.now)
    assert story.names() == [("Fork", 2)]
    story.ready(2)
    story.slot_table.on_signal(signal.SIGTTOU, story.now)
    story.slot_table.on_signal(signal.SIGTTOU, story.now)
    assert story.names() == [("Dismiss", 1), ("Dismiss", 2)]


@pytest.mark.parametrize("limit", [{"max_jobs": 100}, {"max_age": 50.0}, {"max_rss": 1000}])
def test_worker_over_a_limit_is_replaced_before_it_exits(limit):
    story = Story(**limit).up()
    story.now += 51
    slot = story.slot_table.slots[0]
    story.slot_table.slots[1].limits = ChildLimits(age=1e9)
    story.slot_table.on_status(slot, work=None, started=100, rss=1000)
    assert story.names() == [("Fork", 2)]
    assert slot.sent.recycle
    story.ready(2)
    assert story.names() == [("Dismiss", 0)]


def test_lost_lease_stops_jobs_and_prevents_forks_until_the_next_registration():
    story = Story().up()
    slot = story.runs(0)
    story.slot_table.on_lease_lost(story.now)
    actions = story.step()
    assert Interrupt(slot, Interruption(Reason.LOST, 9, 5)) in actions
    assert not any(isinstance(action, Fork) for action in actions)
    assert Kill(slot, signal.SIGKILL) in story.step(1.0)
