"""How the supervisor shuts down after signals and failures.

Each test builds a slot table, passes the time as a number, and checks the planned actions.
"""

from __future__ import annotations

import signal

import pytest

from jobherd.supervisor.policy.actions import Dismiss, Finish, Interrupt, Kill
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.shutdown import PATIENCE_WITH_DATABASE
from jobherd.workers.ipc.current_work import Interruption, Reason
from jobherd.workers.ipc.pipes import EXIT_HANDLERS
from tests.supervisor.policy.story import LEFT, Story, maintenance


def test_drain_dismisses_workers_and_stops_running_jobs_after_the_drain_timeout():
    story = Story(drain_timeout=60.0).up()
    busy = story.runs(0)
    story.idle(1)
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    assert story.names() == [("Dismiss", 0), ("Dismiss", 1)]
    story.dies(1, LEFT)
    story.slot_table.unrecovered.pop()
    assert story.step(30) == []
    assert story.step(30) == [Interrupt(busy, Interruption(Reason.DRAIN, 9, 5))]
    assert story.step(5) == [Kill(busy, signal.SIGTERM)]
    assert story.step(5) == [Kill(busy, signal.SIGKILL)]
    assert story.dies(0).cause == "drain"
    assert story.step() == []  # the job of the dead worker is not released yet
    story.slot_table.unrecovered.pop()
    assert story.step() == [Dismiss(maintenance(story))]
    story.dies(maintenance(story).number, LEFT)
    story.slot_table.unrecovered.pop()
    assert story.step() == [Finish(0)]


def test_second_sigterm_stops_running_jobs_but_not_within_half_a_second_of_the_first():
    story = Story().up()
    busy = story.runs(0)
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    story.slot_table.on_signal(signal.SIGINT, story.now + 0.2)
    assert story.slot_table.run_state is RunState.DRAINING
    story.step()
    story.now += 1
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    assert story.slot_table.run_state is RunState.FAST_SHUTDOWN
    assert Interrupt(busy, Interruption(Reason.DRAIN, 9, 5)) in story.step()
    assert Kill(busy, signal.SIGTERM) in story.step(0.5)
    assert Kill(busy, signal.SIGKILL) in story.step(0.5)


def test_signal_to_stop_counts_as_a_second_request_only_half_a_second_after_the_first():
    story = Story().up()
    story.runs(0)
    for after in (0.0, 0.001, 0.02, 0.1, 0.3, 0.499):
        for signum in (signal.SIGTERM, signal.SIGINT):
            story.slot_table.on_signal(signum, story.now + after)
        assert story.slot_table.run_state is RunState.DRAINING
    for after in (0.5, 0.501, 0.9, 1.1):
        story.slot_table.on_signal(signal.SIGINT, story.now + after)
        assert story.slot_table.run_state is RunState.FAST_SHUTDOWN
    story.slot_table.on_signal(signal.SIGQUIT, story.now + 1.2)
    for after in (1.201, 1.7):
        story.slot_table.on_signal(signal.SIGTERM, story.now + after)
        assert story.slot_table.run_state is RunState.IMMEDIATE_SHUTDOWN


def test_sigquit_kills_every_child_at_once():
    story = Story().up()
    story.slot_table.on_signal(signal.SIGQUIT, story.now)
    killed = [
        action.slot.number for action in story.step() if isinstance(action, Kill) and action.signum is signal.SIGKILL
    ]
    assert killed == [0, 1, maintenance(story).number]


def test_shutdown_waits_at_most_three_seconds_for_a_database_that_is_down():
    story = Story().up()
    story.runs(0)
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    story.step()
    story.slot_table.on_database_down()
    story.dies(0)
    story.dies(1, LEFT)
    assert story.step() == []
    assert story.step(3.1) == [Dismiss(maintenance(story))]
    assert story.step(9) == []
    assert story.step(1.1) == [Kill(maintenance(story), signal.SIGKILL)], (
        "the maintenance process may hang indefinitely, but has no jobs"
    )


def test_new_session_does_not_extend_the_time_of_a_hanging_maintenance_process():
    """For example when another client locks a table.

    Statements of the maintenance process and the supervisor wait, and the supervisor reconnects every few seconds.
    """
    story = Story().up()
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    story.step()
    story.dies(0, LEFT)
    story.dies(1, LEFT)
    story.slot_table.unrecovered.clear()
    assert story.step() == [Dismiss(maintenance(story))]
    for _ in range(3):
        story.slot_table.on_database_down()
        assert story.step(0.5) == []
        story.slot_table.on_database_up(story.now)
        assert story.step(2.5) == []
    assert story.step(1.1) == [Kill(maintenance(story), signal.SIGKILL)]


@pytest.mark.promise("C31")
def test_supervisor_drains_and_exits_with_69_after_too_many_failed_connections():
    story = Story().up()
    story.slot_table.on_database_down()
    for _ in range(2):
        story.slot_table.on_database_failed()
        story.step()
    assert story.slot_table.run_state is RunState.DRAINING
    assert len(story.slot_table.warnings) == 1
    for slot in [slot for slot in story.slot_table.alive() if slot.kind.works]:
        story.dies(slot.number, LEFT)
    story.slot_table.unrecovered.clear()
    story.step()
    story.dies(maintenance(story).number, LEFT)
    story.slot_table.unrecovered.clear()
    assert story.step() == [Finish(69)]


def test_fast_shutdown_waits_at_most_three_seconds_to_release_jobs():
    story = Story().up()
    for _ in range(2):
        story.slot_table.on_signal(signal.SIGTERM, story.now)
        story.now += 1
    story.step()
    story.dies(0, LEFT)
    story.dies(1, LEFT)  # the database is up, but the jobs of the dead workers are not recovered
    assert story.step(1) == []
    assert story.step(2.1) == [Dismiss(maintenance(story))]
    assert story.step(0.5) == [Kill(maintenance(story), signal.SIGTERM)]
    assert story.step(0.5) == [Kill(maintenance(story), signal.SIGKILL)]


def test_handlers_that_do_not_load_stop_a_supervisor_that_never_had_a_ready_worker():
    story = Story()
    story.step()
    story.ready(maintenance(story).number)
    for slot in [slot for slot in story.slot_table.alive() if slot.kind.works]:
        story.dies(slot.number, Exit(EXIT_HANDLERS, None))
        story.step()  # the other workers are dismissed at once and exit with the same code
    story.slot_table.unrecovered.clear()
    assert story.step() == [Dismiss(maintenance(story))]
    story.dies(maintenance(story).number, LEFT)
    story.slot_table.unrecovered.clear()
    assert story.step() == [Finish(78)]
    assert set(story.slot_table.deaths) == {"handlers", "requested"}


def test_drain_ends_even_if_a_lock_prevents_releasing_jobs_of_dead_workers():
    """The database is up, but each statement waits for another client's lock on a table."""
    story = Story(drain_timeout=60.0).up()
    story.runs(0)
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    story.step()
    story.dies(0)
    story.dies(1, LEFT)
    assert story.step(30) == [], "the drain timeout has not passed"
    assert story.step(30) == []
    story.slot_table.on_recovered(next(iter(story.slot_table.unrecovered)), story.now + 3)
    assert story.step(PATIENCE_WITH_DATABASE + 2) == [], "one worker was recovered, so the other one may be too"
    assert story.wake_at == pytest.approx(story.now + 1)
    assert story.step(1) == [Dismiss(maintenance(story))]
