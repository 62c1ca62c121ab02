"""Decides which children are forked and which are dismissed while the supervisor serves.

Missing children are forked, outdated ones are replaced one at a time, and surplus ones dismissed,
without going below the wanted number. Reads facts and changes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.supervisor.policy.actions import Dismiss, Fork
from jobherd.supervisor.policy.child_kinds import KINDS
from jobherd.supervisor.policy.slot import State
from jobherd.supervisor.policy.state_changes import ChildDismissed, Logged, ReloadAnswered, ReloadEnded

if TYPE_CHECKING:
    from jobherd.supervisor.policy.actions import Plan
    from jobherd.supervisor.policy.child_kinds import ChildKind
    from jobherd.supervisor.policy.shutdown import PlannedPhase
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table_state import SlotTableState


def is_due_for_replacement(slot_table: SlotTableState, slot: Slot, now: float) -> bool:
    """Return whether the child is due for replacement, whatever code it runs."""
    if slot.sent.recycle or slot.process.lost_at:
        return True
    if slot.state is not State.READY or not slot.kind.works:
        return False
    limits, process, seen = slot_table.limits, slot.process, slot.seen
    return bool(
        (limits.max_jobs and seen.started - process.started_before >= slot.limits.jobs)
        or (limits.max_age and now - process.forked_at >= slot.limits.age)
        or (limits.max_rss and seen.rss >= limits.max_rss)
    )


def replace_children(slot_table: SlotTableState, phase: PlannedPhase, now: float, plan: Plan) -> None:
    """Fork missing children and dismiss surplus ones."""
    if not slot_table.supervisor:
        return
    outdated = {slot.number for slot in slot_table.alive() if _is_outdated(slot_table, slot, phase, now)}
    gone: set[int] = set()
    for kind in KINDS:
        slots = [slot for slot in slot_table.slots if slot.kind is kind]
        wanted = slot_table.wants(kind)
        here = [slot for slot in slots if slot.is_booting_or_ready]
        old = [slot for slot in here if slot.number in outdated]
        resting = [slot for slot in slots if not slot.alive and slot.rest_until > now]
        for slot in resting:
            plan.later(slot.rest_until)
        missing = wanted - len(here) - len(resting)
        if old and kind.works and missing <= 0 and not resting and len(here) <= wanted:
            missing = 1  # one new worker at a time; an old one is dismissed when it is READY
        free = [slot for slot in slots if not slot.alive and slot.rest_until <= now]
        forked = free[: max(missing, 0)]
        lacking = _lacking(slot_table, [slot for slot in here if slot not in old]) if kind.works else []
        plan.actions += [
            Fork(slot, lacking[place] if place < len(lacking) else "") for place, slot in enumerate(forked)
        ]
        for slot in _surplus(here, old, wanted, kind):
            plan.actions.append(Dismiss(slot))
            plan.state_changes.append(ChildDismissed(slot, now))
            gone.add(slot.number)
    left = {slot.number for slot in slot_table.workers() if slot.is_booting_or_ready} - gone
    if phase.reloading and not left & outdated:
        plan.state_changes += [
            ReloadEnded(kept=False),
            ReloadAnswered(""),
            Logged("reloaded: every worker runs the new code", warning=False),
        ]


def _lacking(slot_table: SlotTableState, here: list[Slot]) -> list[str]:
    """Return the queues that lack reserved workers, each as often as it lacks them."""
    return [
        queue
        for queue, count in slot_table.limits.reserved
        for _ in range(count - sum(slot.process.reserved == queue for slot in here))
    ]


def _is_outdated(slot_table: SlotTableState, slot: Slot, phase: PlannedPhase, now: float) -> bool:
    # Of the children that load handlers, workers are replaced first: if the new code is broken, the
    # others keep the old code.
    if is_due_for_replacement(slot_table, slot, now):
        return True
    if phase.old_code_stays or slot.process.generation >= slot_table.generation:
        return False
    return slot.kind.works or (slot.kind.loads and not phase.reloading)


def _surplus(here: list[Slot], old: list[Slot], wanted: int, kind: ChildKind) -> list[Slot]:
    """Return the children to dismiss.

    First outdated ones, while enough others are READY, then the highest numbers above the wanted
    count.
    """
    if not kind.works:
        return old if len(here) <= wanted else here[wanted:]
    ready = sum(slot.state is State.READY for slot in here)
    fresh = [slot for slot in here if slot not in old]
    going = sorted(old, key=lambda slot: (slot.state is State.READY, bool(slot.seen.work.job)))[
        : max(ready - wanted, 0)
    ]
    if len(here) - len(going) > wanted and not old:
        going += sorted(fresh, key=lambda slot: slot.number)[wanted:]
    return going
