"""When the loop must turn at once, and the order within a turn.

Other tests check the policies as plans, and whole turns with real supervisors.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from dataclasses import replace

import pytest

from jobherd.supervisor.policy.actions import Plan
from jobherd.supervisor.policy.child_kinds import MAINTENANCE
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.slot import HeldClaim
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import Ready


def nothing_is_due(supervisor, now):
    supervisor.loop._full_turn_by = supervisor.slot_table.plan_at = float("inf")
    supervisor.poll._at = supervisor.board_reader._at = supervisor.db._again_at = now + 60


@pytest.mark.parametrize("call", ["called", "all_idle_called", "database_up", "the maintenance process"])
def test_wakeup_requested_after_the_plan_of_a_turn_causes_the_next_turn_at_once(supervisor, call):
    """The request comes with the last answers of a turn. Without this, it would wait for another event, up to 1 s."""
    now = time.monotonic()
    nothing_is_due(supervisor, now)
    assert supervisor.loop.wake_at(now) > now
    slot_table = supervisor.slot_table
    match call:
        case "called":
            slot_table.request_wakeups()
        case "all_idle_called":
            slot_table.on_fork(next(slot_table.workers()), pid=1, incarnation=1, now=now, started=0, jitter=0.0)
            slot_table.request_all_wakeups()
        case "database_up":
            slot_table.on_database_up(now)
        case "the maintenance process":
            slot_table.kinds_to_wake.add(MAINTENANCE)
    assert supervisor.loop.wake_at(now) <= now


@pytest.mark.parametrize("found", [False, True])
def test_full_turn_follows_only_if_a_straggler_is_found(supervisor, monkeypatch, found):
    now = time.monotonic()
    slot = next(supervisor.slot_table.workers())
    supervisor.slot_table.on_fork(slot, pid=1, incarnation=1, now=now, started=0, jitter=0.0)
    supervisor.slot_table.on_message(slot, Ready(1, 7), now)
    nothing_is_due(supervisor, now)
    offloader = supervisor.offloader
    offloader.hurry(now)
    work = CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 60)

    def read(at):
        offloader._due_at = float("inf")
        supervisor.slot_table.on_held_claim(slot, HeldClaim(work, at + 60) if found else None)

    monkeypatch.setattr(offloader, "_read", read)
    turns = []
    monkeypatch.setattr(supervisor.loop, "_wake_first", lambda _now: turns.append(_now) or True)
    supervisor.loop.turn()
    assert len(turns) == found


def test_draining_supervisor_does_not_query_whether_jobs_are_left(supervisor):
    """Otherwise the loop would spin and query until the last job has finished."""
    supervisor.settings.now = replace(supervisor.settings.now, until_empty=True)
    assert supervisor.until_empty.wake_at(0.0) == 0.0
    supervisor.slot_table.enter_state(RunState.DRAINING, time.monotonic())
    assert supervisor.until_empty.wake_at(0.0) == float("inf")


def test_lost_session_unregisters_its_descriptor_before_a_new_child_can_get_that_number(supervisor, monkeypatch):
    """The selector rejects a descriptor number that is still registered: a supervisor died of that."""
    number, other = os.pipe()
    lost, planned = [], []
    monkeypatch.setattr(supervisor.db, "fileno", lambda: -1 if lost else number)
    monkeypatch.setattr(supervisor.db, "step", lambda _now: None)
    supervisor.session.step(0.0)

    def lose(_now):
        os.close(number)
        lost.append(number)

    def think(_slot_table, _now):
        os.dup2(other, number)
        supervisor.selector.register(number, selectors.EVENT_READ, 0)
        supervisor.selector.unregister(number)
        planned.append(number)
        return Plan()

    monkeypatch.setattr(
        supervisor.signals._reaper, "reap", lambda now: monkeypatch.setattr(supervisor.db, "step", lose)
    )
    monkeypatch.setattr(
        supervisor.board_reader, "step", lambda _now: monkeypatch.setattr(supervisor.db, "step", lambda _now: None)
    )
    monkeypatch.setattr("jobherd.supervisor.loop.plan", think)
    monkeypatch.setattr(supervisor.signal_pipe, "read", lambda: {signal.SIGCHLD})
    supervisor.signals.register(supervisor.selector)
    os.write(supervisor.signal_pipe._write, b"x")
    supervisor.loop.turn()
    assert planned
    assert supervisor.session._waits_on[0] == -1
    os.close(number)
    os.close(other)
