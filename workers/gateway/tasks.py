"""What happens to tasks that workers hold: results, heartbeats, releases, cancellation, expired leases.

What a worker says about a task needs no check of `attached`: the fencing token decides. The gateway
itself ends a task whose lease has expired, so that is checked. See `sessions.py` for how the parts fit together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.workers.gateway.actions import (
    Action,
    CancelTask,
    ExpireTasks,
    Reason,
    Release,
    SendAck,
    SendHeartbeatAck,
    Settle,
    Status,
    TaskRef,
)
from jobherd.workers.gateway.state import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jobherd.workers.gateway.state import Session, State, Stream

MOST_UNSETTLED: Final = 256
"""ResultBatches of a stream that may wait for their commit. Then its reader stops."""


def on_results(state: State, stream: int, number: int, refs: Sequence[TaskRef], now: float) -> list[Action]:
    """A ResultBatch has arrived. refs: its results without those that are invalid in any session.

    A task that the session does not hold is settled too: its row can still be there, and if it is
    not, the settlement finds out whether the result was recorded earlier.
    """
    spoken = state.open_stream(stream)
    if spoken is None:
        return []
    found, session = spoken
    if number <= found.last_results:
        return state.end_stream(found, Status.INVALID_ARGUMENT, f"ResultBatch {number} was sent twice", now)
    found.last_results = number
    found.results[number] = not refs
    for ref in refs:
        session.close(ref)
    if not refs:
        return _acknowledge(found)
    return [Settle(stream, number, session.id, session.child, tuple(refs))]


def may_read(state: State, stream: int) -> bool:
    """Return whether the reader of a stream may take another message from gRPC."""
    found = state.streams.get(stream)
    return found is None or len(found.results) < MOST_UNSETTLED


def on_reported(state: State, session: int, refs: Iterable[TaskRef]) -> None:
    """A unary call has reported results. Their settlement has stream 0."""
    known = state.sessions.get(session)
    for ref in refs:
        if known is not None:
            known.close(ref)


def on_ended_elsewhere(state: State, session: int, refs: Iterable[TaskRef]) -> None:
    """The database does not have these tasks under the session: another gateway has recorded their results."""
    known = state.sessions.get(session)
    if known is not None:
        known.remove([ref for ref in refs if _is_out(known, ref)])


def on_settled(state: State, settle: Settle) -> list[Action]:
    """The outcomes are committed, or the tasks were lost. Only now the worker may forget them."""
    session, stream = state.sessions.get(settle.session), state.streams.get(settle.stream)
    if session is not None:
        session.remove(settle.tasks)
    if stream is None:
        return []
    stream.results[settle.number] = True
    return _acknowledge(stream)


def on_not_settled(state: State, settle: Settle, refs: Iterable[TaskRef], now: float) -> list[Action]:
    """The database rejected the transaction, so nothing is recorded: an acknowledgement would be wrong.

    The worker resumes and sends its results again. refs: those that were to be recorded.
    """
    session, stream = state.sessions.get(settle.session), state.streams.get(settle.stream)
    for ref in refs:
        task = session.task(ref) if session is not None else None
        if session is not None and task is not None and task.state is TaskState.CLOSING:
            task.state = TaskState.OUT
            session.out += 1
            state.watch(session, task.deadline)
    if stream is None:
        return []
    return state.end_stream(stream, Status.UNAVAILABLE, "the results could not be recorded; send them again", now)


def _acknowledge(stream: Stream) -> list[Action]:
    up_to = 0
    for number, committed in list(stream.results.items()):
        if not committed:
            break
        up_to = number
        del stream.results[number]
    return [SendAck(stream.id, up_to)] if up_to else []


def on_heartbeat(
    state: State, stream: int, number: int, refs: Iterable[TaskRef], *, extend: float, now: float
) -> list[Action]:
    """A Heartbeat has arrived: extend the tasks that it names."""
    spoken = state.open_stream(stream)
    if spoken is None:
        return []
    session = spoken[1]
    lost = extend_tasks(session, refs, extend, now)
    return [SendHeartbeatAck(stream, number, lost, session.lease_until - now)]


def extend_tasks(session: Session, refs: Iterable[TaskRef], extend: float, now: float) -> tuple[TaskRef, ...]:
    """Extend tasks of a session and return those that it does not hold.

    extend: seconds from now. A deadline never becomes earlier, and never later than the timeout.
    """
    lost = []
    for ref in refs:
        task = session.task(ref)
        if task is None:
            lost.append(ref)
        else:
            task.deadline = max(task.deadline, min(now + extend, task.latest))
    return tuple(lost)


def on_release(state: State, stream: int, claim: int, behind: int) -> list[Action]:
    """The worker releases what it did not start of a claim. behind: a task; 0: the whole claim."""
    spoken = state.open_stream(stream)
    if spoken is None:
        return []
    session = spoken[1]
    order = session.orders.get(claim, ())
    if behind:
        order = order[order.index(behind) + 1 :] if behind in order else ()
    out = [ref for ref in (TaskRef(job, claim) for job in order) if _is_out(session, ref)]
    return state.release(session, out)


def _is_out(session: Session, ref: TaskRef) -> bool:
    task = session.task(ref)
    return task is not None and task.state is TaskState.OUT


def on_released(state: State, release: Release) -> None:
    """The tasks are released, or were not the session's any more."""
    session = state.sessions.get(release.session)
    if session is not None:
        session.remove(release.tasks)


def on_cancel(state: State, session: int, ref: TaskRef) -> list[Action]:
    """Cancellation of a task was requested. A worker without a stream is notified at its resume."""
    known = state.sessions.get(session)
    task = known.task(ref) if known is not None else None
    if known is None or task is None or task.cancelled or not task.state.counts:
        return []
    task.cancelled = True
    if task.state is TaskState.UNSENT or not known.stream:
        return []
    return [CancelTask(known.stream, ref, Reason.CANCELLED)]


def on_expired(state: State, expired: ExpireTasks, kept: Mapping[TaskRef, float], now: float) -> list[Action]:
    """The tasks were settled as LEASE_EXPIRED.

    kept: those that a Heartbeat at another gateway had extended, and for how many seconds from now.
    """
    session = state.owned(expired.session, expired.attached)
    if session is None:
        return []
    actions: list[Action] = []
    for ref in expired.tasks:
        task = session.task(ref)
        if task is None or task.state is not TaskState.EXPIRING:
            continue
        if ref in kept:
            task.state = TaskState.OUT
            session.out += 1
            task.deadline = max(task.deadline, min(now + kept[ref], task.latest))
            state.watch(session, task.deadline)
            continue
        session.remove([ref])
        if session.stream:
            actions.append(CancelTask(session.stream, ref, Reason.LOST))
    return actions
