"""Reads the children's status boards and records in the slot table what they show.

It reads as seldom as the stop sequence allows: four times a second while a job runs, once a second
while all workers are idle. It must not decide anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.crash.memory_growth import AFTER
from jobherd.supervisor.policy.actions import NEVER
from jobherd.supervisor.policy.slot import State
from jobherd.supervisor.policy.wakeups import can_be_woken
from jobherd.workers.system import procfs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.supervisor.crash.memory_growth import MemoryGrowth
    from jobherd.supervisor.crash.oom import OomWatch
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.output_pipe import OutputPipes
    from jobherd.workers.ipc.status_board import StatusBoard

LOOK: Final = 0.25
"""Seconds between reads of the status boards while any job runs: the supervisor sees a job's deadline
at most this late."""
LOOK_IDLE: Final = 1.0
FLOOD: Final = 0.001
"""Seconds to the next read while a worker prints more than its pipe holds."""


class BoardReader:
    """Reads the status boards, by slot number."""

    def __init__(
        self,
        slot_table: SlotTable,
        boards: Sequence[StatusBoard],
        outputs: OutputPipes,
        *,
        growth: MemoryGrowth,
        oom: OomWatch,
    ) -> None:
        self._slot_table = slot_table
        self._boards = boards
        self._outputs = outputs
        self._growth = growth
        self._oom = oom
        self._at = 0.0

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest.

        Often while a job runs, seldom while all are idle.
        """
        if any(slot.seen.work.job or slot.sent.stop for slot in self._slot_table.alive()):
            return self._at
        idle = any(slot.state is State.READY for slot in self._slot_table.alive())
        return self._at + LOOK_IDLE - LOOK if idle else NEVER

    def hurry(self) -> None:
        """Read the status boards at the next step."""
        self._at = 0.0

    def step(self, now: float) -> None:
        """Read the status boards if that is due, or if a plan is due.

        A time limit has passed then, and a child may be killed: that needs its current board, not
        an older copy.
        """
        if now < self._at and now < self._slot_table.plan_at:
            return
        self._at = now + LOOK
        self._oom.look(now)
        claiming = [slot for slot in self._slot_table.alive() if slot.kind.claims and slot.state is State.READY]
        boards = {slot.number: self._boards[slot.number] for slot in claiming}
        self._slot_table.on_idle_counts(
            {number: (board.idle, board.times_idle) for number, board in boards.items()}, now
        )
        if self._outputs.read(now):
            self._at = now + FLOOD
        limit = self._slot_table.limits.max_rss
        for slot in self._slot_table.alive():
            board = self._boards[slot.number]
            record = board.now()
            rss = procfs.rss(slot.process.pid) if limit and slot.kind.works else 0
            exclusive = record is not None and record.job != 0 and board.tally.policy(record.kind).exclusive
            self._slot_table.on_status(
                slot, work=record, started=board.jobs_started, rss=rss, hook=board.hook, exclusive=exclusive
            )
            if record is not None and record.runs and now - record.started >= AFTER and slot.sent.stop is None:
                self._growth.look(slot, board, record, now)

    def read_idle_flags(self) -> None:
        """Read only the idle flags, of workers until enough of them are idle for the pending wake-ups."""
        missing = self._slot_table.pending_wakeups
        for slot in self._slot_table.alive():
            if slot.state is State.READY and (missing > 0 if slot.kind.works else slot.kind.claims):
                board = self._boards[slot.number]
                self._slot_table.on_idle_flag(slot, idle=board.idle, claims=board.claims[0])
                missing -= slot.kind.works and can_be_woken(slot)

    def anyone_idle(self) -> bool:
        """Return whether a child that claims is idle now, or was since the boards were last read.

        A single read may find all of them busy between two idle periods. Acting on it would switch
        notifications off, and on again at once.
        """
        claiming = [slot for slot in self._slot_table.alive() if slot.kind.claims]
        return any(
            board.idle or board.times_idle != slot.seen.times_idle
            for slot in claiming
            for board in (self._boards[slot.number],)
        )
