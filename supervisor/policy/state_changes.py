"""Defines the state changes that a plan may decide, and stores them with `apply`.

A decision is stored so that it is made only once. `plan` returns changes and writes nothing, so a
plan that is not applied changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from jobherd.supervisor.policy.slot import SlotEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.supervisor.policy.run_state import RunState
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.policy.stop_sequence import StopSequence


@dataclass(frozen=True, slots=True)
class StopChanged:
    """The child's stop sequence has started, advanced or ended."""

    slot: Slot
    stop: StopSequence | None


@dataclass(frozen=True, slots=True)
class ChildDismissed:
    """The child's wake pipe is closed."""

    slot: Slot
    at: float


@dataclass(frozen=True, slots=True)
class ChildWoken:
    """A wake-up was sent to the child."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class WakeupsTaken:
    """All requested wake-ups were sent, or no child could take them."""


@dataclass(frozen=True, slots=True)
class RecycleDecided:
    """The child is replaced: it has passed a limit."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class CancelSent:
    """The child was notified that this (claim token, job) is canceled, or a stop sequence covers it."""

    slot: Slot
    cancel: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Offloaded:
    """The claim of the straggler was released, or its outcomes were written."""

    slot: Slot
    token: int
    job: int
    release: bool


@dataclass(frozen=True, slots=True)
class StateEntered:
    """The supervisor enters a phase without a signal."""

    run_state: RunState
    at: float


@dataclass(frozen=True, slots=True)
class ExitDecided:
    """A failure has decided the exit code."""

    code: int


@dataclass(frozen=True, slots=True)
class FailedLoadsTaken:
    """The failed loads of the handlers were handled."""


@dataclass(frozen=True, slots=True)
class ReloadAnswered:
    """Whether the code of the latest reload loads: an empty text if it does, else the reason."""

    answer: str


@dataclass(frozen=True, slots=True)
class ReloadEnded:
    """No child is replaced for a reload any more. `kept`: because the old code stays."""

    kept: bool


@dataclass(frozen=True, slots=True)
class PlanDue:
    """The time of the next plan."""

    at: float


@dataclass(frozen=True, slots=True)
class Logged:
    """A message for the log."""

    text: str
    warning: bool = True


StateChange = (
    StopChanged
    | ChildDismissed
    | ChildWoken
    | WakeupsTaken
    | RecycleDecided
    | CancelSent
    | Offloaded
    | StateEntered
    | ExitDecided
    | FailedLoadsTaken
    | ReloadAnswered
    | ReloadEnded
    | PlanDue
    | Logged
)


def apply(slot_table: SlotTable, changes: Iterable[StateChange]) -> None:
    """Store what a plan has decided."""
    for change in changes:
        match change:
            case StopChanged(slot, stop):
                slot.sent.stop = stop
            case ChildDismissed(slot, at):
                slot.enter(SlotEvent.DISMISSED, at)
            case ChildWoken(slot):
                slot.sent.woken_claims = slot.seen.claims
            case WakeupsTaken():
                slot_table.pending_wakeups = 0
                slot_table.kinds_to_wake.clear()
            case RecycleDecided(slot):
                slot.sent.recycle = True
            case CancelSent(slot, cancel):
                slot.sent.cancels = frozenset({*slot.sent.cancels.intersection(slot.seen.cancels), cancel})
            case Offloaded(slot, token, job, release):
                if release:
                    slot.sent.released = token
                else:
                    slot.sent.flushed = token, job
            case StateEntered(run_state, at):
                slot_table.enter_state(run_state, at)
            case ExitDecided(code):
                slot_table.exit_code = code
            case FailedLoadsTaken():
                slot_table.failed_loads = []
            case ReloadAnswered(answer):
                slot_table.reload_answer = answer
            case ReloadEnded(kept):
                slot_table.reloading = False
                if kept:
                    for slot in slot_table.slots:
                        slot.process.generation = slot_table.generation
            case PlanDue(at):
                slot_table.plan_at = at
            case Logged(text, warning):
                (slot_table.warnings if warning else slot_table.notes).append(text)
            case _:
                assert_never(change)
