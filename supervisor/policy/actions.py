"""Defines a plan: actions on child processes, state changes to store, and the time of the next plan.

Values only. An action is one operation on a child process; `process/children.py` and
`process/offload.py` carry them out. `state_changes.apply` stores the state changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import signal

    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.state_changes import StateChange
    from jobherd.workers.ipc.current_work import Interruption


NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a child into the slot. `reserved`: the only queue that it serves; empty: all of them."""

    slot: Slot
    reserved: str = ""


@dataclass(frozen=True, slots=True)
class WakeChild:
    """Write a byte to the child's wake pipe."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Offload:
    """Write the outcomes of the claim that wait behind the running job.

    Attributes:
        slot: the slot whose child holds the claim.
        token: the claim's fencing token.
        release: also stop the child from starting more jobs of the claim, and release these jobs.
            Otherwise the child continues with its claim.
    """

    slot: Slot
    token: int
    release: bool


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Close the child's wake pipe."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Write the interruption to the child's status board and send SIGUSR2."""

    slot: Slot
    what: Interruption


@dataclass(frozen=True, slots=True)
class Kill:
    """Send a signal to the child's process group."""

    slot: Slot
    signum: signal.Signals


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do: exit with this code."""

    code: int


Action = Fork | WakeChild | Offload | Dismiss | Interrupt | Kill | Finish


@dataclass(slots=True)
class Plan:
    """The actions to take now, the state changes to store before them, and the time to plan next."""

    actions: list[Action] = field(default_factory=list)
    state_changes: list[StateChange] = field(default_factory=list)
    wake_at: float = NEVER

    def later(self, when: float) -> None:
        """Plan again at that time at the latest."""
        self.wake_at = min(self.wake_at, when)

    def is_due(self, when: float, now: float) -> bool:
        """Return whether that time has come; otherwise plan again then."""
        if now < when:
            self.later(when)
        return now >= when
