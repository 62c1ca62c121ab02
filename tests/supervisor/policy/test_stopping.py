"""When and how the supervisor stops a child process.

Each test builds a slot table, passes the time as a number, and checks the planned actions.
"""

from __future__ import annotations

import signal

from jobherd.supervisor.policy.actions import Interrupt, Kill, WakeChild
from jobherd.supervisor.policy.stop_sequence import Stage, StopReason
from jobherd.workers.ipc.current_work import CurrentWork, Interruption, Phase, Reason
from tests.supervisor.policy.story import Story, maintenance


def test_child_that_is_not_ready_in_time_is_killed_but_not_while_the_database_is_down():
    story = Story()
    story.step()
    story.slot_table.on_database_down()
    assert story.step(60) == []
    story.slot_table.on_database_up(story.now)
    assert {type(action) for action in story.step()} == {WakeChild}
    assert story.step(9.9) == []
    kills = story.step(0.2)
    assert {(type(action), action.signum) for action in kills} == {(Kill, signal.SIGKILL)}
    assert len(kills) == 3
    assert story.dies(0).cause == "spawn"


def test_process_stopped_between_two_jobs_is_killed_unless_it_continues_in_time():
    story = Story().up()
    story.idle(0, 1)
    stopped, other = story.slot_table.slots[:2]
    for slot in (stopped, other):
        story.slot_table.on_stopped(slot, signal.SIGSTOP, story.now)
    assert f"kill -CONT {stopped.process.pid}" in story.slot_table.warnings[0]
    assert story.step() == []
    assert story.wake_at <= story.now + 10
    assert story.step(9.9) == []
    story.slot_table.on_continued(other)
    assert story.step(0.2) == [Kill(stopped, signal.SIGKILL), WakeChild(other)]
    assert story.step(60) == []
    death = story.dies(0)
    assert death.cause == "stopped"
    assert ("Fork", 0) in story.names(1)
    assert not stopped.process.stopped_at, "the new process was not stopped"


def test_process_stopped_during_a_job_is_killed_after_the_jobs_timeout():
    story = Story().up()
    slot = story.runs(0, deadline=story.now + 100)
    story.slot_table.on_stopped(slot, signal.SIGSTOP, story.now)
    assert story.step(99) == []
    assert story.step(12)[-1] == Kill(slot, signal.SIGKILL)
    assert story.dies(0).cause == "timeout"


def test_stopped_maintenance_process_is_replaced_too():
    story = Story().up()
    story.slot_table.on_stopped(maintenance(story), signal.SIGSTOP, story.now)
    assert story.step(10) == [Kill(maintenance(story), signal.SIGKILL)]


def test_job_past_its_timeout_is_terminated_and_then_killed():
    story = Story().up()
    slot = story.runs(0, deadline=story.now + 10)
    assert story.step() == []
    assert story.wake_at <= story.now + 10
    assert story.step(10) == []  # the child's own timer acts first
    assert story.step(4.9) == []
    assert story.step(0.2) == [Kill(slot, signal.SIGTERM)]
    assert story.step(4.8) == []
    assert story.step(0.2) == [Kill(slot, signal.SIGKILL)]
    assert story.step(5) == []
    assert story.dies(0).stop_sequence.why is StopReason.TIMEOUT


def hooks(story, *, until=0.0):
    story.slot_table.on_status(
        story.slot_table.slots[0], work=CurrentWork(Phase.CLAIMING), started=0, rss=0, hook=until
    )


def test_hook_past_its_timeout_is_terminated_and_then_killed():
    story = Story().up()
    slot = story.slot_table.slots[0]
    hooks(story, until=story.now + 5)
    assert story.step() == []
    assert story.wake_at <= story.now + 5
    assert story.step(5) == []  # the child's own timer acts first
    assert story.step(4.9) == []
    assert story.step(0.2) == [Kill(slot, signal.SIGTERM)]
    assert story.step(5) == [Kill(slot, signal.SIGKILL)]
    death = story.dies(0)
    assert death.cause == "hook"
    assert slot.rest_until > story.now, "without a rest, a hook that always hangs would cause a fork loop"


def test_stop_sequence_of_a_hook_ends_with_the_hook():
    story = Story().up()
    hooks(story, until=story.now + 5)
    story.step(7)
    assert story.slot_table.slots[0].sent.stop.why is StopReason.HOOK
    hooks(story, until=story.now + 5)  # the next hook
    assert story.step() == []
    assert story.slot_table.slots[0].sent.stop is None
    hooks(story)
    assert story.step(20) == []


def test_stop_sequence_ends_with_its_claim():
    story = Story().up()
    story.runs(0, deadline=story.now + 10)
    story.step(12)
    story.runs(0, token=10, deadline=story.now + 100)
    assert story.step() == []
    assert story.slot_table.slots[0].sent.stop is None
    assert story.step(5) == []


def test_canceled_job_is_interrupted_then_terminated_then_killed():
    story = Story().up()
    slot = story.runs(0)
    story.slot_table.on_cancel(incarnation=slot.process.incarnation, token=9, job=5)
    assert story.step() == [Interrupt(slot, Interruption(Reason.CANCEL, 9, 5))]
    story.slot_table.on_cancel(incarnation=slot.process.incarnation, token=9, job=5)
    assert story.step() == []
    assert story.step(5) == [Kill(slot, signal.SIGTERM)]
    assert story.step(5) == [Kill(slot, signal.SIGKILL)]


def test_cancellation_that_has_sent_a_signal_is_not_delayed_by_the_timeout():
    story = Story().up()
    slot = story.runs(0, deadline=story.now + 6)
    story.slot_table.on_cancel(incarnation=slot.process.incarnation, token=9, job=5)
    story.step()
    assert story.step(5) == [Kill(slot, signal.SIGTERM)]
    assert story.step(2) == []
    assert story.step(3) == [Kill(slot, signal.SIGKILL)]
    assert slot.sent.stop.why is StopReason.CANCEL


def test_cancellation_that_arrives_before_the_board_shows_the_claim_is_kept():
    story = Story().up()
    slot = story.runs(0, token=9)
    # the database has the next claim already
    story.slot_table.on_cancel(incarnation=slot.process.incarnation, token=10, job=6)
    story.step()
    story.runs(0, token=9)  # but the board does not show it yet
    story.runs(0, token=10, job=6)
    assert story.step() == [Interrupt(slot, Interruption(Reason.CANCEL, 10, 6))]
    story.runs(0, token=11, job=7)
    assert not slot.seen.cancels, "the canceled job's claim has ended"


def test_canceling_an_unstarted_job_notifies_the_child_and_spares_the_running_job():
    story = Story().up()
    slot = story.runs(0, job=5)
    story.slot_table.on_cancel(incarnation=slot.process.incarnation, token=9, job=6)
    story.slot_table.on_cancel(incarnation=slot.process.incarnation, token=9, job=7)
    assert story.step() == [Interrupt(slot, Interruption(Reason.CANCEL, 9, 6))]
    assert story.wake_at <= story.now + 0.05
    assert story.step(0.05) == [Interrupt(slot, Interruption(Reason.CANCEL, 9, 7))]
    assert story.step(60) == []
    story.runs(0, job=7)  # the worker started the job before it read the message
    assert story.step() == [Interrupt(slot, Interruption(Reason.CANCEL, 9, 7))]
    assert story.step(5) == [Kill(slot, signal.SIGTERM)]


def test_worker_that_waits_to_record_outcomes_is_not_killed_for_the_jobs_timeout():
    story = Story().up()
    slot = story.runs(0, deadline=story.now + 10)
    story.now += 9
    settling = CurrentWork(Phase.SETTLING, 1, 9, 5, 1, 1, 5, 0, story.now - 9, story.now + 1)
    story.slot_table.on_status(slot, work=settling, started=1, rss=0)
    assert story.step(100) == []
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    story.step(1)
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    assert Kill(slot, signal.SIGKILL) in story.step(0) + story.step(1.1)


def test_exclusive_job_is_killed_before_the_lease_can_expire():
    story = Story().up()
    slot = story.runs(0)
    slot.seen.exclusive = True
    story.slot_table.lease_deadline = story.now + 10
    assert story.step(8.9) == []
    assert story.step(0.2) == [Kill(slot, signal.SIGKILL)]


def test_dismissed_child_that_does_not_exit_is_killed():
    story = Story().up()
    story.idle(1)
    story.slot_table.on_signal(signal.SIGTTOU, story.now)
    story.step()
    assert story.step(9) == []
    assert story.step(1.1) == [Kill(story.slot_table.slots[1], signal.SIGKILL)]
    assert story.slot_table.slots[1].sent.stop.stage is Stage.KILLED
