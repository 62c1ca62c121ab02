"""Decides how the supervisor exits: children with jobs first, then the other children, then the supervisor.

`plan_phase` decides from signals and failures whether the supervisor still serves; `shut_down` then
dismisses children and names the stop sequences that the phase wants. Reads facts and changes none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.policy.actions import Dismiss, Finish
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.state_changes import (
    ChildDismissed,
    ExitDecided,
    FailedLoadsTaken,
    Logged,
    ReloadAnswered,
    ReloadEnded,
    StateEntered,
)
from jobherd.supervisor.policy.stop_sequence import StopReason
from jobherd.supervisor.policy.stopping import sequence

if TYPE_CHECKING:
    from jobherd.supervisor.policy.actions import Plan
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table_state import SlotTableState
    from jobherd.supervisor.policy.stop_sequence import StopSequence

PATIENCE_WITHOUT_DATABASE: Final = 3.0
"""Seconds for which an exiting supervisor waits for an unreachable database to release the jobs of
dead children. After that, the jobs are reclaimed when the lease expires."""
PATIENCE_WITH_DATABASE: Final = 6.0
"""The same limit, after `drain_timeout`, for a database that answers but executes nothing. Another
session may hold a lock on a table for hours. It is longer than the server's time limit for a
statement of the supervisor, and starts again with each death that is settled."""
EXIT_DATABASE: Final = 69
"""EX_UNAVAILABLE of sysexits.h."""
EXIT_CONFIG: Final = 78
"""EX_CONFIG of sysexits.h."""


@dataclass(frozen=True, slots=True)
class PlannedPhase:
    """The phase of the supervisor, with what this plan changes about it."""

    run_state: RunState
    since: float
    exit_code: int | None
    reloading: bool
    old_code_stays: bool = False
    """This plan ends a reload because the new code does not load."""

    @property
    def serving(self) -> bool:
        """Whether children are replaced."""
        return self.run_state is RunState.SERVING and self.exit_code is None


def plan_phase(slot_table: SlotTableState, now: float, plan: Plan) -> PlannedPhase:
    """Decide whether the supervisor continues, after failures of the database or the handlers."""
    run_state, since, exit_code = slot_table.run_state, slot_table.state_since, slot_table.exit_code
    reloading, old_code_stays = slot_table.reloading, False
    for name in slot_table.failed_loads:
        if exit_code is not None:
            break
        if not slot_table.ever_ready:
            exit_code = EXIT_CONFIG
            plan.state_changes += [
                ExitDecided(exit_code),
                Logged("the handlers do not load, and no worker of this supervisor was ever ready: stopping"),
            ]
        elif reloading:
            # A half-finished `git pull` must not stop a supervisor: the old children count as current
            # again.
            reloading, old_code_stays = False, True
            answer = "the new code does not load, the old workers stay: " + "; ".join(sorted(slot_table.problems))
            plan.state_changes += [
                ReloadEnded(kept=True),
                ReloadAnswered(answer),
                Logged("the new code does not load: the old workers continue"),
            ]
        else:
            plan.state_changes.append(Logged(f"the handlers do not load any more: {name} waits and is restarted"))
    if slot_table.failed_loads:
        plan.state_changes.append(FailedLoadsTaken())
    if slot_table.database_failed and exit_code is None and run_state is RunState.SERVING:
        # Drain as after SIGTERM, but exit with a code other than 0.
        run_state, since, exit_code = RunState.DRAINING, now, EXIT_DATABASE
        plan.state_changes += [
            ExitDecided(exit_code),
            StateEntered(run_state, now),
            Logged("the database did not answer db_retry_max_attempts times: draining"),
        ]
    if slot_table.rejected and exit_code is None and run_state is RunState.SERVING:
        run_state, since, exit_code = RunState.DRAINING, now, EXIT_CONFIG
        plan.state_changes += [
            ExitDecided(exit_code),
            StateEntered(run_state, now),
            Logged("the gateway rejects this host, and has never accepted it: stopping"),
        ]
    if reloading and slot_table.reload_answer is None and slot_table.ready_generation == slot_table.generation:
        plan.state_changes.append(ReloadAnswered(""))
    return PlannedPhase(run_state, since, exit_code, reloading, old_code_stays)


def shut_down(slot_table: SlotTableState, phase: PlannedPhase, now: float, plan: Plan) -> dict[int, StopSequence]:
    """Stop the children as the phase requires.

    Returns:
        The stop sequences that the phase wants, by slot.
    """
    if phase.serving:
        return {}
    limits, alive = slot_table.limits, slot_table.alive()
    fast = phase.run_state is RunState.FAST_SHUTDOWN
    wanted: dict[int, StopSequence] = {}
    draining = [slot for slot in alive if slot.kind.drains]
    _dismiss(draining, now, plan)
    if phase.run_state is RunState.IMMEDIATE_SHUTDOWN:
        wanted = {slot.number: sequence(slot, StopReason.QUIT, now, 0.0) for slot in alive}
    elif fast or plan.is_due(phase.since + limits.drain_timeout, now):
        grace = limits.fast_grace if fast else limits.grace
        # A child without a job may wait for the database to release its claim. The supervisor does
        # that once the child is dead.
        wanted = {
            slot.number: sequence(slot, StopReason.DRAIN if slot.seen.work.job else StopReason.STUCK, now, grace)
            for slot in draining
        }
    if draining or not _are_deaths_settled(slot_table, phase, now, plan):
        return wanted
    _dismiss(alive, now, plan)
    if fast:
        # These children hold no jobs, and may be waiting for a database that is down.
        wanted |= {slot.number: sequence(slot, StopReason.STUCK, now, limits.fast_grace) for slot in alive}
    if not alive:
        plan.actions.append(Finish(phase.exit_code or 0))
    return wanted


def _are_deaths_settled(slot_table: SlotTableState, phase: PlannedPhase, now: float, plan: Plan) -> bool:
    """Return whether the jobs of dead children are released, or are not waited for any longer.

    If the database is down, the lease does it, so do not wait. Do not wait indefinitely for one
    that rejects or blocks the release either, and not at all after a second signal to stop.
    """
    if not slot_table.unrecovered or phase.run_state is RunState.IMMEDIATE_SHUTDOWN:
        return True
    since = max(slot.since for slot in slot_table.slots)
    if slot_table.database_since is None or phase.run_state is RunState.FAST_SHUTDOWN:
        return plan.is_due(since + PATIENCE_WITHOUT_DATABASE, now)
    last = max(since, phase.since + slot_table.limits.drain_timeout, slot_table.recovered_at)
    return plan.is_due(last + PATIENCE_WITH_DATABASE, now)


def _dismiss(slots: list[Slot] | tuple[Slot, ...], now: float, plan: Plan) -> None:
    for slot in slots:
        if slot.is_booting_or_ready:
            plan.actions.append(Dismiss(slot))
            plan.state_changes.append(ChildDismissed(slot, now))
