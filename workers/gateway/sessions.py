"""The life of streams and sessions at one gateway: connect, Hello, break, renewal, takeover, drain.

The bookkeeping consists of functions on one `State`. Each takes one event and returns the actions
that follow from it. None of them does I/O or reads a clock: `now` is monotonic and an argument.
They import neither grpc nor protobuf nor psycopg.

```text
      gRPC events, wake-ups, timer                      messages
 ----------------------------------> event loop -----------------------> streams
                                      |      ^
                            functions |      | actions
                                      v      |
   sessions.py    streams, sessions, attach, renewal, drain    \
   tasks.py       results, heartbeats, releases, cancellation   > one State (state.py)
   deadlines.py   what is due, and when to look again          /
   assignment.py  waiting Readys -> Claim -> TaskBatch        /
   settlements.py results -> statements of one transaction
                                      |      ^
                    Claim, settlement |      | answer
                                      v      |
                                  database thread, which has the only database session
```

The event loop does four things, all in one thread:

1. It calls the function of each event and carries out the returned actions in their order.
2. Then it calls `assignment.next_claim` and gives the Claim, if there is one, to the database thread.
3. It sleeps until `deadlines.wake_at` at the latest, then calls `deadlines.due`.
4. It passes each answer of the database thread to the function that the action names.

Order: the database thread runs its transactions in the order in which they were given to it, one at a
time, and repeats each until the database has answered. Then no result of a session can come after
the end of that session.

A session belongs to the gateway that attached it last. A gateway that acts without a request can be stale,
for example after its host was frozen. Therefore ExpireTasks, ReleaseUnacknowledged and EndSession check
`attached` in their transaction (`hold_session`). If that check fails, call `on_taken_over`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jobherd.workers.gateway.actions import (
    Action,
    AttachSession,
    CancelTask,
    Opened,
    OpenSession,
    Reason,
    RenewSessions,
    SendDrain,
    SendReleaseRest,
    Status,
    TaskRef,
    Welcome,
)
from jobherd.workers.gateway.state import NEVER, Phase, Session, State, Stream, TaskState

if TYPE_CHECKING:
    from collections.abc import Collection

FIRST_CHECK = 1.0
"""Seconds from an attach to the first look for claims that another gateway made and never sent."""
CHECK_EVERY = 60.0
MOVED_EVERY = 1.0
"""Seconds between two renewals while a drain waits for a worker without a stream: it may have moved."""


class Hello(NamedTuple):
    """The first message of a stream, authenticated.

    Attributes:
        principal: on whose behalf it speaks.
        session: of an earlier stream. 0: a new one.
        held: what the worker still holds of that session.
        slots: most tasks that the stream may ask for. 0: the setting.
        linger: seconds that the session is kept without a stream. None: the setting.
    """

    principal: str
    session: int = 0
    held: tuple[TaskRef, ...] = ()
    slots: int = 0
    linger: float | None = None


def on_connect(state: State, stream: int, now: float) -> list[Action]:
    """A stream was connected. Without a Hello it ends soon."""
    opened = Stream(stream, due=now + state.limits.hello)
    state.streams[stream] = opened
    if state.draining:
        return state.end_stream(opened, Status.UNAVAILABLE, "the gateway is draining", now)
    if len(state.streams) > state.limits.streams:
        return state.end_stream(opened, Status.RESOURCE_EXHAUSTED, "too many streams", now)
    state.timer(opened.due, "stream", stream)
    return []


def on_hello(state: State, stream: int, hello: Hello, now: float) -> list[Action]:
    """The first message has arrived: open a session, or attach the one that it names."""
    found = state.streams.get(stream)
    if found is None:
        return []
    if found.phase is not Phase.CONNECTED:
        return state.end_stream(found, Status.FAILED_PRECONDITION, "a second Hello", now)
    if state.draining:
        return state.end_stream(found, Status.UNAVAILABLE, "the gateway is draining", now)
    found.phase, found.due, found.principal = Phase.OPENING, NEVER, hello.principal
    found.slots = min(hello.slots or state.limits.slots, state.limits.slots)
    found.linger = state.limits.linger if hello.linger is None else hello.linger
    if not hello.session:
        return [OpenSession(stream, hello.principal)]
    actions: list[Action] = []
    session = state.sessions.get(hello.session)
    if session is not None:
        if session.principal != hello.principal:
            return state.end_stream(found, Status.PERMISSION_DENIED, "the session is another principal's", now)
        earlier = state.streams.get(session.stream)
        if earlier is not None:
            # Otherwise an answer to an earlier claim would be sent to a stream that its worker has left.
            actions += state.end_stream(earlier, Status.ABORTED, "the session was resumed by another stream", now)
        session.keep_until = NEVER
    found.resumes, found.held = hello.session, hello.held
    return [*actions, AttachSession(stream, hello.session, hello.principal, hello.held)]


def on_violation(state: State, stream: int, status: Status, why: str, now: float) -> list[Action]:
    """The client broke the protocol, for example with a first message that is not Hello."""
    found = state.streams.get(stream)
    return [] if found is None else state.end_stream(found, status, why, now)


def on_opened(state: State, stream: int, opened: Opened, sent: float, now: float) -> list[Action]:
    """The database has opened or attached the session of a stream.

    sent: when the transaction was sent. The lease counts from there.
    """
    found, known = state.streams.get(stream), state.sessions.get(opened.session)
    if known is not None and known.attached >= opened.attached:
        # A later Hello for the same session was answered before.
        why = "the session was resumed by another stream"
        return [] if found is None else state.end_stream(found, Status.ABORTED, why, now)
    actions: list[Action] = []
    if known is not None and known.stream:
        actions += state.end_stream(
            state.streams[known.stream], Status.ABORTED, "the session was resumed by another stream", now
        )
    session = Session(
        opened.session,
        opened.child,
        opened.attached,
        found.principal if found else known.principal if known else "",
        found.linger if found else state.limits.linger,
        sent + state.limits.session_lease,
    )
    for token, jobs in opened.jobs.items():
        for job, task in state.enter(session, token, jobs, state.limits.task_lease, now).items():
            before = known.task(TaskRef(job, token)) if known is not None else None
            if before is not None:
                task.latest, task.cancelled, task.progress = before.latest, before.cancelled, before.progress
                task.deadline = min(max(task.deadline, before.deadline), task.latest)
                if before.state is TaskState.CLOSING:
                    session.close(TaskRef(job, token))
    session.claiming = known is not None and known.claiming
    state.sessions[session.id] = session
    state.renew_at = min(state.renew_at, sent + state.limits.session_lease / 3)
    if opened.attached > 1:
        session.check_at = now + FIRST_CHECK
        state.timer(session.check_at, "check", session.id)
    if found is None:
        session.keep_until = now + session.linger
        state.timer(session.keep_until, "linger", session.id)
        return actions
    found.phase, found.session, session.stream = Phase.OPEN, session.id, stream
    lost = tuple(ref for ref in found.held if session.task(ref) is None)
    found.held = ()
    actions.append(Welcome(stream, session.id, lost, session.lease_until - now))
    actions += [CancelTask(stream, ref, Reason.CANCELLED) for ref, task in session.refs() if task.cancelled]
    if session.claims:
        # A pause of the time without a stream, or one sent into the broken stream, has not reached the worker.
        actions.append(SendReleaseRest(stream))
    return [*actions, SendDrain(stream, state.drain_within)] if state.draining else actions


def on_not_opened(state: State, stream: int, status: Status, why: str, now: float) -> list[Action]:
    """The database did not open or attach the session of a stream.

    status: NOT_FOUND if the session does not exist any more, PERMISSION_DENIED if it is another
        principal's, UNAVAILABLE if the database did not answer.
    """
    found = state.streams.get(stream)
    if found is None:
        return []
    actions = state.end_stream(found, status, why, now)
    session = state.sessions.get(found.resumes)
    if status is Status.NOT_FOUND and session is not None and not session.stream:
        del state.sessions[session.id]
    return actions


def on_break(state: State, stream: int, now: float) -> list[Action]:
    """A stream ended, in order or not. Its session waits for a resume."""
    found = state.streams.get(stream)
    if found is None:
        return []
    if state.draining:
        state.renew_at = min(state.renew_at, now + MOVED_EVERY)
    return state.close_stream(found, now)


def renew(state: State, now: float) -> list[Action]:
    """Renew the leases of all sessions that are present. Called by `deadlines.due`."""
    moves = state.draining and any(one.claims and not one.stream for one in state.sessions.values())
    every = min(state.limits.session_lease / 3, MOVED_EVERY if moves else NEVER)
    state.renew_at = now + every if state.sessions else NEVER
    present = tuple((one.id, one.attached) for one in state.sessions.values() if not one.ending)
    if not present or state.renewing:
        return []
    state.renewing = True
    return [RenewSessions(present)]


def on_renewed(state: State, asked: RenewSessions, renewed: Collection[int], sent: float, now: float) -> list[Action]:
    """The database has renewed these sessions. The others belong to another gateway, or were reclaimed."""
    state.renewing = False
    actions: list[Action] = []
    for session, attached in asked.sessions:
        if session not in renewed:
            actions += on_taken_over(state, session, attached, now)
        elif (found := state.owned(session, attached)) is not None:
            found.lease_until = max(found.lease_until, sent + state.limits.session_lease)
    return actions


def on_renewal_failed(state: State) -> None:
    """The database did not renew the sessions. The next attempt is a third of a lease after the last."""
    state.renewing = False


def on_taken_over(state: State, session: int, attached: int, now: float) -> list[Action]:
    """The database says that this attachment of the session does not count any more."""
    found = state.owned(session, attached)
    return [] if found is None else state.forget_session(found, "the session is attached elsewhere, or ended", now)


def on_ended(state: State, session: int, attached: int, now: float) -> list[Action]:
    """The lease of a session was ended. Supervisors reclaim its tasks."""
    return on_taken_over(state, session, attached, now)


def on_checked(state: State, session: int, attached: int, now: float) -> None:
    """The claims that no process knew were released."""
    found = state.owned(session, attached)
    if found is not None:
        found.checking, found.check_at = False, now + CHECK_EVERY
        state.timer(found.check_at, "check", session)


def on_sign_of_life(state: State, session: int, now: float) -> None:
    """A unary call has come from the worker of a session. Without a stream it is kept for a lease."""
    found = state.sessions.get(session)
    if found is None:
        return
    stream = state.streams.get(found.stream)
    if stream is not None:
        stream.silent = False
    elif found.keep_until < NEVER and not found.ending:
        found.keep_until = max(found.keep_until, now + state.limits.session_lease)


def on_gates_changed(state: State) -> list[Action]:
    """A pause or a limit has changed: workers release what they have not started."""
    return [SendReleaseRest(stream.id) for stream in state.streams.values() if stream.phase is Phase.OPEN]


def on_drain(state: State, within: float) -> list[Action]:
    """Claim nothing more. Waiting Readys are answered, and workers finish or resume elsewhere."""
    state.draining, state.drain_within = True, within
    actions: list[Action] = []
    for stream in state.streams.values():
        for number in [number for number, ready in stream.readys.items() if not ready.claiming]:
            state.drop_ready(stream, number)
            actions.append(state.answer_empty(stream, number))
        if stream.phase is Phase.OPEN:
            actions.append(SendDrain(stream.id, within))
    return actions


def is_drained(state: State) -> bool:
    """Return whether the drain is complete: no worker holds a task, and no claim runs."""
    return state.draining and not state.claiming and not any(one.claims for one in state.sessions.values())
