"""How a wake-up request reaches idle children through their wake pipes."""

from __future__ import annotations

import os
import time

import pytest

from jobherd.supervisor.policy.child_kinds import GATEWAY, MAINTENANCE
from jobherd.supervisor.process.spawn import Ends
from jobherd.supervisor.process.wake_writer import WakeWriter
from jobherd.workers.ipc.pipes import Ready, open_pipe


@pytest.fixture
def ends(supervisor):
    """The read ends of the wake pipes of two READY workers and the maintenance process, which have no processes."""
    slot_table, now, pipes = supervisor.slot_table, time.monotonic(), {}
    slots = [*list(slot_table.workers())[:2], next(slot for slot in slot_table.slots if slot.kind is MAINTENANCE)]
    for place, slot in enumerate(slots):
        slot_table.on_fork(slot, pid=place + 1, incarnation=place + 1, now=now, started=0, jitter=0.0)
        slot_table.on_message(slot, Ready(1, 7), now)
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


def test_request_wakes_one_idle_worker_and_no_worker_is_woken_without_a_request(supervisor, ends):
    now = time.monotonic()
    wakeups = WakeWriter(supervisor.slot_table, supervisor.board_reader, supervisor.children)
    first, second, maintenance = ends
    supervisor.boards[second].set_idle(idle=True)
    wakeups.step(now)
    assert woken(ends) == []
    assert wakeups.wake_at(now) == float("inf")
    supervisor.slot_table.request_wakeups()
    assert wakeups.wake_at(now) <= now
    wakeups.step(now)
    assert woken(ends) == [second], "the other worker is busy and claims again before it goes idle"
    assert wakeups.wake_at(now) == float("inf"), "a request that no worker can take is not kept"
    supervisor.slot_table.kinds_to_wake.add(MAINTENANCE)
    wakeups.step(now)
    assert woken(ends) == [maintenance]


def test_idle_gateway_is_woken_in_addition_to_an_idle_worker(supervisor, ends):
    slot_table, boards = supervisor.slot_table, supervisor.boards
    gateway = next(slot for slot in slot_table.slots if slot.kind is GATEWAY)
    slot_table.on_fork(gateway, pid=9, incarnation=9, now=time.monotonic(), started=0, jitter=0.0)
    slot_table.on_message(gateway, Ready(0, 0), time.monotonic())
    reading, writing = open_pipe()
    supervisor.children._ends[gateway.number] = Ends(writing, -1)
    ends[gateway.number] = reading
    wakeups = WakeWriter(slot_table, supervisor.board_reader, supervisor.children)
    first, second, *_ = ends
    for number in (first, second, gateway.number):
        boards[number].set_idle(idle=True)
    assert supervisor.board_reader.anyone_idle()
    slot_table.request_wakeups()
    wakeups.step(time.monotonic())
    assert woken(ends) == [first, gateway.number]
    for number in (first, second):
        boards[number].set_idle(idle=False)
    supervisor.board_reader.hurry()
    supervisor.board_reader.step(time.monotonic())
    assert slot_table.busy_since is None, "producers must notify: the gateway waits for work"
    assert supervisor.board_reader.anyone_idle()
    boards[gateway.number].set_idle(idle=False)
    slot_table.request_wakeups()
    wakeups.step(time.monotonic())
    assert woken(ends) == [], "no remote worker waits"
