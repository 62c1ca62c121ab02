"""Runs the supervisor's loop: wait, record what happened, plan, act.

It decides nothing, and waits for nothing but the selector. The order within a turn is fixed:
notifications, messages, and only then deaths. A child's last message may arrive in the same batch
as its death, and a reaped child is forgotten.

The loop calls its parts as components, in order. `assembly.py` builds them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.policy.actions import Finish, Offload
from jobherd.supervisor.policy.plan import plan
from jobherd.supervisor.policy.state_changes import apply

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Sequence

    from jobherd.supervisor.component import Component, QueueEvents
    from jobherd.supervisor.database.interface import Connection
    from jobherd.supervisor.events.run_state_changes import RunStateChanges
    from jobherd.supervisor.observe.loop_lag import LoopLag
    from jobherd.supervisor.policy.actions import Action
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.children import Children
    from jobherd.supervisor.process.offload import Offloader
    from jobherd.workers.ipc.control_block import ControlBlock

    Handler = Callable[[float], None]
    """What a selector key has as its data: called when the descriptor is ready. None: the step of a
    component reads it."""

EVERY: Final = 1.0
"""Maximum seconds between two full turns: /livez reports a supervisor as dead if its loop stands
still for seconds."""


class Loop:
    """The supervisor's loop. `turn` runs one turn; `exit_code` is set once nothing is left to do.

    Args:
        slot_table: the slots of the children, and facts about the whole supervisor.
        control: the control block.
        selector: what the loop waits on. The data of a key is its handler.
        children: carry out actions that concern a process.
        offloader: carries out actions that write for a child.
        db: the database connection.
        first: components that turn a notification into a wake-up. A job waits for that, so they are
            stepped before anything else in a turn.
        events: the last but one of `first`.
        note: components that record what has happened, before the plan.
        after: components that act on the plan's result or report it.
        frequent: components that are due dozens of times a second while a worker is busy. A turn in
            which nothing else is due steps only these.
        run_state: decides the exit code.
        lag: measures how late the loop is.
    """

    def __init__(
        self,
        slot_table: SlotTable,
        control: ControlBlock,
        selector: selectors.BaseSelector,
        *,
        children: Children,
        offloader: Offloader,
        db: Connection,
        first: Sequence[Component],
        events: QueueEvents,
        note: Sequence[Component],
        after: Sequence[Component],
        frequent: Sequence[Component],
        run_state: RunStateChanges,
        lag: LoopLag,
    ) -> None:
        self.exit_code: int | None = None
        self._slot_table = slot_table
        self._control = control
        self._selector = selector
        self._children = children
        self._offloader = offloader
        self._db = db
        self._first = tuple(first)
        self._events = events
        self._note = tuple(note)
        self._after = tuple(after)
        self._frequent = tuple(frequent)
        self._components = tuple(dict.fromkeys((*first, *note, *after, *frequent)))
        self._run_state = run_state
        self._lag = lag
        self._looked_at = 0.0
        """When the selector was last read."""
        self._full_turn_by = 0.0

    def turn(self) -> None:
        """Run one turn of the loop."""
        due, ready = self._wait()
        now = self._looked_at
        self._control.loop_at = now
        if not ready and not self._is_more_due(now):
            return
        if self._wake_first(now) and now < due and not any(ready):
            # Nothing else has come. On a small machine the rest of the turn would take processor
            # time from the job that the worker was woken for.
            return
        for handler in ready:
            if handler is not None:
                handler(now)
        for component in self._note:
            component.step(now)
        todo = plan(self._slot_table, now)
        apply(self._slot_table, todo.state_changes)
        for action in todo.actions:
            self._do(action, now)
        for component in self._after:
            component.step(now)
        self._full_turn_by = now + EVERY

    def wake_at(self, now: float) -> float:
        """Return when the next turn is due."""
        return min(
            self._full_turn_by, self._slot_table.plan_at, *(component.wake_at(now) for component in self._components)
        )

    def _wait(self) -> tuple[float, list[Handler | None]]:
        """Wait until something has happened or is due.

        Returns:
            When the turn was due, and the handlers of the descriptors that are ready.
        """
        now = time.monotonic()
        if self._looked_at:
            self._lag.note(now - self._looked_at)
        due = max(self.wake_at(now), now)
        ready = self._selector.select(due - now)
        self._looked_at = time.monotonic()
        if not ready:
            self._lag.note(max(self._looked_at - due, 0.0))
        return due, [key.data for key, _ in ready]

    def _is_more_due(self, now: float) -> bool:
        """Step the frequent components; return whether anything else is due, or became due by that."""
        for component in self._frequent:
            component.step(now)
        return self.wake_at(now) <= now

    def _wake_first(self, now: float) -> bool:
        """Wake workers for new notifications.

        Returns:
            Whether a worker was woken and nothing else has come from the database.
        """
        quiet = self._db.is_quiet
        for component in self._first[:-1]:
            component.step(now)
        wakes = self._slot_table.wants_wakeups()
        self._first[-1].step(now)
        return wakes and quiet and self._events.only_work

    def _do(self, action: Action, now: float) -> None:
        match action:
            case Finish(code):
                self.exit_code = self._run_state.exit_code(code)
            case Offload():
                self._offloader.do(action, now)
            case _:
                self._children.do(action, now)
