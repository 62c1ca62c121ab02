"""Finds stragglers on the status boards, and carries out `Offload` for their claims.

`policy/stragglers.py` decides; this module reads shared memory and sends requests. The protocol
with the child is in docs/project/protocol-batches.md, "Batch and revocation". It never blocks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.crash.unrecorded_outcomes import outcomes_of
from jobherd.supervisor.policy.slot import HeldClaim, State
from jobherd.supervisor.policy.stragglers import offload, patience, smoothed_load, straggler_at
from jobherd.workers.job.finished import settlement
from jobherd.workers.system import procfs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.supervisor.database.interface import Requests
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.actions import Offload
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.workers.ipc.status_board import StatusBoard

NEVER: Final = float("inf")
SOONEST: Final = 0.01
"""Minimum seconds between two checks for claimed jobs behind a long-running one."""


class Offloader:
    """Offloads the claims of stragglers."""

    def __init__(self, slot_table: SlotTable, boards: Sequence[StatusBoard], db: Requests, *, host: str) -> None:
        self._slot_table = slot_table
        self._boards = boards
        self._db = db
        self._host = host
        self._due_at = NEVER

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._due_at

    def expect_work(self, now: float) -> None:
        """A worker may have started a job at `now`."""
        if self._slot_table.limits.claim_window:
            self._due_at = min(self._due_at, now + self._slot_table.limits.patience)

    def hurry(self, now: float) -> None:
        """Check at once: a pause or limit has changed."""
        self._due_at = now

    def step(self, now: float) -> None:
        """Check whether a child holds claimed jobs or outcomes behind a long-running job.

        This happens only while a worker is busy, and at the first time at which it can be the case.
        If there is a claim to offload, the plan is due.
        """
        slot_table = self._slot_table
        if now >= self._due_at:
            self._read(now)
            if any(offload(slot_table, slot) is not None for slot in slot_table.alive()):
                slot_table.request_plan(now)

    def _read(self, now: float) -> None:
        slot_table = self._slot_table
        workers = [slot for slot in slot_table.alive() if slot.state is State.READY and slot.kind.works]
        held = {slot.number: _held(self._boards[slot.number], now) for slot in workers}
        # The interval stays the same when processors are overloaded: as soon as a worker is idle,
        # it can take these jobs.
        interval = max(min(patience(slot_table, now), slot_table.limits.patience or NEVER), SOONEST)
        due = {
            number: straggler_at(claim.work, claim.unwritten, interval)
            for number, claim in held.items()
            if claim is not None and claim.work.runs
        }
        idle = {slot.number for slot in workers if self._boards[slot.number].idle}
        if idle:
            slot_table.on_load(1.0)  # An idle worker could run the waiting jobs now.
        elif any(at <= now for at in due.values()):
            # Read it only now: on each check it would cost 1% of a processor, at the expense of
            # very short jobs.
            slot_table.on_load(smoothed_load(slot_table.load, procfs.runnable_per_processor()))
        for slot in workers:
            slot_table.on_held_claim(slot, held[slot.number])
        # A busy child is checked again whatever it holds now: shortly it may have finished, and
        # hold other jobs.
        again = [now + interval for slot in workers if slot.number not in idle]
        self._due_at = min([*again, *(at for at in due.values() if at > now)], default=NEVER)

    def do(self, action: Offload, now: float) -> None:
        """Write the claim's outcomes; if it is to be released, release its unstarted jobs.

        Order: announce first. Only what is read after that is reliable, since a job that was on the
        status board by then may have started.
        """
        slot, token, release = action.slot, action.token, action.release
        board = self._boards[slot.number]
        if release:
            board.revoke(token)
        else:
            board.announce_flush(token)
        work = board.now()
        if work is None or work.token != token or not (work.job if release else work.runs):
            return  # The child has finished that job, and does the rest itself.
        outcomes = outcomes_of(board)
        again = board.now()
        if release:
            if again is None or again.token != token:
                # The claim has ended. What was read may belong to the next one; the child, not
                # notified of that, would conclude that it has lost that claim.
                return
            outcomes = [(claim, [one for one in part if one.job != work.job]) for claim, part in outcomes]
        elif again != work or any(one.job == work.job for claim, part in outcomes if claim == token for one in part):
            # The child has finished that job. What was read may include later jobs, not all of them
            # announced; the child writes these itself. By the outcome of the job that it ran last,
            # it checks whether it still has its claim.
            return

        def answered(answer: Answer) -> None:
            if answer is None:  # The child repeats all of it, but only when its job ends, which can take hours.
                self._slot_table.on_offload_failed(slot, token, release=release, now=time.monotonic())

        for claim, part in outcomes:
            if part:
                written = settlement(work.child, claim, part, ran_on=f"{self._host}/{slot.process.pid}", now=now)
                self._db.ask("settle/settle_jobs", written, answered, _leave_it_to_the_child)
        if release:
            called = [one.job for one in board.company(work)]
            rest = {"child": work.child, "token": token, "job": work.job, "called": called or None}
            self._db.ask("recover/requeue_rest", rest, answered)


def _held(board: StatusBoard, now: float) -> HeldClaim | None:
    """Return what a child holds besides its running job; None: nothing, or its record is invalid."""
    others, earlier = board.held > 0, board.outcomes.is_doubled
    work = board.now() if others or earlier else None
    return None if work is None else HeldClaim(work, now, others, board.unwritten, earlier)


def _leave_it_to_the_child() -> None:
    """The server permanently rejects these outcomes: do nothing.

    The child sends them again when its job ends, one by one if necessary.
    """
