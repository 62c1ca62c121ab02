"""Decides when the supervisor records outcomes and releases jobs that wait behind a long-running job.

A straggler is a job that runs so long that it delays the other jobs of its claim, or outcomes that
are not recorded yet. For a straggler the supervisor writes these outcomes, and releases the other
jobs so that an idle worker can run them. The decision is one action, `Offload`. This module reads
facts and changes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.policy.actions import Offload, Plan
from jobherd.supervisor.policy.slot import State
from jobherd.supervisor.policy.state_changes import Offloaded

if TYPE_CHECKING:
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table_state import SlotTableState
    from jobherd.workers.ipc.current_work import CurrentWork

LONGEST_PATIENCE: Final = 1.0
"""Maximum seconds for which a job may run in front of others when it may only be waiting for a
processor."""
OUTCOME_PATIENCE: Final = 1.1
"""Part of `patience` for which an outcome may wait: with the default, 44 of the 50 ms (setting
`claim_window`) after which it must be visible."""
LEAST_RUN: Final = 0.25
"""Part of `patience` for which a job must have run before it counts as the cause of the delay."""
RELEASE_AFTER_CHANGE: Final = 0.5
"""Seconds for which unstarted jobs are released after a pause, resume or limit change. Claims that
were under way at the change have arrived by then."""
RETRY: Final = 1.0
"""Seconds before a failed offload is tried again. Each attempt costs a read and two requests, and
the cause of the rejection may last."""
LOAD_DECAY: Final = 0.8
"""Part of the excess load that remains at the next sample, if the sample is lower."""


def smoothed_load(before: float, sample: float) -> float:
    """Return the load after a new sample, while no worker is idle.

    A single sample means little, so a rise counts at once and a fall only gradually.
    """
    return max(sample, 1.0 + (before - 1.0) * LOAD_DECAY)


def straggler_at(work: CurrentWork, unwritten: float, patience: float) -> float:
    """Return the time at which the running job counts as a straggler.

    That is `patience` seconds after its start. If an outcome of the same claim waits to be written,
    the time can be earlier: several jobs, each shorter than `patience`, can delay an outcome longer
    than one job could. Normally a child writes the outcome before that time, so a job that has only
    just started does not count as a straggler.

    Args:
        work: the child's current work.
        unwritten: since when an outcome of its claim waits to be written, 0 if none does.
        patience: seconds for which a job may run in front of others.
    """
    at = work.started + patience
    if not unwritten:
        return at
    return min(at, max(unwritten + OUTCOME_PATIENCE * patience, work.started + LEAST_RUN * patience))


def patience(slot_table: SlotTableState, now: float) -> float:
    """Return the seconds for which a job may run in front of other jobs of its claim."""
    limits = slot_table.limits
    if 0.0 <= now - slot_table.gates_changed_at < RELEASE_AFTER_CHANGE:
        return 0.0
    if not limits.claim_window:
        return float("inf")
    return max(limits.patience, min(limits.patience * slot_table.load, LONGEST_PATIENCE))


def offload(slot_table: SlotTableState, slot: Slot) -> Offload | None:
    """Return what to do about the claim that the slot's child holds; None: nothing.

    If the claim has no other jobs, nothing is released: the job's transaction may lock the row of
    the claim, and the release would wait for it. A job that may only be waiting for a processor
    keeps the other jobs for longer, but not the outcomes in front of it.

    The facts count for the time at which they were read. Later the child may run another job.
    """
    held, sent = slot.seen.held, slot.sent
    if held is None or slot.state is not State.READY:
        return None
    work, at = held.work, held.at
    if not work.runs or work.token == sent.released or at < slot_table.offload_failed_at + RETRY:
        return None
    if held.others and at >= straggler_at(work, held.unwritten, patience(slot_table, at)):
        return Offload(slot, work.token, release=True)
    waits = (
        (held.unwritten or held.earlier) and slot_table.limits.claim_window and (work.token, work.job) != sent.flushed
    )
    if waits and at >= straggler_at(work, held.unwritten, slot_table.limits.patience):
        return Offload(slot, work.token, release=False)
    return None


def offload_claim(slot_table: SlotTableState, slot: Slot, plan: Plan) -> None:
    """Add to the plan what is to be done about the claim that the slot's child holds."""
    action = offload(slot_table, slot)
    if action is not None and slot.seen.held is not None:
        plan.actions.append(action)
        plan.state_changes.append(Offloaded(slot, action.token, slot.seen.held.work.job, action.release))
