"""A fleet whose forks succeed at once, and its time. No process, no clock."""

from __future__ import annotations

import signal

from jobherd.supervisor.policy.actions import Fork
from jobherd.supervisor.policy.fleet import Fleet
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.plan import NEVER, nudges, plan
from jobherd.supervisor.policy.slot import Exit
from jobherd.workers.ipc.pipes import EXIT_LEFT, Ready
from jobherd.workers.ipc.status_board import CurrentWork, Phase

KILLED = Exit(None, signal.SIGKILL)
LEFT = Exit(EXIT_LEFT, None)


class Story:
    """A fleet and its time; forks succeed at once."""

    def __init__(self, **limits):
        self.now = 100.0
        self.fleet = Fleet(Limits(**{"workers": 2, "web": False, "jitter": 0.0} | limits))
        self.fleet.registered(1)
        self.fleet.database_up(self.now)
        self.pids = iter(range(1000, 9000))

    def step(self, after=0.0):
        self.now += after
        todo = plan(self.fleet, self.now)
        actions = [*todo.actions, *nudges(self.fleet)]
        for action in actions:
            if isinstance(action, Fork):
                self.fleet.incarnations += 1
                self.fleet.forked(
                    action.slot,
                    pid=next(self.pids),
                    incarnation=self.fleet.incarnations,
                    now=self.now,
                    started=0,
                    jitter=0.0,
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
        self.fleet.on_status(slot, now_record=record, started=started, rss=0, now=self.now)
        return slot

    def idle(self, *numbers, claims=1):
        for number in numbers:
            slot = self.fleet.slots[number]
            self.fleet.on_status(slot, now_record=CurrentWork(Phase.IDLE), started=0, rss=0, now=self.now)
            self.fleet.saw_idle(slot, idle=True, claims=claims)

    def dies(self, number, exit_=KILLED, *, started=0):
        return self.fleet.on_exit(self.fleet.slots[number], exit_, now=self.now, started=started, jitter=0.0)
