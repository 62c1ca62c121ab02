"""That a run state is announced once, whatever has changed it."""

from __future__ import annotations

import signal
import time

import pytest

from jobherd.supervisor.policy.run_state import RunState


def begin(supervisor, cause, now):
    match cause:
        case "a signal":
            supervisor.fleet.on_signal(signal.SIGTERM, now)
        case "nothing is left":
            supervisor.until_empty.nothing_left = True
        case "the plan":
            supervisor.fleet.enter_state(RunState.DRAINING, now)


@pytest.mark.parametrize("cause", ["a signal", "nothing is left", "the plan"])
def test_a_drain_is_announced_once_whatever_began_it(supervisor, caplog, cause):
    """Otherwise a worker would start claimed jobs that it is about to release."""
    caplog.set_level("INFO")
    now = time.monotonic()
    supervisor.run_state.step(now)
    assert not supervisor.control.draining
    assert supervisor.run_state.wake_at(now) == float("inf")
    begin(supervisor, cause, now)
    assert supervisor.run_state.wake_at(now) <= now, "the plan of the next turn dismisses the workers"
    for _ in range(2):
        supervisor.run_state.step(now)
    assert supervisor.control.draining
    assert supervisor.fleet.run_state is RunState.DRAINING
    assert caplog.text.count("draining: nothing more is claimed") == 1


def test_a_run_that_ends_because_nothing_is_left_counts_failed_jobs_unless_it_was_told_not_to(supervisor, monkeypatch):
    monkeypatch.setattr(supervisor.status_report, "count_failed", lambda: 2)
    assert supervisor.run_state.exit_code(0) == 0, "it was stopped"
    supervisor.until_empty.nothing_left = True
    assert supervisor.run_state.exit_code(0) == 1
    assert supervisor.run_state.exit_code(78) == 78
