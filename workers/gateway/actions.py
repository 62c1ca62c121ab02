"""Actions as values: the messages and transactions that the event loop must carry out.

The functions of the bookkeeping return them, and the event loop carries them out in that order. An
action is one message to a stream or one transaction for the database thread. This module carries out
none. `sessions.py` explains how the parts fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

STALE: Final = -1


class TaskRef(NamedTuple):
    """One execution of a job. `claim` is its fencing token."""

    task: int
    claim: int


class Status(Enum):
    """The gRPC status that ends a stream."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    UNAVAILABLE = "UNAVAILABLE"
    UNAUTHENTICATED = "UNAUTHENTICATED"


class Reason(Enum):
    """Why a worker must stop a task."""

    CANCELLED = "CANCELLED"
    LOST = "LOST"


# Messages to a stream.


@dataclass(frozen=True, slots=True)
class EndStream:
    """End the stream with a status. Frames that were not handed to gRPC yet are discarded."""

    stream: int
    status: Status
    why: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """Send HelloAck. `lost`: tasks that the worker named and that are not its own any more."""

    stream: int
    session: int
    lost: tuple[TaskRef, ...]
    session_seconds: float


@dataclass(frozen=True, slots=True)
class SendTasks:
    """Send the TaskBatch that answers a Ready. The loop has the jobs, by their claim.

    claim: the fencing token. 0: an empty TaskBatch.
    """

    stream: int
    ready: int
    claim: int


@dataclass(frozen=True, slots=True)
class SendAck:
    """Send ResultAck. Every ResultBatch up to that number is committed."""

    stream: int
    up_to: int


@dataclass(frozen=True, slots=True)
class SendHeartbeatAck:
    """Send HeartbeatAck. `session_seconds` counts from the arrival of the Heartbeat."""

    stream: int
    number: int
    lost: tuple[TaskRef, ...]
    session_seconds: float


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Send Cancel."""

    stream: int
    task: TaskRef
    reason: Reason


@dataclass(frozen=True, slots=True)
class SendReleaseRest:
    """Send ReleaseRest."""

    stream: int


@dataclass(frozen=True, slots=True)
class SendDrain:
    """Send Drain."""

    stream: int
    within: float


# Transactions. A database thread repeats each of them until it has an answer.


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Register a session. Its answer is `sessions.on_opened`."""

    stream: int
    principal: str


@dataclass(frozen=True, slots=True)
class AttachSession:
    """Attach a session to this gateway and release what the worker does not hold.

    One transaction: count `attached` up, then release every task of the session that is not in
    `held`, attempt not counted. Its answer is `sessions.on_opened` or `sessions.on_not_opened`.
    """

    stream: int
    session: int
    principal: str
    held: tuple[TaskRef, ...]


@dataclass(frozen=True, slots=True)
class RenewSessions:
    """Renew the leases of sessions, each fenced by its `attached`. Answer: `sessions.on_renewed`."""

    sessions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Release tasks that did not start, attempt not counted.

    The fencing token is enough protection: if another process has the tasks, it changes nothing.
    Answer: `tasks.on_released`.
    """

    session: int
    child: int
    tasks: tuple[TaskRef, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Record the outcomes of one ResultBatch, under the fencing tokens. Answer: `tasks.on_settled`."""

    stream: int
    number: int
    session: int
    child: int
    tasks: tuple[TaskRef, ...]


@dataclass(frozen=True, slots=True)
class ExpireTasks:
    """Record LEASE_EXPIRED for tasks, behind `hold_session`. Answer: `tasks.on_expired`."""

    session: int
    child: int
    attached: int
    tasks: tuple[TaskRef, ...]


@dataclass(frozen=True, slots=True)
class ReleaseUnacknowledged:
    """Release the claims of a session that its worker has not received, behind `hold_session`.

    Answer: `sessions.on_checked`.
    """

    session: int
    child: int
    attached: int
    known: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndSession:
    """End the lease of a session, behind `hold_session`. Answer: `sessions.on_ended`."""

    session: int
    attached: int


Action = (
    EndStream
    | Welcome
    | SendTasks
    | SendAck
    | SendHeartbeatAck
    | CancelTask
    | SendReleaseRest
    | SendDrain
    | OpenSession
    | AttachSession
    | RenewSessions
    | Release
    | Settle
    | ExpireTasks
    | ReleaseUnacknowledged
    | EndSession
)

# Claims and answers of the database.


class Filter(NamedTuple):
    """What a Ready accepts. Empty: everything."""

    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()


class Share(NamedTuple):
    """The part of a claim that is for one Ready. It becomes one row of `running`."""

    stream: int
    ready: int
    session: int
    child: int
    attached: int
    size: int


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim statement for several Readys with the same filter."""

    filter: Filter
    shares: tuple[Share, ...]
    epoch: int
    """Number of wake-ups that had arrived before the statement was made."""


class Job(NamedTuple):
    """What the gateway keeps of a claimed job. The payload is not part of it."""

    id: int
    kind: str
    attempt: int
    max_attempts: int | None
    """The job's own limit. None: that of its kind."""
    timeout: float = 0.0
    """Seconds that are left of the job's timeout. 0: it has none."""
    crashes: int = 0
    webhook: bool = False


class Found(NamedTuple):
    """The answer to one share of a claim.

    token: 0 if there was no job, STALE if the database does not count the share's attachment.
    """

    token: int
    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to OpenSession and AttachSession.

    Attributes:
        session: its number.
        child: the number of its row in `children`.
        attached: how often it was attached. Only the latest gateway may act for it.
        jobs: what it holds, by token. It is complete: the same transaction released the rest.
    """

    session: int
    child: int
    attached: int
    jobs: Mapping[int, tuple[Job, ...]]
