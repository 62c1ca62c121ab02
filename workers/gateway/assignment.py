"""Decides for which requests of remote workers the next claim is made, and which jobs each one gets.

A Ready is a worker's request for tasks. It is answered with exactly one TaskBatch. Readys with the
same filter form a group. One claim serves one group: it asks for at most 500 jobs and takes the Readys
of its streams in turns. One claim runs at a time. Meanwhile more Readys arrive, so claims grow with
the load. This module makes no claim: see `sessions.py` for how the parts fit together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.workers.gateway.actions import (
    STALE,
    Action,
    CancelTask,
    Claim,
    Filter,
    Found,
    Reason,
    Release,
    SendTasks,
    Share,
    Status,
    TaskRef,
)
from jobherd.workers.gateway.state import NEVER, Group, Phase, Ready, TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.gateway.state import State, Stream

MOST_JOBS: Final = 500
"""Jobs of one claim statement, and of one Ready."""
CLAIM_BYTES: Final = 1_000_000
"""Payload bytes at which the claim statement stops."""
UNSENT_BYTES: Final = 64_000_000
"""Payload bytes that may wait for their writes, over all streams."""


def on_ready(
    state: State, stream: int, number: int, accepts: Filter, count: int, *, lease: float, now: float
) -> list[Action]:
    """A Ready has arrived. A known number with count 0 takes it back."""
    spoken = state.open_stream(stream)
    if spoken is None:
        return []
    found, session = spoken
    if number <= found.last_ready:
        return _take_back(state, found, number, count, now)
    count = min(count or 1, MOST_JOBS)
    if found.asked + session.out + count > found.slots:
        return state.end_stream(found, Status.RESOURCE_EXHAUSTED, f"more than {found.slots} slots", now)
    if state.draining:
        found.last_ready = number
        return [state.answer_empty(found, number)]
    _register(state, found, number, Ready(accepts, count, lease if lease > 0 else state.limits.task_lease))
    return []


def _register(state: State, stream: Stream, number: int, ready: Ready) -> None:
    stream.last_ready = number
    stream.readys[number] = ready
    stream.asked += ready.count
    state.groups.setdefault(ready.filter, Group()).waiting.setdefault(stream.id, {})[number] = ready


def answer_by_next_claim(state: State, stream: int, number: int) -> None:
    """Let the next claim answer a Ready in any case: its worker does not wait for jobs."""
    found = state.streams.get(stream)
    ready = found.readys.get(number) if found is not None else None
    if ready is not None:
        ready.withdrawn = True
        state.groups[ready.filter].empty_epoch = -1  # there may be jobs of which no wake-up has told yet


def top_up(state: State, stream: int, accepts: Filter, *, lease: float) -> None:
    """Ask for as many tasks as a stream has room for, because its client sends no Readys.

    A waiting Ready grows: otherwise a stream with long tasks would soon have one Ready for each
    slot, and get one claim for each.
    """
    found = state.streams.get(stream)
    if found is None or found.phase is not Phase.OPEN or state.draining:
        return
    room = found.slots - found.asked - state.sessions[found.session].out
    for ready in found.readys.values():
        if room > 0 and not ready.claiming:
            more = min(room, MOST_JOBS - ready.count)
            ready.count += more
            found.asked += more
            room -= more
    while room > 0:
        count = min(room, MOST_JOBS)
        _register(
            state, found, found.last_ready + 1, Ready(accepts, count, lease if lease > 0 else state.limits.task_lease)
        )
        room -= count


def _take_back(state: State, stream: Stream, number: int, count: int, now: float) -> list[Action]:
    if count:
        return state.end_stream(stream, Status.INVALID_ARGUMENT, f"Ready {number} was sent twice", now)
    ready = stream.readys.get(number)
    if ready is None:
        return []  # its TaskBatch has crossed this message
    if ready.claiming:
        ready.withdrawn = True
        return []
    state.drop_ready(stream, number)
    return [state.answer_empty(stream, number)]


def on_wake(state: State) -> None:
    """Jobs may have become ready."""
    state.epoch += 1


def next_claim(state: State, unsent_bytes: int, now: float) -> Claim | None:
    """Return the claim to make, or None if there is none to make now.

    Do not call it while the gateway may not claim, for example without a lease of its supervisor.

    Args:
        state: the state.
        unsent_bytes: payload bytes that wait for their writes.
        now: monotonic.
    """
    if state.claiming or state.draining or unsent_bytes + CLAIM_BYTES > UNSENT_BYTES:
        return None
    for accepts, group in state.groups.items():
        if group.empty_epoch == state.epoch and now < group.look_at:
            continue
        shares = _deal(state, group, now)
        if shares:
            state.groups[accepts] = state.groups.pop(accepts)
            state.claiming = True
            return Claim(accepts, shares, state.epoch)
    return None


def _deal(state: State, group: Group, now: float) -> tuple[Share, ...]:
    """Choose Readys: one of each stream, then a second of each, as long as they fit."""
    shares: list[Share] = []
    left = MOST_JOBS
    lines = [
        (stream, iter(list(line.items())))
        for stream, line in group.waiting.items()
        if _may_claim(state, state.streams[stream], now)
    ]
    while lines:
        again = []
        for stream, line in lines:
            number, ready = next(line, (0, None))
            if ready is None or ready.count > left:
                continue
            left -= ready.count
            ready.claiming = True
            session = state.sessions[state.streams[stream].session]
            session.claiming = True
            shares.append(Share(stream, number, session.id, session.child, session.attached, ready.count))
            again.append((stream, line))
        lines = again
    for stream in dict.fromkeys(share.stream for share in shares):
        group.waiting[stream] = group.waiting.pop(stream)
    return tuple(shares)


def _may_claim(state: State, stream: Stream, now: float) -> bool:
    """Return whether a claim may be made for a stream.

    One that has not written its last TaskBatch gets no other: gRPC buffers megabytes for a client
    that does not read.
    """
    session = state.sessions[stream.session]
    return (
        not stream.unwritten
        and not stream.silent
        and not session.checking
        and session.check_at > now
        and session.lease_until > now
    )


def is_idle(state: State, now: float) -> bool:
    """Return whether a Ready waits for a wake-up: it may claim, and the last claim found no job."""
    if state.claiming or state.draining:
        return False
    waits = [
        group
        for group in state.groups.values()
        if any(_may_claim(state, state.streams[stream], now) for stream in group.waiting)
    ]
    return bool(waits) and all(group.empty_epoch == state.epoch and now < group.look_at for group in waits)


def on_claimed(
    state: State, claim: Claim, found: Sequence[Found], now: float, opens_in: float | None = None
) -> list[Action]:
    """The claim was answered. found: one for each share. opens_in: when to look again, if not by the poll.

    Jobs whose Ready is gone were never sent: they are released.
    """
    _end_claim(state, claim, now)
    actions: list[Action] = []
    for share, answer in zip(claim.shares, found, strict=True):
        session = state.owned(share.session, share.attached)
        if answer.token == STALE:
            if session is not None:
                actions += state.forget_session(session, "the session is attached elsewhere, or ended", now)
            continue
        stream = state.streams.get(share.stream)
        ready = stream.readys.get(share.ready) if stream is not None else None
        if session is None or stream is None or ready is None:
            if answer.token:
                refs = tuple(TaskRef(job.id, answer.token) for job in answer.jobs)
                actions.append(Release(share.session, share.child, refs))
        elif answer.token:
            state.drop_ready(stream, share.ready)
            for task in state.enter(session, answer.token, answer.jobs, NEVER, now).values():
                task.state = TaskState.UNSENT
            stream.unwritten[share.ready] = (answer.token, ready.lease)
            actions.append(SendTasks(stream.id, share.ready, answer.token))
        else:
            actions += _keep_waiting(state, stream, share.ready)
    group = state.groups.get(claim.filter)
    if group is not None and not any(answer.token for answer in found):
        poll = state.limits.poll
        group.empty_epoch, group.look_at = claim.epoch, now + (poll if opens_in is None else min(opens_in, poll))
    return actions


def on_claim_failed(state: State, claim: Claim, now: float) -> list[Action]:
    """The claim got no answer, and its database session has ended, so it cannot commit later.

    It may have been committed. Its sessions claim again only after a check for such jobs.
    """
    actions: list[Action] = []
    for share in claim.shares:
        stream, session = state.streams.get(share.stream), state.owned(share.session, share.attached)
        if session is not None and not session.checking:
            session.check_at = now
        if stream is not None and share.ready in stream.readys:
            actions += _keep_waiting(state, stream, share.ready)
    _end_claim(state, claim, now)
    return actions


def _end_claim(state: State, claim: Claim, now: float) -> None:
    state.claiming = False
    for number in {share.session for share in claim.shares}:
        session = state.sessions.get(number)
        if session is not None:
            session.claiming = False
            if session.check_at <= now:
                state.timer(now, "check", number)


def _keep_waiting(state: State, stream: Stream, number: int) -> list[Action]:
    ready = stream.readys[number]
    ready.claiming = False
    if not ready.withdrawn and not state.draining:
        return []
    state.drop_ready(stream, number)
    return [state.answer_empty(stream, number)]


def on_handed(state: State, stream: int, number: int, now: float) -> list[Action]:
    """The TaskBatch of a Ready is handed to gRPC: from here on the worker may have the tasks."""
    found = state.streams.get(stream)
    if found is None:
        return []
    token, lease = found.unwritten[number]
    session = state.sessions[found.session]
    found.due = now + state.limits.session_lease
    if not found.timed:
        found.timed = True
        state.timer(found.due, "stream", stream)
    actions: list[Action] = []
    soonest = NEVER
    for job, task in session.claims.get(token, {}).items():
        if task.state is TaskState.UNSENT:
            task.state, task.deadline = TaskState.OUT, min(now + lease, task.latest)
            soonest = min(soonest, task.deadline)
            if task.cancelled:
                actions.append(CancelTask(stream, TaskRef(job, token), Reason.CANCELLED))
    state.watch(session, soonest)
    return actions


def on_written(state: State, stream: int, number: int) -> None:
    """GRPC has taken the TaskBatch: the stream may claim again once all are written."""
    found = state.streams.get(stream)
    if found is not None:
        found.unwritten.pop(number, None)
        found.due = NEVER
