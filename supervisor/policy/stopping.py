"""Decides why a child is stopped, and when that reason has passed.

Each reason is one function from the facts to the stop sequence that it wants; `REASONS` calls them
in order. `ENDS` has for each reason when its sequence has ended. The steps themselves are in
`stop_sequence.py`. Reads facts and changes none.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.policy.actions import NEVER, Interrupt, Kill
from jobherd.supervisor.policy.slot import State
from jobherd.supervisor.policy.state_changes import CancelSent, StopChanged
from jobherd.supervisor.policy.stop_sequence import Stage, StopReason, StopSequence, advance, begin
from jobherd.workers.ipc.current_work import Interruption, Phase, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.policy.actions import Plan
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table_state import SlotTableState

BETWEEN_CANCELS: Final = 0.05
"""Seconds between two notifications of one child: its status board holds one interruption."""


def _job_over(stop: StopSequence, slot: Slot) -> bool:
    work = slot.seen.work
    return (work.token, work.job) != (stop.token, stop.job)


def _handler_over(stop: StopSequence, slot: Slot) -> bool:
    """Return whether the job has ended, or waits only for the database to write its outcome."""
    return _job_over(stop, slot) or not slot.seen.work.runs


def _hook_over(stop: StopSequence, slot: Slot) -> bool:
    return slot.seen.hook != stop.since


def _with_the_process(_stop: StopSequence, _slot: Slot) -> bool:
    return False


ENDS: Final[dict[StopReason, Callable[[StopSequence, Slot], bool]]] = {
    StopReason.TIMEOUT: _handler_over,
    StopReason.CANCEL: _handler_over,
    StopReason.DRAIN: _job_over,
    StopReason.HOOK: _hook_over,
    StopReason.CLAIM_LOST: _with_the_process,
    StopReason.SPAWN: _with_the_process,
    StopReason.QUIT: _with_the_process,
    StopReason.STUCK: _with_the_process,
    StopReason.STOPPED: _with_the_process,
}
"""By the reason of a sequence: whether it has ended before the process."""


@dataclass(frozen=True, slots=True)
class Case:
    """The facts from which a reason decides whether to stop a child."""

    slot_table: SlotTableState
    slot: Slot
    now: float
    plan: Plan
    dismissed: bool
    """This plan dismisses the child."""

    def is_due(self, when: float) -> bool:
        """Return whether that time has come; otherwise plan again then."""
        return self.plan.is_due(when, self.now)


def stop_child(
    slot_table: SlotTableState, slot: Slot, now: float, plan: Plan, *, shutdown: StopSequence | None, dismissed: bool
) -> None:
    """Begin, advance or end the stop sequence of a slot's child.

    Args:
        slot_table: the slots of the children, and facts about the whole supervisor.
        slot: a slot with a process.
        now: the current time.
        plan: gets the actions, the state changes and the time of the next step.
        shutdown: the sequence that the shutdown of the supervisor wants.
        dismissed: this plan dismisses the child.
    """
    stop = slot.sent.stop
    if stop is not None and ENDS[stop.why](stop, slot):
        stop = None
    if slot.seen.work.phase is Phase.RUNNING and _running(slot) in slot.seen.cancels:
        stop = begin(stop, sequence(slot, StopReason.CANCEL, now, slot_table.limits.grace))
    if slot.process.lost_at:
        stop = begin(stop, sequence(slot, StopReason.CLAIM_LOST, slot.process.lost_at, slot_table.limits.fast_grace))
    if shutdown is not None:
        stop = begin(stop, shutdown)
    case = Case(slot_table, slot, now, plan, dismissed)
    for reason in REASONS:
        if (wanted := reason(case, stop)) is not None:
            stop = begin(stop, wanted)
    _notify_cancels(slot, stop, now, plan)
    if stop is not None:
        stop, steps, due = advance(stop, now)
        plan.actions += [
            Kill(slot, step) if isinstance(step, signal.Signals) else Interrupt(slot, step) for step in steps
        ]
        plan.later(due)
    if stop != slot.sent.stop:
        plan.state_changes.append(StopChanged(slot, stop))


def sequence(slot: Slot, why: StopReason, since: float, grace: float, stage: Stage = Stage.REQUESTED) -> StopSequence:
    """Return a sequence for what the child does now."""
    return StopSequence(why, since, slot.seen.work.token, slot.seen.work.job, stage, grace)


def _running(slot: Slot) -> tuple[int, int]:
    return slot.seen.work.token, slot.seen.work.job


def _notify_cancels(slot: Slot, stop: StopSequence | None, now: float, plan: Plan) -> None:
    """Notify a child that a claimed job is canceled that it has not started, or runs in a batch.

    The other jobs of a batch must not be interrupted. A job that runs alone gets a stop sequence.
    """
    pending = [cancel for cancel in slot.seen.cancels if cancel not in slot.sent.cancels]
    if slot.seen.work.phase is not Phase.TOGETHER and _running(slot) in pending:
        plan.state_changes.append(CancelSent(slot, _running(slot)))
        pending.remove(_running(slot))
    if pending and stop is None:
        token, job = pending[0]
        plan.actions.append(Interrupt(slot, Interruption(Reason.CANCEL, token, job)))
        plan.state_changes.append(CancelSent(slot, pending[0]))
        if len(pending) > 1:
            plan.later(now + BETWEEN_CANCELS)


# -- reasons


def _deadline(case: Case, stop: StopSequence | None) -> StopSequence | None:
    """Stop a job at its deadline. The child's own timer fires then; the grace periods count from there."""
    work = case.slot.seen.work
    if not (work.job and work.runs and work.deadline < NEVER):
        return None
    if stop is not None and (stop.why is not StopReason.CANCEL or stop.signaled):
        return None
    if not case.is_due(work.deadline):
        return None
    return sequence(case.slot, StopReason.TIMEOUT, work.deadline, case.slot_table.limits.grace, Stage.INTERRUPTED)


def _exclusive(case: Case, stop: StopSequence | None) -> StopSequence | None:
    """Stop an exclusive job before the lease ends.

    Its own timer fires a fifth of the lease before that end, this limit after it.
    """
    if not (case.slot.seen.exclusive and case.slot.seen.work.job and case.slot.seen.work.runs):
        return None
    if stop is not None and stop.why is StopReason.CLAIM_LOST:
        return None
    if not case.is_due(case.slot_table.lease_deadline - min(1.0, case.slot_table.limits.lease / 15)):
        return None
    return sequence(case.slot, StopReason.CLAIM_LOST, case.now, 0.0, Stage.INTERRUPTED)


def _hook(case: Case, stop: StopSequence | None) -> StopSequence | None:
    """Stop a hook that ignores the child's own timer: it would block the worker indefinitely, without a message."""
    if not case.slot.seen.hook or stop is not None or not case.is_due(case.slot.seen.hook):
        return None
    return sequence(case.slot, StopReason.HOOK, case.slot.seen.hook, case.slot_table.limits.grace, Stage.INTERRUPTED)


def _stopped(case: Case, _stop: StopSequence | None) -> StopSequence | None:
    """Kill a process that a signal stopped: it would keep its slot, and perhaps a claim, indefinitely.

    While it runs a job or a hook, that one's time limit applies. A debugger stops a process in
    another way, which the kernel does not report to the supervisor.
    """
    stopped_at = case.slot.process.stopped_at
    if not stopped_at or case.slot.seen.work.runs or not case.is_due(stopped_at + case.slot_table.limits.spawn_timeout):
        return None
    return sequence(case.slot, StopReason.STOPPED, case.now, 0.0)


def _not_ready(case: Case, _stop: StopSequence | None) -> StopSequence | None:
    """Kill a child that stays in BOOTING too long, except while the database is down."""
    if case.slot.state is not State.BOOTING or case.dismissed or case.slot_table.database_since is None:
        return None
    if not case.is_due(max(case.slot.since, case.slot_table.database_since) + case.slot_table.limits.spawn_timeout):
        return None
    return sequence(case.slot, StopReason.SPAWN, case.now, 0.0)


def _not_leaving(case: Case, _stop: StopSequence | None) -> StopSequence | None:
    """Kill a dismissed child that has no job and does not exit.

    Only a worker may wait for the database to release its claim, so a new session restarts its
    limit. The other children hold nothing and get no extension: sessions may end every few seconds
    while statements are blocked, and each would restart their limit. A child whose jobs run
    elsewhere shows no job here, and waits for them for up to `drain_timeout`.
    """
    if (case.slot.state is not State.LEAVING and not case.dismissed) or case.slot.seen.work.job:
        return None
    database_since = case.slot_table.database_since if case.slot.kind.works else 0.0
    if database_since is None:
        return None
    since = max(case.now if case.dismissed else case.slot.since, database_since)
    limits, kind = case.slot_table.limits, case.slot.kind
    patience = limits.spawn_timeout + (limits.drain_timeout if kind.drains and not kind.works else 0.0)
    if not case.is_due(since + patience):
        return None
    return sequence(case.slot, StopReason.STUCK, case.now, 0.0)


REASONS: Final = (_deadline, _exclusive, _hook, _stopped, _not_ready, _not_leaving)
