"""Decides what a gateway does because time has passed: ends streams and sessions, expires task leases.

Also the renewals of sessions, and the checks for claims that no process knows. The heap of `State` has
an entry for each thing that can become due. A deadline that moves later leaves its entry in place: the
entry comes early, and is entered again for the new time. See `sessions.py` for how the parts fit
together.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from jobherd.workers.gateway.actions import Action, EndSession, ExpireTasks, ReleaseUnacknowledged, Status
from jobherd.workers.gateway.sessions import renew
from jobherd.workers.gateway.state import NEVER, Phase, TaskState

if TYPE_CHECKING:
    from jobherd.workers.gateway.state import Session, State


def wake_at(state: State, now: float) -> float:
    """Return the time of the next call of `due` and `assignment.next_claim`, if no event comes before."""
    looks = (group.look_at for group in state.groups.values() if group.look_at > now)
    return min(state.timers[0][0] if state.timers else NEVER, state.renew_at, *looks, NEVER)


def due(state: State, now: float) -> list[Action]:
    """Return what is to be done by now."""
    actions: list[Action] = []
    while state.timers and state.timers[0][0] <= now:
        when, what, number = heapq.heappop(state.timers)
        session = state.sessions.get(number)
        if what == "stream":
            actions += _end_late_stream(state, number, now)
        elif session is None or session.ending:
            continue
        elif what == "linger":
            actions += _end_session(state, session, now)
        elif what == "check":
            actions += _check(state, session, now)
        elif session.tasks_due == when:
            actions += _expire_tasks(state, session, now)
    if state.renew_at <= now:
        actions += renew(state, now)
    return actions


def _end_late_stream(state: State, number: int, now: float) -> list[Action]:
    stream = state.streams.get(number)
    if stream is None:
        return []
    if stream.due > now:
        stream.timed = stream.due < NEVER
        state.timer(stream.due, "stream", number)
        return []
    if stream.phase is Phase.CONNECTED:
        return state.end_stream(stream, Status.DEADLINE_EXCEEDED, "no Hello", now)
    return state.end_stream(stream, Status.RESOURCE_EXHAUSTED, "the client does not read", now)


def _end_session(state: State, session: Session, now: float) -> list[Action]:
    if session.keep_until > now:
        state.timer(session.keep_until, "linger", session.id)
        return []
    session.ending = True
    return [EndSession(session.id, session.attached)]


def _check(state: State, session: Session, now: float) -> list[Action]:
    """Check for claims that no process knows.

    Race: a claim that still runs would be taken for one of them. The answer to that claim enters
    the check again, and the session makes no claim until the check is over.
    """
    if session.check_at > now:
        state.timer(session.check_at, "check", session.id)
    elif not session.claiming and not session.checking:
        session.checking = True
        return [ReleaseUnacknowledged(session.id, session.child, session.attached, tuple(session.claims))]
    return []


def _expire_tasks(state: State, session: Session, now: float) -> list[Action]:
    session.tasks_due = later = NEVER
    gone = []
    for ref, task in session.refs():
        if task.state is not TaskState.OUT:
            continue
        if task.deadline > now:
            later = min(later, task.deadline)
            continue
        task.state = TaskState.EXPIRING
        session.out -= 1
        gone.append(ref)
    state.watch(session, later)
    if not gone:
        return []
    if session.stream:
        state.streams[session.stream].silent = True
    return [ExpireTasks(session.id, session.child, session.attached, tuple(gone))]
