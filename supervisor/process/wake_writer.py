"""Wakes idle children for the requested wake-ups. Only this module writes wake bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jobherd.supervisor.policy.state_changes import apply
from jobherd.supervisor.policy.wakeups import wakeups

if TYPE_CHECKING:
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.board_reader import BoardReader
    from jobherd.supervisor.process.children import Children


class WakeWriter:
    """Reads the idle flags and writes the wake bytes."""

    def __init__(self, slot_table: SlotTable, boards: BoardReader, children: Children) -> None:
        self._slot_table = slot_table
        self._boards = boards
        self._children = children

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called at the latest."""
        return now if self._slot_table.wants_wakeups() else float("inf")

    def step(self, now: float) -> None:
        """Wake as many children as were requested."""
        if not self._slot_table.wants_wakeups():
            return
        if self._slot_table.pending_wakeups:
            self._boards.read_idle_flags()
        plan = wakeups(self._slot_table)
        apply(self._slot_table, plan.state_changes)
        for action in plan.actions:
            self._children.do(action, now)
        if plan.actions:
            # The kernel expects the writer of a pipe to sleep next, and puts the reader on the same
            # processor. Without this yield, the worker waits there until the supervisor's turn
            # ends.
            os.sched_yield()
