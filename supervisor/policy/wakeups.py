"""Decides which idle children are woken, and whether producers should notify this supervisor.

Reads facts and changes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.policy.actions import Plan, WakeChild
from jobherd.supervisor.policy.slot import State
from jobherd.supervisor.policy.state_changes import ChildWoken, WakeupsTaken

if TYPE_CHECKING:
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table_state import SlotTableState

BUSY: Final = 0.2
"""Seconds without an idle worker after which producers need not notify. Enabling notifications
again costs three round trips."""


def wants_notify(slot_table: SlotTableState, now: float) -> bool:
    """Return whether producers should notify this supervisor.

    False once every worker has been busy for `BUSY` seconds: a busy worker claims its next jobs
    without being woken.
    """
    return slot_table.busy_since is None or now < slot_table.busy_since + BUSY


def can_be_woken(slot: Slot) -> bool:
    """Return whether the child waits for work, is not being stopped, and no wake-up is under way.

    A wake-up is under way until the child has claimed. A stopped process counts as busy: it would
    keep the wake-up without acting on it.
    """
    return (
        slot.state is State.READY
        and slot.kind.claims
        and slot.seen.idle
        and not slot.process.stopped_at
        and slot.sent.stop is None
        and slot.seen.claims != slot.sent.woken_claims
    )


def wakeups(slot_table: SlotTableState) -> Plan:
    """Wake as many idle workers as were requested, and every other idle child that claims jobs.

    A worker may not serve the jobs that remote workers wait for, and the reverse. So a child that
    claims for others is woken in addition to the worker, at the cost of one claim that may be empty.

    A request that no child can take is not lost: a busy worker looks for jobs again before it goes
    idle.
    """
    plan, pending = Plan(), slot_table.pending_wakeups
    requested = pending > 0
    for slot in slot_table.alive():
        if not slot.is_booting_or_ready:
            continue
        if slot.kind not in slot_table.kinds_to_wake:
            if not (pending > 0 if slot.kind.works else requested) or not can_be_woken(slot):
                continue
            pending -= slot.kind.works
        plan.actions.append(WakeChild(slot))
        plan.state_changes.append(ChildWoken(slot))
    plan.state_changes.append(WakeupsTaken())
    return plan
