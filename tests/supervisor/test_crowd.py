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
    crew.boards[slots[0].number].open_ledger(9, 3)
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
    board.open_ledger(9, 3)
    board.say(Now(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 60))
    looks = []
    monkeypatch.setattr(strays, "crowd", lambda: looks.append(now) or 1.0)
    crew.take_back(now)
    crew.look_for_late(now)
    assert not looks, "or a hundredth of a processor goes to reading a file, while short jobs run"
    crew.take_back(now)
    crew.look_for_late(now + fleet.limits.patience)
    assert len(looks) == 1


def test_there_is_always_at_least_one_process_for_a_processor():
    assert strays.crowd() >= 1.0
