"""What the slot table stores of messages from child processes.

Each test builds a slot table and passes the time as a number.
"""

from __future__ import annotations

from jobherd.workers.ipc.pipes import Problem
from tests.supervisor.policy.story import Story, maintenance


def test_problem_that_every_worker_finds_is_logged_once():
    story = Story()
    story.step()
    for number in (0, 1):
        story.slot_table.on_message(story.slot_table.slots[number], Problem("mail.py:3: no such module"), story.now)
    assert story.slot_table.warnings == ["worker 0: mail.py:3: no such module"]


def test_problem_of_handlers_is_logged_again_only_after_a_child_has_loaded_them():
    story = Story()
    story.step()
    problem = Problem("mail.py:3: no such module")
    story.slot_table.on_message(story.slot_table.slots[0], problem, story.now)
    story.ready(maintenance(story).number)
    story.slot_table.on_message(story.slot_table.slots[1], problem, story.now)
    assert len(story.slot_table.warnings) == 1, "a ready maintenance process has not loaded the handlers"
    story.ready(1)
    story.slot_table.on_message(story.slot_table.slots[0], problem, story.now)
    assert len(story.slot_table.warnings) == 2, "the handlers have loaded in between"


def test_supervisor_is_started_when_no_child_is_booting_anymore():
    story = Story()
    assert not story.slot_table.is_started(), "not registered"
    story.step()
    story.ready(0)
    assert not story.slot_table.is_started()
    story.ready(1)
    assert not story.slot_table.is_started(), "the maintenance process is still booting"
    story.ready(maintenance(story).number)
    assert story.slot_table.is_started()
    none = Story(workers=0)
    none.step()
    assert not none.slot_table.is_started()
    none.ready(maintenance(none).number)
    assert none.slot_table.is_started(), "a supervisor without workers waits only for the maintenance process"
    crashing = Story()
    crashing.step()
    crashing.ready(0, maintenance(crashing).number)
    crashing.dies(1)
    assert crashing.slot_table.is_started(), "a crashed worker must not delay the start"
