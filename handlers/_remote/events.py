"""What a remote worker learns from its gateway, as values. Nothing here does I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.handlers._remote.messages import Result, Task


class Ref(NamedTuple):
    """One claim of one task. `claim` is its fencing token."""

    task: int
    claim: int


class Stop(Enum):
    """Why a worker must stop a task."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    LOST = "lost"
    """Another worker can have the task. The gateway accepts no result."""


@dataclass(frozen=True, slots=True)
class ReadyAnswered:
    """A Ready is answered. Without tasks: it was taken back, rejected, or the gateway drains."""

    number: int
    tasks: Sequence[Task] = ()


@dataclass(frozen=True, slots=True)
class ReadyRejected:
    """The token allows nothing of what a Ready asked for. Comes after its ReadyAnswered."""

    message: str


@dataclass(frozen=True, slots=True)
class TaskStopped:
    """A task must be stopped. If it is lost, its result must not be reported."""

    ref: Ref
    why: Stop


@dataclass(frozen=True, slots=True)
class ResultRejected:
    """The gateway did not record a result as sent.

    Attributes:
        result: what was sent.
        again: the task is open again, and needs another result.
        message: why, for people.
        lost: nothing was recorded, because the worker had lost the task.
    """

    result: Result
    again: bool
    message: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ResultsConfirmed:
    """The gateway has recorded the results of these tasks as sent."""

    refs: Sequence[Ref]


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """Release the tasks that have not started: a pause or a concurrency limit has changed."""


Event: TypeAlias = ReadyAnswered | ReadyRejected | TaskStopped | ResultRejected | ResultsConfirmed | ReleaseRequested
