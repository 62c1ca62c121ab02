"""What an exit means for its slot: its cause and the rest before the next fork.

Each test builds a slot table, passes the time as a number, and checks the planned actions.
"""

from __future__ import annotations

import signal

import pytest

from jobherd.supervisor.policy.actions import Fork, Kill
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_RECYCLE, EXIT_REQUESTED
from tests.supervisor.policy.story import Story


def test_slot_rests_longer_after_each_death_without_a_finished_job():
    story = Story().up()
    rests = []
    for _ in range(12):
        story.dies(0)
        story.step()
        rests.append(story.slot_table.slots[0].rest_until - story.now)
        assert Fork not in {type(action) for action in story.step()}  # no other slot is filled in its place
        story.now = story.slot_table.slots[0].rest_until
        assert ("Fork", 0) in story.names()
    assert rests == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0])


def test_slot_rests_longer_after_each_process_that_was_not_ready_in_time():
    story = Story(workers=1, spawn_timeout=10.0)
    slot = story.slot_table.slots[0]
    story.step()
    rests = []
    for _ in range(4):
        assert Kill(slot, signal.SIGKILL) in story.step(10.1)
        assert story.dies(0).cause == "spawn"
        rests.append(slot.rest_until - story.now)
        assert ("Fork", 0) not in story.names()
        story.now = slot.rest_until
        assert ("Fork", 0) in story.names()
    assert rests == pytest.approx([0.1, 0.2, 0.4, 0.8])


def test_killed_worker_that_had_finished_jobs_is_always_replaced_at_once():
    story = Story().up()
    for _ in range(20):
        story.now += 1
        story.dies(0, started=story.slot_table.slots[0].process.started_before + 3)
        assert story.slot_table.slots[0].rest_until - story.now <= 0.1
        story.step(0.1)
        story.ready(0)


def test_child_that_exits_to_be_recycled_is_replaced_without_rest():
    story = Story().up()
    assert story.dies(0, Exit(EXIT_RECYCLE, None)).cause == "recycled"
    assert story.names() == [("Fork", 0)]


def test_unrequested_exit_with_code_0_is_a_failure():
    story = Story().up()
    assert story.dies(0, Exit(EXIT_REQUESTED, None)).cause == "exit"
    assert story.slot_table.slots[0].rest_until > story.now


def test_handlers_that_no_longer_load_only_delay_the_restart():
    story = Story().up()
    story.dies(0)
    story.step(1)
    story.dies(0, Exit(EXIT_HANDLERS, None))
    assert story.slot_table.exit_code is None
    assert story.slot_table.slots[0].rest_until > story.now


def test_failed_fork_is_retried_after_a_rest():
    story = Story()
    slot = story.slot_table.slots[0]
    story.slot_table.on_fork_failed(slot, story.now + 0.1)
    assert ("Fork", 0) not in story.names()
    assert story.wake_at <= story.now + 0.1
    assert ("Fork", 0) in story.names(0.1)
