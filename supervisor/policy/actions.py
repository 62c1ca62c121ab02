"""What a plan can order: one value for each operation on a child process.

Values only. `plan` returns them, and `process/children.py` and `process/offload.py` carry them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

    from jobherd.supervisor.policy.slot import Slot
    from jobherd.workers.ipc.status_board import Interruption


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a child into the slot."""

    slot: Slot


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
