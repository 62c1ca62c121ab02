"""Steps through a stop sequence: interrupt a child, SIGTERM after one grace period, SIGKILL after two.

Two tables: what each stage sends and when (`STAGES`), and which reason may replace a sequence that
is under way (`OVERRIDES`). `begin` is the only place where a sequence starts. Values only: `stopping.py`
decides when a child is stopped and when its sequence has ended.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from jobherd.workers.ipc.current_work import Interruption, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER: Final = float("inf")


class Stage(Enum):
    """How far the stop sequence of a child has come."""

    REQUESTED = 0
    """Nothing was sent yet."""
    INTERRUPTED = 1
    """The child's own timer has fired, or its status board holds an interruption."""
    TERMINATED = 2
    """SIGTERM was sent to its process group."""
    KILLED = 3
    """SIGKILL was sent to its process group; only its death remains to be recorded."""


class StopReason(Enum):
    """Why a child is being stopped; also its job's outcome if the stop sequence ends the process."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    DRAIN = "drain"
    CLAIM_LOST = "claim_lost"
    """It has lost its claim: another supervisor has the job."""
    SPAWN = "spawn"
    """It was not READY in time."""
    QUIT = "quit"
    STUCK = "stuck"
    """It holds no jobs, was dismissed, and does not exit."""
    HOOK = "hook"
    """A hook that runs outside any job's time limit does not end."""
    STOPPED = "stopped"
    """Its process was stopped (SIGSTOP) between two jobs and was not continued."""


INTERRUPTIONS: Final = {
    StopReason.CANCEL: Reason.CANCEL,
    StopReason.DRAIN: Reason.DRAIN,
    StopReason.CLAIM_LOST: Reason.LOST,
}
"""The reasons for which the child is interrupted first. For the others its own timer does that, or
it runs no job."""


@dataclass(frozen=True, slots=True)
class StopSequence:
    """The stop sequence of a child: its start, its claim, its stage."""

    why: StopReason
    since: float
    token: int
    job: int
    stage: Stage = Stage.REQUESTED
    grace: float = 5.0

    @property
    def kill_at(self) -> float:
        """The time of SIGKILL."""
        return self.since + STAGES[Stage.KILLED].graces * self.grace

    @property
    def signaled(self) -> bool:
        """Whether a signal was sent that ends the process."""
        return STAGES[self.stage].signum is not None


@dataclass(frozen=True, slots=True)
class StageRule:
    """When a stage is due, in grace periods after the start, and the signal that it sends."""

    graces: int
    signum: signal.Signals | None = None


STAGES: Final = {
    Stage.REQUESTED: StageRule(0),
    Stage.INTERRUPTED: StageRule(0),
    Stage.TERMINATED: StageRule(1, signal.SIGTERM),
    Stage.KILLED: StageRule(2, signal.SIGKILL),
}


def _never(_current: StopSequence, _wanted: StopSequence) -> bool:
    return False


def _if_it_ends_earlier(current: StopSequence, wanted: StopSequence) -> bool:
    return current.stage is not Stage.KILLED and wanted.kill_at < current.kill_at


def _if_a_cancel_had_no_signal(current: StopSequence, _wanted: StopSequence) -> bool:
    """The child's own timer fires at the deadline, so the cancellation counts as a timeout then."""
    return current.why is StopReason.CANCEL and not current.signaled


OVERRIDES: Final[dict[StopReason, Callable[[StopSequence, StopSequence], bool]]] = {
    StopReason.TIMEOUT: _if_a_cancel_had_no_signal,
    StopReason.CANCEL: _never,
    StopReason.DRAIN: _if_it_ends_earlier,
    StopReason.CLAIM_LOST: _if_it_ends_earlier,
    StopReason.SPAWN: _if_it_ends_earlier,
    StopReason.QUIT: _if_it_ends_earlier,
    StopReason.STUCK: _if_it_ends_earlier,
    StopReason.HOOK: _never,
    StopReason.STOPPED: _if_it_ends_earlier,
}
"""By the reason of a new sequence: whether it replaces the one that is under way."""


def begin(current: StopSequence | None, wanted: StopSequence) -> StopSequence:
    """Return the sequence that is under way once `wanted` was requested."""
    return wanted if current is None or OVERRIDES[wanted.why](current, wanted) else current


def advance(sequence: StopSequence, now: float) -> tuple[StopSequence, list[Interruption | signal.Signals], float]:
    """Take the steps that are due.

    Returns:
        The sequence after them, what to send to the child, and when the next step is due.
    """
    if sequence.stage is Stage.KILLED:
        return sequence, [], NEVER
    steps: list[Interruption | signal.Signals] = []
    stage: Stage = sequence.stage
    if sequence.stage is Stage.REQUESTED:
        stage = Stage.INTERRUPTED
        if sequence.why in INTERRUPTIONS:
            steps.append(Interruption(INTERRUPTIONS[sequence.why], sequence.token, sequence.job))
    for later in (Stage.KILLED, Stage.TERMINATED):
        rule = STAGES[later]
        if later.value > stage.value and now >= sequence.since + rule.graces * sequence.grace:
            stage = later
            if rule.signum is not None:
                steps.append(rule.signum)
            break
    due = [sequence.since + rule.graces * sequence.grace for later, rule in STAGES.items() if later.value > stage.value]
    return replace(sequence, stage=stage), steps, min(due, default=NEVER)
