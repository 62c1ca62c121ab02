"""Every policy of the parent, as a fleet, a number for now, and a list of actions.

No process, no clock.
"""

from __future__ import annotations

import signal

import pytest

from jobherd.supervisor.policy.actions import Dismiss, Finish, Fork, Interrupt, Kill, WakeChild
from jobherd.supervisor.policy.deaths import Exit
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.shutdown import PATIENCE_WITH_DATABASE
from jobherd.supervisor.policy.slot import ChildLimits, State
from jobherd.supervisor.policy.stop_sequence import Stage, StopReason
from jobherd.supervisor.policy.wakeups import BUSY, wants_notify
from jobherd.workers.ipc.current_work import CurrentWork, Interruption, Phase, Reason
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_WORN, MoreWork, Problem, WentIdle
from tests.supervisor.policy.story import LEFT, Story


def maintenance(story):
    return next(slot for slot in story.fleet.slots if slot.kind.name == "maintenance")


def test_forks_what_is_wanted_once_it_is_registered():
    story = Story()
    story.fleet.on_registered(0)
    assert story.step() == []
    story.fleet.on_registered(1)
    assert story.names() == [("Fork", 0), ("Fork", 1), ("Fork", maintenance(story).number)]
    assert all(not isinstance(action, Fork) for action in story.step())


@pytest.mark.promise("E25")
def test_one_call_wakes_one_idle_child_and_a_nudge_on_its_way_counts_as_taken():
    story = Story().up()
    story.idle(0, 1)
    story.fleet.request_wakeups()
    assert story.names() == [("WakeChild", 0)]
    story.idle(0, 1)  # its board does not show the claim yet
    story.fleet.request_wakeups()
    assert story.names() == [("WakeChild", 1)]
    story.idle(0, claims=2)
    story.fleet.request_wakeups()
    assert story.names() == [("WakeChild", 0)]


def test_a_call_that_nobody_can_take_is_not_kept_for_the_busy_look_again_themselves():
    story = Story().up()
    story.fleet.request_wakeups(3)
    assert story.step() == []
    assert story.fleet.pending_wakeups == 0


def test_more_wakes_the_next():
    story = Story().up()
    story.idle(0, 1)
    story.fleet.on_message(story.fleet.slots[0], MoreWork(), story.now)
    assert story.names() == [("WakeChild", 0)]


def test_everybody_is_woken_when_the_database_is_back():
    story = Story().up()
    story.fleet.on_database_down()
    story.fleet.on_database_up(story.now)
    assert {name for name, _ in story.names()} == {"WakeChild"}


def test_a_child_that_is_not_ready_in_time_is_killed_but_not_while_the_database_is_away():
    story = Story()
    story.step()
    story.fleet.on_database_down()
    assert story.step(60) == []
    story.fleet.on_database_up(story.now)
    assert {type(action) for action in story.step()} == {WakeChild}
    assert story.step(9.9) == []
    kills = story.step(0.2)
    assert {(type(action), action.signum) for action in kills} == {(Kill, signal.SIGKILL)}
    assert len(kills) == 3
    assert story.dies(0).cause == "spawn"


def test_one_that_somebody_stopped_between_two_jobs_is_killed_unless_it_goes_on_in_time():
    story = Story().up()
    story.idle(0, 1)
    stopped, other = story.fleet.slots[:2]
    for slot in (stopped, other):
        story.fleet.on_stopped(slot, signal.SIGSTOP, story.now)
    assert f"kill -CONT {stopped.process.pid}" in story.fleet.warnings[0]
    assert story.step() == []
    assert story.wake_at <= story.now + 10
    assert story.step(9.9) == []
    story.fleet.on_continued(other)
    assert story.step(0.2) == [Kill(stopped, signal.SIGKILL), WakeChild(other)]
    assert story.step(60) == []
    death = story.dies(0)
    assert death.cause == "stopped"
    assert ("Fork", 0) in story.names(1)
    assert not stopped.process.stopped_at, "it was another one that was stopped"


def test_one_that_is_stopped_is_not_called_until_it_goes_on():
    story = Story().up()
    stopped = story.fleet.slots[0]
    story.fleet.on_stopped(stopped, signal.SIGSTOP, story.now)
    story.idle(0, 1)
    story.fleet.request_wakeups()
    assert story.names() == [("WakeChild", 1)]
    story.fleet.on_continued(stopped)
    story.idle(0)
    assert story.names() == [("WakeChild", 0)]


def test_one_that_was_stopped_in_a_job_has_the_time_of_that_job():
    story = Story().up()
    slot = story.runs(0, deadline=story.now + 100)
    story.fleet.on_stopped(slot, signal.SIGSTOP, story.now)
    assert story.step(99) == []
    assert story.step(12)[-1] == Kill(slot, signal.SIGKILL)
    assert story.dies(0).cause == "timeout"


def test_a_maintenance_process_that_somebody_stopped_is_replaced_too():
    story = Story().up()
    story.fleet.on_stopped(maintenance(story), signal.SIGSTOP, story.now)
    assert story.step(10) == [Kill(maintenance(story), signal.SIGKILL)]


def test_the_timeout_ladder():
    story = Story().up()
    slot = story.runs(0, deadline=story.now + 10)
    assert story.step() == []
    assert story.wake_at <= story.now + 10
    assert story.step(10) == []  # the child's own timer
    assert story.step(4.9) == []
    assert story.step(0.2) == [Kill(slot, signal.SIGTERM)]
    assert story.step(4.8) == []
    assert story.step(0.2) == [Kill(slot, signal.SIGKILL)]
    assert story.step(5) == []
    assert story.dies(0).stop_sequence.why is StopReason.TIMEOUT


def hooks(story, *, until=0.0):
    story.fleet.on_status(story.fleet.slots[0], work=CurrentWork(Phase.CLAIMING), started=0, rss=0, hook=until)


def test_a_hook_between_two_jobs_has_a_ladder_too():
    story = Story().up()
    slot = story.fleet.slots[0]
    hooks(story, until=story.now + 5)
    assert story.step() == []
    assert story.wake_at <= story.now + 5
    assert story.step(5) == []  # the child's own timer
    assert story.step(4.9) == []
    assert story.step(0.2) == [Kill(slot, signal.SIGTERM)]
    assert story.step(5) == [Kill(slot, signal.SIGKILL)]
    death = story.dies(0)
    assert death.cause == "hook"
    assert slot.rest_until > story.now, "one that hangs each time is not forked without a rest"


def test_it_ends_with_its_hook():
    story = Story().up()
    hooks(story, until=story.now + 5)
    story.step(7)
    assert story.fleet.slots[0].sent.stop.why is StopReason.HOOK
    hooks(story, until=story.now + 5)  # the next one
    assert story.step() == []
    assert story.fleet.slots[0].sent.stop is None
    hooks(story)
    assert story.step(20) == []


def test_a_ladder_ends_with_its_claim():
    story = Story().up()
    story.runs(0, deadline=story.now + 10)
    story.step(12)
    story.runs(0, token=10, deadline=story.now + 100)
    assert story.step() == []
    assert story.fleet.slots[0].sent.stop is None
    assert story.step(5) == []


def test_a_cancelled_job_climbs_the_same_ladder():
    story = Story().up()
    slot = story.runs(0)
    story.fleet.on_cancel(incarnation=slot.process.incarnation, token=9, job=5)
    assert story.step() == [Interrupt(slot, Interruption(Reason.CANCEL, 9, 5))]
    story.fleet.on_cancel(incarnation=slot.process.incarnation, token=9, job=5)
    assert story.step() == []
    assert story.step(5) == [Kill(slot, signal.SIGTERM)]
    assert story.step(5) == [Kill(slot, signal.SIGKILL)]


def test_a_cancel_on_its_way_is_not_put_off_by_the_timeout():
    story = Story().up()
    slot = story.runs(0, deadline=story.now + 6)
    story.fleet.on_cancel(incarnation=slot.process.incarnation, token=9, job=5)
    story.step()
    assert story.step(5) == [Kill(slot, signal.SIGTERM)]
    assert story.step(2) == []
    assert story.step(3) == [Kill(slot, signal.SIGKILL)]
    assert slot.sent.stop.why is StopReason.CANCEL


def test_a_cancel_that_is_heard_before_the_board_shows_the_claim_is_not_forgotten():
    story = Story().up()
    slot = story.runs(0, token=9)
    # the database knows of its next claim already
    story.fleet.on_cancel(incarnation=slot.process.incarnation, token=10, job=6)
    story.step()
    story.runs(0, token=9)  # and the board does not yet
    story.runs(0, token=10, job=6)
    assert story.step() == [Interrupt(slot, Interruption(Reason.CANCEL, 10, 6))]
    story.runs(0, token=11, job=7)
    assert not slot.seen.cancels, "its claim is over"


def test_cancelling_a_job_that_has_not_started_tells_the_child_and_spares_the_one_that_runs():
    story = Story().up()
    slot = story.runs(0, job=5)
    story.fleet.on_cancel(incarnation=slot.process.incarnation, token=9, job=6)
    story.fleet.on_cancel(incarnation=slot.process.incarnation, token=9, job=7)
    assert story.step() == [Interrupt(slot, Interruption(Reason.CANCEL, 9, 6))]
    assert story.wake_at <= story.now + 0.05
    assert story.step(0.05) == [Interrupt(slot, Interruption(Reason.CANCEL, 9, 7))]
    assert story.step(60) == []
    story.runs(0, job=7)  # it started it all the same: it had not heard in time
    assert story.step() == [Interrupt(slot, Interruption(Reason.CANCEL, 9, 7))]
    assert story.step(5) == [Kill(slot, signal.SIGTERM)]


def test_a_child_that_waits_for_the_database_to_settle_is_not_killed_for_its_timeout():
    story = Story().up()
    slot = story.runs(0, deadline=story.now + 10)
    story.now += 9
    settling = CurrentWork(Phase.SETTLING, 1, 9, 5, 1, 1, 5, 0, story.now - 9, story.now + 1)
    story.fleet.on_status(slot, work=settling, started=1, rss=0)
    assert story.step(100) == []
    story.fleet.on_signal(signal.SIGTERM, story.now)
    story.step(1)
    story.fleet.on_signal(signal.SIGTERM, story.now)
    assert Kill(slot, signal.SIGKILL) in story.step(0) + story.step(1.1)


def test_drain_dismisses_lets_finish_and_cuts_off_at_the_end():
    story = Story(drain_timeout=60.0).up()
    busy = story.runs(0)
    story.idle(1)
    story.fleet.on_signal(signal.SIGTERM, story.now)
    assert story.names() == [("Dismiss", 0), ("Dismiss", 1)]
    story.dies(1, LEFT)
    story.fleet.unrecovered.pop()
    assert story.step(30) == []
    assert story.step(30) == [Interrupt(busy, Interruption(Reason.DRAIN, 9, 5))]
    assert story.step(5) == [Kill(busy, signal.SIGTERM)]
    assert story.step(5) == [Kill(busy, signal.SIGKILL)]
    assert story.dies(0).cause == "drain"
    assert story.step() == []  # its job is not given back yet
    story.fleet.unrecovered.pop()
    assert story.step() == [Dismiss(maintenance(story))]
    story.dies(maintenance(story).number, LEFT)
    story.fleet.unrecovered.pop()
    assert story.step() == [Finish(0)]


def test_a_second_term_hands_back_fast_but_an_echo_of_the_first_does_not():
    story = Story().up()
    busy = story.runs(0)
    story.fleet.on_signal(signal.SIGTERM, story.now)
    story.fleet.on_signal(signal.SIGINT, story.now + 0.2)
    assert story.fleet.run_state is RunState.DRAINING
    story.step()
    story.now += 1
    story.fleet.on_signal(signal.SIGTERM, story.now)
    assert story.fleet.run_state is RunState.FAST_SHUTDOWN
    assert Interrupt(busy, Interruption(Reason.DRAIN, 9, 5)) in story.step()
    assert Kill(busy, signal.SIGTERM) in story.step(0.5)
    assert Kill(busy, signal.SIGKILL) in story.step(0.5)


def test_a_second_word_counts_from_half_a_second_after_the_first_however_many_come_between():
    story = Story().up()
    story.runs(0)
    for after in (0.0, 0.001, 0.02, 0.1, 0.3, 0.499):
        for signum in (signal.SIGTERM, signal.SIGINT):
            story.fleet.on_signal(signum, story.now + after)
        assert story.fleet.run_state is RunState.DRAINING
    for after in (0.5, 0.501, 0.9, 1.1):
        story.fleet.on_signal(signal.SIGINT, story.now + after)
        assert story.fleet.run_state is RunState.FAST_SHUTDOWN
    story.fleet.on_signal(signal.SIGQUIT, story.now + 1.2)
    for after in (1.201, 1.7):
        story.fleet.on_signal(signal.SIGTERM, story.now + after)
        assert story.fleet.run_state is RunState.IMMEDIATE_SHUTDOWN


def test_quit_kills_everybody_now():
    story = Story().up()
    story.fleet.on_signal(signal.SIGQUIT, story.now)
    killed = [
        action.slot.number for action in story.step() if isinstance(action, Kill) and action.signum is signal.SIGKILL
    ]
    assert killed == [0, 1, maintenance(story).number]


def test_leaving_does_not_wait_for_a_database_that_is_away():
    story = Story().up()
    story.runs(0)
    story.fleet.on_signal(signal.SIGTERM, story.now)
    story.step()
    story.fleet.on_database_down()
    story.dies(0)
    story.dies(1, LEFT)
    assert story.step() == []
    assert story.step(3.1) == [Dismiss(maintenance(story))]
    assert story.step(9) == []
    assert story.step(1.1) == [Kill(maintenance(story), signal.SIGKILL)], "it may hang for ever, and holds nothing"


def test_a_maintenance_process_that_hangs_is_not_waited_for_anew_with_each_session():
    """Somebody locks a table.

    The maintenance process's statement waits, and so do ours, whose session is made anew every few seconds.
    """
    story = Story().up()
    story.fleet.on_signal(signal.SIGTERM, story.now)
    story.step()
    story.dies(0, LEFT)
    story.dies(1, LEFT)
    story.fleet.unrecovered.clear()
    assert story.step() == [Dismiss(maintenance(story))]
    for _ in range(3):
        story.fleet.on_database_down()
        assert story.step(0.5) == []
        story.fleet.on_database_up(story.now)
        assert story.step(2.5) == []
    assert story.step(1.1) == [Kill(maintenance(story), signal.SIGKILL)]


@pytest.mark.promise("C31")
def test_a_database_that_is_given_up_is_a_drain_that_does_not_end_with_0():
    story = Story().up()
    story.fleet.on_database_down()
    for _ in range(2):
        story.fleet.on_database_failed()
        story.step()
    assert story.fleet.run_state is RunState.DRAINING
    assert len(story.fleet.warnings) == 1
    for slot in [slot for slot in story.fleet.alive() if slot.kind.works]:
        story.dies(slot.number, LEFT)
    story.fleet.unrecovered.clear()
    story.step()
    story.dies(maintenance(story).number, LEFT)
    story.fleet.unrecovered.clear()
    assert story.step() == [Finish(69)]


def test_who_is_told_twice_waits_for_no_database():
    story = Story().up()
    for _ in range(2):
        story.fleet.on_signal(signal.SIGTERM, story.now)
        story.now += 1
    story.step()
    story.dies(0, LEFT)
    story.dies(1, LEFT)  # and the database, which is there, refuses to say what became of their jobs
    assert story.step(1) == []
    assert story.step(2.1) == [Dismiss(maintenance(story))]
    assert story.step(0.5) == [Kill(maintenance(story), signal.SIGTERM)]
    assert story.step(0.5) == [Kill(maintenance(story), signal.SIGKILL)]


def test_a_call_that_went_to_a_child_which_died_of_it_goes_to_the_next():
    story = Story().up()
    story.idle(0, 1)
    story.fleet.request_wakeups()
    assert story.step() == [WakeChild(story.fleet.slots[0])]
    story.dies(0)
    assert WakeChild(story.fleet.slots[1]) in story.step()


def test_a_dead_child_is_replaced_and_rests_longer_while_it_gets_nowhere():
    story = Story().up()
    rests = []
    for _ in range(12):
        story.dies(0)
        story.step()
        rests.append(story.fleet.slots[0].rest_until - story.now)
        assert Fork not in {type(action) for action in story.step()}  # no other slot is filled in its place
        story.now = story.fleet.slots[0].rest_until
        assert ("Fork", 0) in story.names()
    assert rests == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0])


def test_a_child_that_has_finished_work_is_back_at_once_however_often_it_is_killed():
    story = Story().up()
    for _ in range(20):
        story.now += 1
        story.dies(0, started=story.fleet.slots[0].process.started_before + 3)
        assert story.fleet.slots[0].rest_until - story.now <= 0.1
        story.step(0.1)
        story.ready(0)


def test_handlers_that_do_not_load_stop_a_supervisor_that_never_served():
    story = Story()
    story.step()
    story.ready(maintenance(story).number)
    for slot in [slot for slot in story.fleet.alive() if slot.kind.works]:
        story.dies(slot.number, Exit(EXIT_HANDLERS, None))
        story.step()  # the others are dismissed at once, and say the same thing on their way out
    story.fleet.unrecovered.clear()
    assert story.step() == [Dismiss(maintenance(story))]
    story.dies(maintenance(story).number, LEFT)
    story.fleet.unrecovered.clear()
    assert story.step() == [Finish(78)]
    assert set(story.fleet.deaths) == {"handlers", "left"}


def test_a_problem_that_every_worker_finds_is_said_once():
    story = Story()
    story.step()
    for number in (0, 1):
        story.fleet.on_message(story.fleet.slots[number], Problem("mail.py:3: no such module"), story.now)
    assert story.fleet.warnings == ["worker 0: mail.py:3: no such module"]


def test_handlers_that_do_not_load_later_only_back_off():
    story = Story().up()
    story.dies(0)
    story.step(1)
    story.dies(0, Exit(EXIT_HANDLERS, None))
    assert story.fleet.exit_code is None
    assert story.fleet.slots[0].rest_until > story.now


def test_hup_replaces_one_by_one_and_never_goes_below():
    story = Story().up()
    story.fleet.on_signal(signal.SIGHUP, story.now)
    for old, new in ((0, 2), (1, 0)):
        assert story.names() == [("Fork", new)]
        assert story.step() == []
        story.ready(new)
        assert story.names() == [("Dismiss", old)]
        story.dies(old, LEFT)
    story.step()
    assert not story.fleet.reloading
    assert sum(slot.counts for slot in story.fleet.workers()) == 2


@pytest.mark.promise("C17", "C18")
def test_a_queue_keeps_its_workers_whoever_is_replaced():
    story = Story(workers=3, reserved=(("high", 1), ("low", 1))).up()

    def served():
        return sorted(slot.process.reserved for slot in story.fleet.workers() if slot.counts)

    assert served() == ["", "high", "low"]
    story.dies(next(slot.number for slot in story.fleet.workers() if slot.process.reserved == "high"))
    story.step(60)
    assert served() == ["", "high", "low"]
    story.up().fleet.on_signal(signal.SIGHUP, story.now)
    for _ in range(3):
        story.up()
        for slot in story.fleet.workers():
            if slot.state is State.LEAVING:
                story.dies(slot.number, LEFT)
    assert served() == ["", "high", "low"]
    assert not story.fleet.reloading


def test_a_call_reaches_everybody_where_the_first_idle_one_may_serve_another_queue():
    story = Story(reserved=(("high", 1),)).up()
    story.idle(0, 1)
    story.fleet.request_wakeups()
    assert story.names() == [("WakeChild", 0), ("WakeChild", 1)]


def test_hup_with_broken_code_leaves_the_old_children_in_place():
    story = Story().up()
    story.fleet.on_signal(signal.SIGHUP, story.now)
    story.step()
    story.dies(2, Exit(EXIT_HANDLERS, None))
    assert story.fleet.exit_code is None
    assert story.step(60) == []
    assert [slot.number for slot in story.fleet.workers() if slot.state is State.READY] == [0, 1]


def test_ttin_and_ttou():
    story = Story().up()
    story.fleet.on_signal(signal.SIGTTIN, story.now)
    assert story.names() == [("Fork", 2)]
    story.ready(2)
    story.fleet.on_signal(signal.SIGTTOU, story.now)
    story.fleet.on_signal(signal.SIGTTOU, story.now)
    assert story.names() == [("Dismiss", 1), ("Dismiss", 2)]


@pytest.mark.parametrize("limit", [{"max_jobs": 100}, {"max_age": 50.0}, {"max_rss": 1000}])
def test_a_worn_child_is_replaced_before_it_leaves(limit):
    story = Story(**limit).up()
    story.now += 51
    slot = story.fleet.slots[0]
    story.fleet.slots[1].limits = ChildLimits(age=1e9)
    story.fleet.on_status(slot, work=None, started=100, rss=1000)
    assert story.names() == [("Fork", 2)]
    assert slot.sent.recycle
    story.ready(2)
    assert story.names() == [("Dismiss", 0)]


def test_a_worn_out_child_that_left_by_itself_is_replaced_without_rest():
    story = Story().up()
    assert story.dies(0, Exit(EXIT_WORN, None)).cause == "worn"
    assert story.names() == [("Fork", 0)]


def test_a_lost_lease_ends_what_runs_and_nobody_is_forked_before_there_is_a_new_one():
    story = Story().up()
    slot = story.runs(0)
    story.fleet.on_lease_lost(story.now)
    actions = story.step()
    assert Interrupt(slot, Interruption(Reason.LOST, 9, 5)) in actions
    assert not any(isinstance(action, Fork) for action in actions)
    assert Kill(slot, signal.SIGKILL) in story.step(1.0)


def test_an_exclusive_job_is_ended_before_the_lease_can_lapse():
    story = Story().up()
    slot = story.runs(0)
    slot.seen.exclusive = True
    story.fleet.lease_deadline = story.now + 10
    assert story.step(8.9) == []
    assert story.step(0.2) == [Kill(slot, signal.SIGKILL)]


def test_one_that_was_dismissed_and_does_not_leave_is_killed():
    story = Story().up()
    story.idle(1)
    story.fleet.on_signal(signal.SIGTTOU, story.now)
    story.step()
    assert story.step(9) == []
    assert story.step(1.1) == [Kill(story.fleet.slots[1], signal.SIGKILL)]
    assert story.fleet.slots[1].sent.stop.stage is Stage.KILLED


def test_the_system_refuses_a_process():
    story = Story()
    slot = story.fleet.slots[0]
    story.fleet.on_fork_failed(slot, story.now + 0.1)
    assert ("Fork", 0) not in story.names()
    assert story.wake_at <= story.now + 0.1
    assert ("Fork", 0) in story.names(0.1)


def looked(story, **idle):
    """The boards were looked at: `w0=(idle, times idle)`."""
    story.fleet.on_idle_counts({int(name[1:]): seen for name, seen in idle.items()}, story.now)


def test_producers_notify_until_every_worker_has_been_busy_for_a_while():
    story = Story().up()
    assert wants_notify(story.fleet, story.now), "before the first look one may be idle"
    looked(story, w0=(False, 0), w1=(False, 0))
    assert wants_notify(story.fleet, story.now + BUSY - 0.01)
    assert not wants_notify(story.fleet, story.now + BUSY)


@pytest.mark.parametrize("w1", [(True, 4), (False, 4)], ids=["is idle", "has been idle since the last look"])
def test_a_worker_that_was_idle_begins_the_while_anew(w1):
    story = Story().up()
    looked(story, w0=(False, 0), w1=(False, 3))
    looked(story, w0=(False, 0), w1=(False, 3))
    story.now += 0.1
    looked(story, w0=(False, 0), w1=w1)
    assert wants_notify(story.fleet, story.now + 10)
    looked(story, w0=(False, 0), w1=(False, w1[1]))
    assert not wants_notify(story.fleet, story.now + BUSY)


def test_one_that_says_it_is_idle_is_heard_at_once_and_a_fleet_without_workers_counts_as_idle():
    story = Story().up()
    looked(story, w0=(False, 0), w1=(False, 0))
    story.fleet.on_message(story.fleet.slots[0], WentIdle(), story.now)
    assert wants_notify(story.fleet, story.now + 10)
    looked(story, w0=(False, 0), w1=(False, 0))
    assert not wants_notify(story.fleet, story.now + 10)
    looked(story)
    assert wants_notify(story.fleet, story.now + 10)


def test_once_it_hears_every_idle_worker_is_called_and_nobody_else():
    story = Story(workers=3).up()
    story.idle(0, 2)
    story.fleet.request_all_wakeups()
    assert story.names() == [("WakeChild", 0), ("WakeChild", 2)]
    assert story.names() == []


def test_a_drain_ends_though_the_database_lets_nobody_give_back_the_jobs_of_the_dead():
    """It answers, and a lock on a table that somebody else holds keeps each statement waiting."""
    story = Story(drain_timeout=60.0).up()
    story.runs(0)
    story.fleet.on_signal(signal.SIGTERM, story.now)
    story.step()
    story.dies(0)
    story.dies(1, LEFT)
    assert story.step(30) == [], "there is time"
    assert story.step(30) == []
    story.fleet.on_recovered(next(iter(story.fleet.unrecovered)), story.now + 3)
    assert story.step(PATIENCE_WITH_DATABASE + 2) == [], "one got through: the other may too"
    assert story.wake_at == pytest.approx(story.now + 1)
    assert story.step(1) == [Dismiss(maintenance(story))]


def test_a_start_is_over_when_nobody_is_on_the_way_any_more():
    story = Story()
    assert not story.fleet.is_started(), "not registered"
    story.step()
    story.ready(0)
    assert not story.fleet.is_started()
    story.ready(1)
    assert not story.fleet.is_started(), "the maintenance process"
    story.ready(maintenance(story).number)
    assert story.fleet.is_started()
    none = Story(workers=0)
    none.step()
    assert not none.fleet.is_started()
    none.ready(maintenance(none).number)
    assert none.fleet.is_started(), "nobody who should work is waited for"
    crashing = Story()
    crashing.step()
    crashing.ready(0, maintenance(crashing).number)
    crashing.dies(1)
    assert crashing.fleet.is_started(), "one that crashes again and again keeps nobody waiting"
