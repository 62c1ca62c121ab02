"""That a request wakes idle children, on the one path there is."""

from __future__ import annotations

import os
import time

import pytest

from jobherd.supervisor.policy.child_kinds import MAINTENANCE
from jobherd.supervisor.process.spawn import Ends
from jobherd.supervisor.process.wakeups import Wakeups
from jobherd.workers.ipc.pipes import Ready, open_pipe


@pytest.fixture
def ends(supervisor):
    """Two READY workers and the maintenance process, without processes: the ends of their wake pipes."""
    fleet, now, pipes = supervisor.fleet, time.monotonic(), {}
    slots = [*list(fleet.workers())[:2], next(slot for slot in fleet.slots if slot.kind is MAINTENANCE)]
    for place, slot in enumerate(slots):
        fleet.on_fork(slot, pid=place + 1, incarnation=place + 1, now=now, started=0, jitter=0.0)
        fleet.on_message(slot, Ready(1, 7), now)
        reading, writing = open_pipe()
        supervisor.children._ends[slot.number] = Ends(writing, -1)
        pipes[slot.number] = reading
    yield pipes
    for number, reading in pipes.items():
        os.close(reading)
        os.close(supervisor.children._ends.pop(number).wake)


def woken(pipes):
    found = []
    for number, reading in pipes.items():
        try:
            found += [number] * len(os.read(reading, 64))
        except BlockingIOError:
            continue
    return found


def test_as_many_idle_workers_are_woken_as_were_asked_for_and_none_for_nothing(supervisor, ends):
    now = time.monotonic()
    wakeups = Wakeups(supervisor.fleet, supervisor.board_reader, supervisor.children)
    first, second, maintenance = ends
    supervisor.boards[second].set_idle(idle=True)
    wakeups.step(now)
    assert woken(ends) == []
    assert wakeups.wake_at(now) == float("inf")
    supervisor.fleet.request_wakeups()
    assert wakeups.wake_at(now) <= now
    wakeups.step(now)
    assert woken(ends) == [second], "the other one is busy, and looks again before it goes idle"
    assert wakeups.wake_at(now) == float("inf"), "a request that no worker can take is not kept"
    supervisor.fleet.kinds_to_wake.add(MAINTENANCE)
    wakeups.step(now)
    assert woken(ends) == [maintenance]
