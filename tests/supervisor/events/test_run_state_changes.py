"""A change of the run state is announced once, whatever caused it."""

from __future__ import annotations

import signal
import time

import pytest

from jobherd.supervisor.policy.run_state import RunState


def begin(supervisor, cause, now):
    match cause:
        case "a signal":
            supervisor.slot_table.on_signal(signal.SIGTERM, now)
        case "nothing is left":
            supervisor.until_empty.nothing_left = True
        case "the plan":
            supervisor.slot_table.enter_state(RunState.DRAINING, now)


@pytest.mark.parametrize("cause", ["a signal", "nothing is left", "the plan"])
def test_drain_is_announced_once_whatever_caused_it(supervisor, caplog, cause):
    """Without the announcement, a worker would start claimed jobs that it is about to release."""
    caplog.set_level("INFO")
    now = time.monotonic()
    supervisor.run_state.step(now)
    assert not supervisor.control.draining
    assert supervisor.run_state.wake_at(now) == float("inf")
    begin(supervisor, cause, now)
    assert supervisor.run_state.wake_at(now) <= now, "the next turn must plan the workers' exit at once"
    for _ in range(2):
        supervisor.run_state.step(now)
    assert supervisor.control.draining
    assert supervisor.slot_table.run_state is RunState.DRAINING
    assert caplog.text.count("draining: nothing more is claimed") == 1


def test_exit_code_is_1_after_failed_jobs_only_if_the_run_ended_because_nothing_is_left(supervisor, monkeypatch):
    monkeypatch.setattr(supervisor.status_report, "count_failed", lambda: 2)
    assert supervisor.run_state.exit_code(0) == 0, "the run was stopped by a signal"
    supervisor.until_empty.nothing_left = True
    assert supervisor.run_state.exit_code(0) == 1
    assert supervisor.run_state.exit_code(78) == 78
