"""What a status board says about a child process, and how the supervisor interrupts it. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Phase(IntEnum):
    """What a child process does, for display and for the post-mortem."""

    BOOTING = 0
    IDLE = 1
    CLAIMING = 2
    RUNNING = 3
    SETTLING = 4
    LEAVING = 5
    TOGETHER = 6
    """It runs several jobs in one call. `job` is the first of them."""


class Reason(IntEnum):
    """Why the supervisor interrupts a job."""

    NONE = 0
    CANCEL = 1
    DRAIN = 2
    LOST = 3
    """The claim turned out to be lost: another worker has the job."""


class CurrentWork(NamedTuple):
    """What a child process does.

    `job` is 0 between jobs. Times are monotonic seconds. `deadline` is infinite without a timeout.
    """

    phase: Phase
    child: int = 0
    token: int = 0
    job: int = 0
    kind: int = 0
    attempts: int = 0
    max_attempts: int = 0
    crashes: int = 0
    started: float = 0.0
    deadline: float = float("inf")

    @property
    def runs(self) -> bool:
        """Whether a handler runs."""
        return self.phase is Phase.RUNNING or self.phase is Phase.TOGETHER

    @property
    def unstarted(self) -> bool:
        """Whether the job was announced and had not started.

        Only the supervisor creates such a record, for a dead worker.
        """
        return self.phase is Phase.CLAIMING and self.job != 0


@dataclass(frozen=True, slots=True)
class Interruption:
    """A message of the supervisor to a worker: interrupt this claim."""

    reason: Reason
    token: int = 0
    job: int = 0
