"""Decides what the exit of a child means: its cause, and when its slot may be filled again.

Reads facts and changes none: the result is a `Death`, which `SlotTable.on_exit` stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.policy.child_exit import REQUESTED, Death, Exit
from jobherd.supervisor.policy.slot import State
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_RECYCLE, EXIT_REQUESTED

if TYPE_CHECKING:
    from jobherd.supervisor.policy.limits import Limits
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table_state import SlotTableState
    from jobherd.workers.ipc.current_work import CurrentWork

EXPECTED: Final = REQUESTED | {"claim_lost", "drain", "quit", "cancel", "timeout"}
"""Causes after which the slot may be filled again at once, without a back-off."""
HEALTHY: Final = 0.5
"""Seconds after READY from which a child that has finished a job counts as healthy."""


def death_of(
    slot_table: SlotTableState, slot: Slot, exit_: Exit, *, work: CurrentWork, now: float, started: int, jitter: float
) -> Death:
    """Return the facts about the death of a slot's child.

    Args:
        slot_table: the slots of the children, and facts about the whole supervisor.
        slot: the slot whose process was reaped.
        exit_: how it ended.
        work: what it did when it ended.
        now: the current time.
        started: number of jobs that have started in the slot.
        jitter: in -1..1, spreads the back-off.
    """
    process = slot.process
    was_ready = process.ready_at > 0
    cause = _cause(slot_table, slot, exit_)
    finished = started - process.started_before - (1 if work.job else 0)
    expected = cause in EXPECTED
    failures = 0 if expected or (finished > 0 and now - process.ready_at >= HEALTHY) else slot.failures
    if not expected:
        failures += 1
    return Death(
        slot.number, slot.kind.name, process.pid, process.incarnation, process.supervisor, exit_, cause, was_ready,
        slot.sent.stop, now, now - process.forked_at, failures,
        now if expected else restart_at(slot_table.limits, failures, now, jitter),
    )  # fmt: skip


def restart_at(limits: Limits, failures: int, now: float, jitter: float) -> float:
    """Return when a slot may be filled again after that many consecutive failures."""
    delay = min(limits.respawn_initial * 2.0 ** min(failures - 1, 30), limits.respawn_max)
    return now + delay * (1 + 0.2 * jitter)


def _cause(slot_table: SlotTableState, slot: Slot, exit_: Exit) -> str:
    stop = slot.sent.stop
    if stop is not None and stop.signaled:
        return stop.why.value
    if exit_.code == EXIT_REQUESTED and (slot.state is State.LEAVING or slot_table.supervisor == 0):
        return "requested"
    if exit_.code == EXIT_RECYCLE:
        return "recycled"
    if exit_.code == EXIT_HANDLERS and not slot.process.ready_at:
        return "handlers"
    if exit_.oom:
        return "oom"
    return "signal" if exit_.signal else "exit"
