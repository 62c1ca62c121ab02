"""What the fleet stores of messages from child processes.

Each test builds a fleet and passes the time as a number.
"""

from __future__ import annotations

from jobherd.workers.ipc.pipes import Problem
from tests.supervisor.policy.story import Story, maintenance


def test_problem_that_every_worker_finds_is_logged_once():
    story = Story()
    story.step()
    for number in (0, 1):
        story.fleet.on_message(story.fleet.slots[number], Problem("mail.py:3: no such module"), story.now)
    assert story.fleet.warnings == ["worker 0: mail.py:3: no such module"]


def test_problem_of_handlers_is_logged_again_only_after_a_child_has_loaded_them():
    story = Story()
    story.step()
    problem = Problem("mail.py:3: no such module")
    story.fleet.on_message(story.fleet.slots[0], problem, story.now)
    story.ready(maintenance(story).number)
    story.fleet.on_message(story.fleet.slots[1], problem, story.now)
    assert len(story.fleet.warnings) == 1, "a ready maintenance process has not loaded the handlers"
    story.ready(1)
    story.fleet.on_message(story.fleet.slots[0], problem, story.now)
    assert len(story.fleet.warnings) == 2, "the handlers have loaded in between"


def test_fleet_is_started_when_no_child_is_booting_anymore():
    story = Story()
    assert not story.fleet.is_started(), "not registered"
    story.step()
    story.ready(0)
    assert not story.fleet.is_started()
    story.ready(1)
    assert not story.fleet.is_started(), "the maintenance process is still booting"
    story.ready(maintenance(story).number)
    assert story.fleet.is_started()
    none = Story(workers=0)
    none.step()
    assert not none.fleet.is_started()
    none.ready(maintenance(none).number)
    assert none.fleet.is_started(), "a fleet without workers waits only for the maintenance process"
    crashing = Story()
    crashing.step()
    crashing.ready(0, maintenance(crashing).number)
    crashing.dies(1)
    assert crashing.fleet.is_started(), "a crashed worker must not delay the start"
