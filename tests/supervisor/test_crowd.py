"""Whether a held job is taken back from a worker, by the boards and by how many processes want a processor."""

from __future__ import annotations

import os
import time

import pytest

from supervisor import strays
from supervisor.loop import Supervisor
from supervisor.settings import Settings
from workers.board import Now, Phase
from workers.link import Ready


@pytest.fixture
def supervisor():
    supervisor = Supervisor(Settings(), "host=/nowhere")
    yield supervisor
    supervisor.selector.close()
    supervisor.signals.close()
    for board in supervisor.crew.boards:
        board.close()
    os.close(supervisor.notice.fd)


def test_a_worker_among_many_keeps_its_jobs_until_somebody_is_idle(supervisor, monkeypatch):
    fleet, crew, now = supervisor.fleet, supervisor.crew, time.monotonic()
    slots = list(fleet.workers())[:2]
    for number, slot in enumerate(slots):
        fleet.forked(slot, pid=number + 1, incarnation=number + 1, now=now, started=0, jitter=0.0)
        fleet.heard(slot, Ready(number + 1, 7), now)
        crew.boards[slot.number].set_idle(idle=False)
    crew.boards[slots[0].number].begin_claim(9, 3)
    crew.boards[slots[0].number].say(Now(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now - 0.1, now + 60))
    monkeypatch.setattr(strays, "crowd", lambda: 8.0)
    crew.take_back(now)
    crew.look_for_late(now)
    assert slots[0].late is None, "it may only be waiting for a processor"
    assert crew.look_for_late_at <= now + fleet.limits.patience + 0.001, "looked at as often as ever"
    crew.boards[slots[1].number].set_idle(idle=True)
    crew.look_for_late(crew.look_for_late_at)
    assert slots[0].late == (9, 5)


def test_the_crowd_is_looked_at_when_somebody_is_late_and_not_before(supervisor, monkeypatch):
    fleet, crew, now = supervisor.fleet, supervisor.crew, time.monotonic()
    slot = next(iter(fleet.workers()))
    fleet.forked(slot, pid=1, incarnation=1, now=now, started=0, jitter=0.0)
    fleet.heard(slot, Ready(1, 7), now)
    board = crew.boards[slot.number]
    board.set_idle(idle=False)
    board.begin_claim(9, 3)
    board.say(Now(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 60))
    looks = []
    monkeypatch.setattr(strays, "crowd", lambda: looks.append(now) or 1.0)
    crew.take_back(now)
    crew.look_for_late(now)
    assert not looks, "or a hundredth of a processor goes to reading a file, while short jobs run"
    crew.take_back(now)
    crew.look_for_late(now + fleet.limits.patience)
    assert len(looks) == 1


def test_an_outcome_does_not_wait_for_several_jobs_that_are_each_short_enough(supervisor, monkeypatch):
    fleet, crew, now = supervisor.fleet, supervisor.crew, time.monotonic()
    patience = fleet.limits.patience
    slot = next(iter(fleet.workers()))
    fleet.forked(slot, pid=1, incarnation=1, now=now, started=0, jitter=0.0)
    fleet.heard(slot, Ready(1, 7), now)
    board = crew.boards[slot.number]
    monkeypatch.setattr(strays, "crowd", lambda: 1.0)
    board.begin_claim(9, 3)
    board.say_unwritten(now)
    board.say(Now(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now + patience / 2, now + 60))
    crew.take_back(now)
    crew.look_for_late(now + patience)
    assert slot.late is None, "it has hardly run"
    due = crew.look_for_late_at
    assert now + patience < due < now + patience * 1.25, "sooner than when this job alone would be late"
    crew.look_for_late(due)
    assert slot.late == (9, 5)
    slot.late = None
    board.say(Now(Phase.RUNNING, 1, 9, 6, 1, 1, 5, 0, due, now + 60))
    crew.take_back(due)
    crew.look_for_late(due)
    assert slot.late is None, "another one has just started, and may be through in a moment"
    board.say_unwritten(0.0)
    crew.take_back(due)
    crew.look_for_late(due + patience / 2)
    assert slot.late is None
    assert crew.look_for_late_at == pytest.approx(due + patience), "what was written by now waits for nobody"


def test_there_is_always_at_least_one_process_for_a_processor():
    assert strays.crowd() >= 1.0
