"""Decides what to do: from a fleet and the current time to actions, marks and the next time to plan.

Every policy of the supervisor is called here, in order; each has its own module. Nothing here or
below makes a system call, reads a clock, or writes to the fleet: `marks.apply` stores what was
decided, before the actions are carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.supervisor.policy.actions import Plan
from jobherd.supervisor.policy.marks import ChildDismissed, PlanDue, RecycleDecided
from jobherd.supervisor.policy.replacement import is_to_recycle, replace_children
from jobherd.supervisor.policy.shutdown import outlook, shut_down
from jobherd.supervisor.policy.stopping import stop_child
from jobherd.supervisor.policy.stragglers import offload_claim

if TYPE_CHECKING:
    from jobherd.supervisor.policy.fleet_state import FleetState


def plan(fleet: FleetState, now: float) -> Plan:
    """Return what to do.

    The order matters: nothing is forked for a child that is dismissed by the same plan. Wake-ups
    follow the plan, see `wakeups.py`: a child that is to be stopped is not woken.
    """
    result = Plan()
    phase = outlook(fleet, now, result)
    shutdown = shut_down(fleet, phase, now, result)
    dismissed = {mark.slot.number for mark in result.marks if isinstance(mark, ChildDismissed)}
    for slot in fleet.alive():
        if slot.number not in dismissed:
            offload_claim(fleet, slot, result)
        stop_child(fleet, slot, now, result, shutdown=shutdown.get(slot.number), dismissed=slot.number in dismissed)
        if not slot.sent.recycle and is_to_recycle(fleet, slot, now):
            result.marks.append(RecycleDecided(slot))
    if phase.serving:
        replace_children(fleet, phase, now, result)
    result.marks.append(PlanDue(result.wake_at))
    return result
