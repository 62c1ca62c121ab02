"""The state of a gateway: streams, sessions, waiting Readys, and the tasks that workers hold.

Also the few operations that keep its parts consistent. It decides nothing, has no clock and does no
I/O. `sessions.py`, `tasks.py`, `assignment.py` and `deadlines.py` change it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from jobherd.workers.gateway.actions import Action, EndStream, Filter, Job, Release, SendTasks, Status, TaskRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings of the gateway."""

    session_lease: float = 30.0
    task_lease: float = 60.0
    linger: float = 5.0
    streams: int = 1000
    slots: int = 1000
    poll: float = 30.0
    hello: float = 5.0
    """Seconds that a new stream has for its Hello."""


class TaskState(Enum):
    """Where a task is."""

    UNSENT = "unsent"
    """Its TaskBatch was not handed to gRPC, so the worker cannot have it."""
    OUT = "out"
    """The worker may have it."""
    CLOSING = "closing"
    """A transaction that records its result or its release was requested. The fencing token decides."""
    EXPIRING = "expiring"
    """The gateway ends it, because its lease expired. It may be stale, so `hold_session` decides."""

    @property
    def counts(self) -> bool:
        """Whether it takes a slot of its stream."""
        return self is _UNSENT or self is _OUT


_UNSENT: Final = TaskState.UNSENT
_OUT: Final = TaskState.OUT


@dataclass(slots=True)
class Task:
    """A job that a session has claimed."""

    job: Job
    deadline: float
    """End of its lease."""
    latest: float
    """The deadline is never later than this: the job's timeout."""
    state: TaskState
    cancelled: bool = False
    """Cancellation was requested, and the worker was notified if it had a stream."""
    progress: str | None = None
    """The JSON text of what the worker reported last."""


@dataclass(slots=True)
class Ready:
    """Room for some tasks, until it is answered."""

    filter: Filter
    count: int
    lease: float
    claiming: bool = False
    """It is part of the claim that runs."""
    withdrawn: bool = False
    """The next claim answers it even if it finds no job: the worker took it back, or does not wait."""


class Phase(Enum):
    """How far a stream has come."""

    CONNECTED = "connected"
    """No Hello has arrived."""
    OPENING = "opening"
    """Hello has arrived, and the database has not answered."""
    OPEN = "open"


@dataclass(slots=True)
class Stream:
    """A connected stream."""

    id: int
    due: float
    """Time at which the stream ends unless its Hello, or the end of a write, comes before."""
    timed: bool = True
    """The heap has an entry for it. One is enough: each TaskBatch sets `due`."""
    phase: Phase = Phase.CONNECTED
    principal: str = ""
    session: int = 0
    resumes: int = 0
    """The session that its Hello named."""
    linger: float = 0.0
    slots: int = 0
    held: tuple[TaskRef, ...] = ()
    readys: dict[int, Ready] = field(default_factory=dict)
    asked: int = 0
    """Sum of the counts of its Readys."""
    last_ready: int = 0
    unwritten: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By Ready: claim and task lease of each TaskBatch whose write has not finished. Claim 0: an empty one."""
    silent: bool = False
    """A task lease expired. Its Readys count for nothing until the worker sends a message."""
    results: dict[int, bool] = field(default_factory=dict)
    """By number: ResultBatches that are not acknowledged yet, and whether they are committed."""
    last_results: int = 0


@dataclass(slots=True)
class Session:
    """A session that is attached to this gateway."""

    id: int
    child: int
    attached: int
    principal: str
    linger: float
    lease_until: float
    """End of its lease, counted from the time before its last renewal was sent."""
    stream: int = 0
    """0: its stream broke."""
    keep_until: float = NEVER
    """Without a stream: when its lease is ended."""
    tasks_due: float = NEVER
    """Time of the heap's entry for its tasks: no task lease ends before."""
    claims: dict[int, dict[int, Task]] = field(default_factory=dict)
    """Tasks by fencing token and job."""
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By token: all jobs of the claim, in its order. A Release names the task that it stands behind."""
    out: int = 0
    """Number of tasks that are unsent or out."""
    claiming: bool = False
    """It takes part in the claim that runs."""
    check_at: float = NEVER
    """When to check for claims that no process knows. Until that is done it claims nothing."""
    checking: bool = False
    ending: bool = False

    def task(self, ref: TaskRef) -> Task | None:
        """Return the task, or None if the session does not hold it."""
        return self.claims.get(ref.claim, {}).get(ref.task)

    def close(self, ref: TaskRef) -> bool:
        """Note that a transaction ends the task. Returns False if it was not out."""
        task = self.task(ref)
        if task is None or task.state is TaskState.CLOSING:
            return False
        self.out -= task.state.counts
        task.state = TaskState.CLOSING
        return True

    def remove(self, refs: Iterable[TaskRef]) -> None:
        """Forget tasks. The session does not hold them any more."""
        for ref in refs:
            tasks = self.claims.get(ref.claim)
            task = tasks.pop(ref.task, None) if tasks is not None else None
            self.out -= task is not None and task.state.counts
            if tasks is not None and not tasks:
                del self.claims[ref.claim], self.orders[ref.claim]

    def refs(self) -> Iterator[tuple[TaskRef, Task]]:
        """Iterate over its tasks."""
        for token, tasks in self.claims.items():
            for job, task in tasks.items():
                yield TaskRef(job, token), task


@dataclass(slots=True)
class Group:
    """The Readys with the same filter, by stream. The stream served last is the last one."""

    waiting: dict[int, dict[int, Ready]] = field(default_factory=dict)
    empty_epoch: int = -1
    """`State.epoch` of the last claim that found no job. If it is the present one, wait for a wake-up."""
    look_at: float = NEVER
    """When it is claimed for all the same."""


@dataclass(slots=True)
class State:
    """The whole state."""

    limits: Limits = field(default_factory=Limits)
    streams: dict[int, Stream] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    groups: dict[Filter, Group] = field(default_factory=dict)
    """The one served last is the last one."""
    epoch: int = 0
    """Number of wake-ups."""
    claiming: bool = False
    """A claim runs. There is one at a time: meanwhile more Readys arrive for the next."""
    draining: bool = False
    drain_within: float = 0.0
    renew_at: float = NEVER
    renewing: bool = False
    timers: list[tuple[float, str, int]] = field(default_factory=list)
    """Heap of (time, what, number). An entry may come early, never late: see `deadlines.py`."""

    def timer(self, when: float, what: str, number: int) -> None:
        """Check a stream, or one thing of a session, at that time."""
        if when < NEVER:
            heapq.heappush(self.timers, (when, what, number))

    def watch(self, session: Session, deadline: float) -> None:
        """Check the tasks of a session at that time at the latest."""
        if deadline < session.tasks_due:
            session.tasks_due = deadline
            self.timer(deadline, "tasks", session.id)

    def open_stream(self, stream: int) -> tuple[Stream, Session] | None:
        """Return an open stream and its session, and note that the worker sent a message."""
        found = self.streams.get(stream)
        if found is None or found.phase is not Phase.OPEN:
            return None
        found.silent = False
        return found, self.sessions[found.session]

    def owned(self, session: int, attached: int) -> Session | None:
        """Return the session if an answer is about its present attachment."""
        found = self.sessions.get(session)
        return found if found is not None and found.attached == attached else None

    def drop_ready(self, stream: Stream, number: int) -> None:
        """Remove a Ready: it is answered, or its stream is gone."""
        ready = stream.readys.pop(number)
        stream.asked -= ready.count
        group = self.groups[ready.filter]
        line = group.waiting[stream.id]
        del line[number]
        if not line:
            del group.waiting[stream.id]
        if not group.waiting:
            del self.groups[ready.filter]

    def enter(self, session: Session, token: int, jobs: Iterable[Job], lease: float, now: float) -> dict[int, Task]:
        """Enter the tasks of a claim as out, and return them by job."""
        tasks = {}
        for job in jobs:
            latest = now + job.timeout if job.timeout else NEVER
            deadline = min(now + lease, latest)
            tasks[job.id] = Task(job, deadline, latest, TaskState.OUT)
        session.claims[token], session.orders[token] = tasks, tuple(tasks)
        session.out += len(tasks)
        self.watch(session, min(task.deadline for task in tasks.values()))
        return tasks

    def answer_empty(self, stream: Stream, number: int) -> Action:
        """Answer a Ready that is not registered with an empty TaskBatch."""
        stream.unwritten[number] = (0, 0.0)
        return SendTasks(stream.id, number, 0)

    def close_stream(self, stream: Stream, now: float) -> list[Action]:
        """Remove a stream. Its session lingers, and what was never handed to gRPC is released."""
        for number in list(stream.readys):
            self.drop_ready(stream, number)
        del self.streams[stream.id]
        session = self.sessions.get(stream.session or stream.resumes)
        if session is None or session.stream not in (0, stream.id) or session.keep_until < NEVER:
            return []
        session.stream = 0
        session.keep_until = now + session.linger
        self.timer(session.keep_until, "linger", session.id)
        unsent = [ref for ref, task in session.refs() if task.state is TaskState.UNSENT]
        return self.release(session, unsent)

    def release(self, session: Session, refs: Iterable[TaskRef]) -> list[Action]:
        """Release tasks that the worker did not start."""
        gone = tuple(ref for ref in refs if session.close(ref))
        return [Release(session.id, session.child, gone)] if gone else []

    def end_stream(self, stream: Stream, status: Status, why: str, now: float) -> list[Action]:
        """End a stream and remove it."""
        return [EndStream(stream.id, status, why), *self.close_stream(stream, now)]

    def forget_session(self, session: Session, why: str, now: float) -> list[Action]:
        """Forget a session that belongs to another gateway or does not exist any more.

        Nothing is done for it: its tasks are that gateway's, or were reclaimed.
        """
        del self.sessions[session.id]
        stream = self.streams.get(session.stream)
        return [] if stream is None else self.end_stream(stream, Status.ABORTED, why, now)
