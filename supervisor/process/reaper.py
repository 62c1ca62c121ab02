"""Handles the deaths of children: records each one, explains it, starts its recovery, ends orphans.

`process/children.py` reaps the processes and closes their pipes. `recovery.py` settles their jobs.
This module must not decide what follows: `policy/exits.py` judges the exit and `plan.py` replaces children.
"""

from __future__ import annotations

import logging
import random
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.crash import orphans
from jobherd.supervisor.crash.dead_child import DeadChild
from jobherd.supervisor.crash.postmortem import examine
from jobherd.supervisor.crash.unrecorded_outcomes import outcomes_of
from jobherd.supervisor.policy.child_exit import REQUESTED, End, Exit
from jobherd.supervisor.policy.exits import death_of
from jobherd.supervisor.policy.stop_sequence import Stage
from jobherd.workers.inspect.captured import digest
from jobherd.workers.ipc.current_work import CurrentWork, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.supervisor.crash.memory_growth import MemoryGrowth
    from jobherd.supervisor.crash.oom import OomWatch
    from jobherd.supervisor.crash.postmortem import PostMortem
    from jobherd.supervisor.crash.recovery import CrashRecovery
    from jobherd.supervisor.policy.child_exit import Death
    from jobherd.supervisor.policy.slot import Slot, State
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.children import Children, Reaped
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.counters import Policy
    from jobherd.workers.ipc.status_board import StatusBoard

log = logging.getLogger("jobherd.supervisor")

ORPHAN_SCAN_SECONDS: Final = 1.0
"""Seconds after a child's death in which the processes it left behind are looked for. Later, a new
child of the supervisor is more likely a running job's daemon or an unrelated process."""


class Reaper:
    """Handles every death that the kernel has reported."""

    def __init__(
        self,
        slot_table: SlotTable,
        children: Children,
        boards: Sequence[StatusBoard],
        control: ControlBlock,
        recovery: CrashRecovery,
        *,
        growth: MemoryGrowth,
        oom: OomWatch,
    ) -> None:
        self._slot_table = slot_table
        self._children = children
        self._boards = boards
        self._control = control
        self._recovery = recovery
        self._growth = growth
        self._oom = oom
        self._orphans = orphans.Orphans()
        self._scan_until = 0.0

    def reap(self, now: float) -> None:
        """Record every death, and every child that was stopped or continued."""
        self._children.note_stopped(now)
        inherited = False
        for reaped in self._children.reap(now):
            if reaped.slot is None:
                inherited = True
                continue
            self._record(reaped.slot, reaped, now)
            self._end_orphans()
            self._scan_until = now + ORPHAN_SCAN_SECONDS
        if inherited and now < self._scan_until:
            self._end_orphans()  # its own children are the supervisor's now: a daemon one level further down

    def _record(self, slot: Slot, reaped: Reaped, now: float) -> None:
        board = self._boards[slot.number]
        work, policy = last_work(board)
        state = slot.state
        death = death_of(
            self._slot_table,
            slot,
            self._with_oom(slot, reaped.exit, now),
            work=work,
            now=now,
            started=board.jobs_started,
            jitter=random.uniform(-1, 1),
        )
        self._slot_table.on_exit(slot, death)
        report = self._examine(slot, death, work, policy, now)
        others = board.company(work) if work.job else []
        if slot.kind.recovered:
            self._recovery.take(
                DeadChild(
                    death,
                    work,
                    policy,
                    report,
                    outcomes_of(board),
                    others,
                    digest(reaped.output),
                    cleared=board.cleared,
                )
            )
        self._say(slot, death, report, work, policy, state=state)

    def _with_oom(self, slot: Slot, exit_: Exit, now: float) -> Exit:
        """Return the exit, with whether the kernel killed the process because memory ran out."""
        ours = slot.sent.stop is not None and slot.sent.stop.stage is Stage.KILLED
        return replace(exit_, oom=exit_.signal == signal.SIGKILL and not ours and self._oom.claim(now))

    def _examine(self, slot: Slot, death: Death, work: CurrentWork, policy: Policy, now: float) -> PostMortem:
        board, deadline = self._boards[slot.number], self._control.lease_deadline
        asked = board.stacks() if slot.number in self._children.asked_for_stacks else b""
        self._children.asked_for_stacks.discard(slot.number)
        killed = death.exit.signal == signal.SIGKILL and death.cause in ("oom", "signal")
        return examine(
            death,
            board,
            work,
            policy.name,
            asked=asked,
            grown=self._growth.seen(slot, board, work),
            memory=self._oom.evidence() if killed else None,
            lease_age=now - (deadline - self._slot_table.limits.lease) if deadline else None,
            code_version=slot.process.code_version,
        )

    def _say(
        self, slot: Slot, death: Death, report: PostMortem, work: CurrentWork, policy: Policy, *, state: State
    ) -> None:
        """Log the death, and record its explanation for users."""
        requested = death.cause in REQUESTED
        job: dict[str, object] = {"job": work.job} if work.job else {}
        log.log(
            logging.INFO if requested or death.cause == "handlers" else logging.WARNING,
            "%s",
            f"{slot.name} exited" if requested else report.sentence,
            extra={"pid": death.pid, "cause": death.cause, "was": state.value, **job},
        )
        sentence = "It exited as requested." if requested else report.sentence
        record = 0 if policy.table else work.job
        kind = policy.name if work.job else ""
        self._slot_table.on_explained(slot, End(slot.name, death.pid, death.cause, sentence, death.at, record, kind))

    def _end_orphans(self) -> None:
        for pid in self._orphans.end(list(self._slot_table.alive())):
            log.info("ended process %d, which a job had left behind", pid)


def last_work(board: StatusBoard) -> tuple[CurrentWork, Policy]:
    """Return what a dead child was doing, and the policy of that job's kind."""
    record = board.now() or CurrentWork(Phase.BOOTING)
    policy = board.tally.policy(record.kind)
    if record.runs and board.begun != record.job:  # announced on the status board, but not started
        record = record._replace(job=0) if policy.table else record._replace(phase=Phase.CLAIMING)
    return record, policy
