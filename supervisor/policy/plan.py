"""Calls each policy in order and returns one plan: actions, state changes and the time of the next plan.

Each policy has its own module. Neither this module nor a policy makes a system call, reads a clock,
or writes to the slot table: `state_changes.apply` stores what was decided, before the actions are carried
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.supervisor.policy.actions import Plan
from jobherd.supervisor.policy.replacement import is_due_for_replacement, replace_children
from jobherd.supervisor.policy.shutdown import plan_phase, shut_down
from jobherd.supervisor.policy.state_changes import ChildDismissed, PlanDue, RecycleDecided
from jobherd.supervisor.policy.stopping import stop_child
from jobherd.supervisor.policy.stragglers import offload_claim

if TYPE_CHECKING:
    from jobherd.supervisor.policy.slot_table_state import SlotTableState


def plan(slot_table: SlotTableState, now: float) -> Plan:
    """Return what to do.

    The order matters: nothing is forked for a child that is dismissed by the same plan. Wake-ups
    follow the plan, see `wakeups.py`: a child that is to be stopped is not woken.
    """
    result = Plan()
    phase = plan_phase(slot_table, now, result)
    shutdown = shut_down(slot_table, phase, now, result)
    dismissed = {change.slot.number for change in result.state_changes if isinstance(change, ChildDismissed)}
    for slot in slot_table.alive():
        if slot.number not in dismissed:
            offload_claim(slot_table, slot, result)
        stop_child(
            slot_table, slot, now, result, shutdown=shutdown.get(slot.number), dismissed=slot.number in dismissed
        )
        if not slot.sent.recycle and is_due_for_replacement(slot_table, slot, now):
            result.state_changes.append(RecycleDecided(slot))
    if phase.serving:
        replace_children(slot_table, phase, now, result)
    result.state_changes.append(PlanDue(result.wake_at))
    return result
