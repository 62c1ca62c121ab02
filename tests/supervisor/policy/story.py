"""A slot table whose forks succeed at once, and its time. No process, no clock."""

from __future__ import annotations

import io
import pickle
import signal

from jobherd.supervisor.policy.actions import NEVER, Fork
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.supervisor.policy.child_kinds import ChildKind
from jobherd.supervisor.policy.exits import death_of
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.plan import plan
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.policy.state_changes import apply
from jobherd.supervisor.policy.wakeups import wakeups
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import EXIT_REQUESTED, Ready

KILLED = Exit(None, signal.SIGKILL)
LEFT = Exit(EXIT_REQUESTED, None)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value):
        """Store kinds by name: they contain functions, which cannot be pickled."""
        return value.name if isinstance(value, ChildKind) else None


def snapshot(slot_table):
    """Return everything that a slot table stores, by value."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(slot_table)
    return buffer.getvalue()


def without_writing(decide, slot_table, *rest):
    """Return what a policy decides; assert that it has not changed the slot table."""
    before = snapshot(slot_table)
    todo = decide(slot_table, *rest)
    assert snapshot(slot_table) == before, "a plan has written to the slot table"
    return todo


class Story:
    """A slot table and its time. Forks succeed at once, and each step asserts that plans write nothing."""

    def __init__(self, **limits):
        self.now = 100.0
        self.slot_table = SlotTable(Limits(**{"workers": 2, "web": False, "jitter": 0.0} | limits))
        self.slot_table.on_registered(1)
        self.slot_table.on_database_up(self.now)
        self.pids = iter(range(1000, 9000))

    def step(self, after=0.0):
        self.now += after
        todo = without_writing(plan, self.slot_table, self.now)
        apply(self.slot_table, todo.state_changes)
        wakes = without_writing(wakeups, self.slot_table)
        apply(self.slot_table, wakes.state_changes)
        actions = [*todo.actions, *wakes.actions]
        for action in actions:
            if isinstance(action, Fork):
                self.slot_table.incarnations += 1
                self.slot_table.on_fork(
                    action.slot,
                    pid=next(self.pids),
                    incarnation=self.slot_table.incarnations,
                    now=self.now,
                    started=0,
                    jitter=0.0,
                    reserved=action.reserved,
                )
        self.wake_at = todo.wake_at
        return actions

    def names(self, after=0.0):
        return [
            (type(action).__name__, getattr(getattr(action, "slot", None), "number", None))
            for action in self.step(after)
        ]

    def ready(self, *numbers):
        for number in numbers:
            self.slot_table.on_message(self.slot_table.slots[number], Ready(number + 1, 7), self.now)

    def up(self):
        self.step()
        self.ready(*(slot.number for slot in self.slot_table.alive()))
        self.step()
        return self

    def runs(self, number, *, job=5, token=9, deadline=NEVER, started=0):
        slot = self.slot_table.slots[number]
        record = CurrentWork(Phase.RUNNING, 1, token, job, 1, 1, 5, 0, self.now, deadline)
        self.slot_table.on_status(slot, work=record, started=started, rss=0)
        return slot

    def idle(self, *numbers, claims=1):
        for number in numbers:
            slot = self.slot_table.slots[number]
            self.slot_table.on_status(slot, work=CurrentWork(Phase.IDLE), started=0, rss=0)
            self.slot_table.on_idle_flag(slot, idle=True, claims=claims)

    def dies(self, number, exit_=KILLED, *, started=0):
        slot = self.slot_table.slots[number]
        death = death_of(self.slot_table, slot, exit_, work=slot.seen.work, now=self.now, started=started, jitter=0.0)
        self.slot_table.on_exit(slot, death)
        return death


def maintenance(story):
    return next(slot for slot in story.slot_table.slots if slot.kind.name == "maintenance")
