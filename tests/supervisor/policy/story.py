"""A fleet whose forks succeed at once, and its time. No process, no clock."""

from __future__ import annotations

import io
import pickle
import signal

from jobherd.supervisor.policy.actions import NEVER, Fork
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.supervisor.policy.child_kinds import ChildKind
from jobherd.supervisor.policy.exits import death_of
from jobherd.supervisor.policy.fleet import Fleet
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.plan import plan
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


def snapshot(fleet):
    """Return everything that a fleet stores, by value."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(fleet)
    return buffer.getvalue()


def without_writing(decide, fleet, *rest):
    """Return what a policy decides; assert that it has not changed the fleet."""
    before = snapshot(fleet)
    todo = decide(fleet, *rest)
    assert snapshot(fleet) == before, "a plan has written to the fleet"
    return todo


class Story:
    """A fleet and its time. Forks succeed at once, and each step asserts that plans write nothing."""

    def __init__(self, **limits):
        self.now = 100.0
        self.fleet = Fleet(Limits(**{"workers": 2, "web": False, "jitter": 0.0} | limits))
        self.fleet.on_registered(1)
        self.fleet.on_database_up(self.now)
        self.pids = iter(range(1000, 9000))

    def step(self, after=0.0):
        self.now += after
        todo = without_writing(plan, self.fleet, self.now)
        apply(self.fleet, todo.state_changes)
        wakes = without_writing(wakeups, self.fleet)
        apply(self.fleet, wakes.state_changes)
        actions = [*todo.actions, *wakes.actions]
        for action in actions:
            if isinstance(action, Fork):
                self.fleet.incarnations += 1
                self.fleet.on_fork(
                    action.slot,
                    pid=next(self.pids),
                    incarnation=self.fleet.incarnations,
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
            self.fleet.on_message(self.fleet.slots[number], Ready(number + 1, 7), self.now)

    def up(self):
        self.step()
        self.ready(*(slot.number for slot in self.fleet.alive()))
        self.step()
        return self

    def runs(self, number, *, job=5, token=9, deadline=NEVER, started=0):
        slot = self.fleet.slots[number]
        record = CurrentWork(Phase.RUNNING, 1, token, job, 1, 1, 5, 0, self.now, deadline)
        self.fleet.on_status(slot, work=record, started=started, rss=0)
        return slot

    def idle(self, *numbers, claims=1):
        for number in numbers:
            slot = self.fleet.slots[number]
            self.fleet.on_status(slot, work=CurrentWork(Phase.IDLE), started=0, rss=0)
            self.fleet.on_idle_flag(slot, idle=True, claims=claims)

    def dies(self, number, exit_=KILLED, *, started=0):
        slot = self.fleet.slots[number]
        death = death_of(self.fleet, slot, exit_, work=slot.seen.work, now=self.now, started=started, jitter=0.0)
        self.fleet.on_exit(slot, death)
        return death


def maintenance(story):
    return next(slot for slot in story.fleet.slots if slot.kind.name == "maintenance")
