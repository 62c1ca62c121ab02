"""The transactions of the gateway, except for claims. Each runs in the database thread.

A function sends the statements of one action and returns what the bookkeeping needs to know. It
changes no bookkeeping. A transaction by which the gateway acts on its own begins with
`hold_session`: another gateway may have taken over the session.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from jobherd.workers.database.errors import error_name
from jobherd.workers.gateway.actions import Job, Opened, TaskRef
from jobherd.workers.gateway.outcome_recorder import OutcomeRecorder, Report, settle_jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jobherd.workers.database.wire import Request
    from jobherd.workers.gateway.actions import (
        AttachSession,
        EndSession,
        ExpireTasks,
        ReleaseUnacknowledged,
        RenewSessions,
    )
    from jobherd.workers.gateway.database import GatewaySession
    from jobherd.workers.gateway.declaration import Declaration
    from jobherd.workers.job.finished import Finished

_log = logging.getLogger("jobherd.gateway")

LEAST: Final = 0.001
"""Seconds that are left at least: 0 would mean that the job has no timeout."""
LOCKED: Final = 50
"""Milliseconds that a declaration waits for a lock. It is stored when the next session opens."""
TAKEN_OVER: Final = "JHSES"
"""SQLSTATE of hold_session.sql."""


class Holder(NamedTuple):
    """A session as the database has it. child: the owner of its claims. worker: its name, for people."""

    child: int
    worker: str
    jobs: dict[int, tuple[Job, ...]]


class Transactions(OutcomeRecorder):
    """Sends the transactions. supervisor: that of the gateway. lease: of sessions, in seconds."""

    def __init__(self, session: GatewaySession, supervisor: int, lease: float) -> None:
        super().__init__(session)
        self._supervisor = supervisor
        self._lease = lease

    # -- sessions

    def open(self, worker: str, client: str, principal: str) -> Opened | None:
        """Open a session. None: the gateway's supervisor has lost its lease."""
        parameters = {"supervisor": self._supervisor, "worker": worker, "version": client, "principal": principal}
        [rows] = self._session.transact(("remote/open_session", parameters | {"lease": self._lease}))
        return Opened(rows[0][0], rows[0][1], rows[0][2], {}) if rows else None

    def declare(self, declaration: Declaration) -> None:
        """Store what a worker declares about its kinds. An error costs no session: it is logged.

        It must not wait for an open transaction, such as that of a pause: all claims and results of
        remote workers would wait with it.
        """
        try:
            self._session.transact(
                ("session/set_lock_timeout", {"milliseconds": LOCKED}),
                ("remote/register_kinds", declaration.kinds),
                ("lease/declare_limits", declaration.limits),
                stubborn=False,
            )
        except psycopg.Error as problem:
            _log.error("the database rejected what a worker declares about its kinds: %s", error_name(problem))

    def attach(self, action: AttachSession) -> Opened | None:
        """Attach a session to this gateway and release what its worker does not hold.

        None: the session has ended, or it is another principal's.
        """
        parameters = {
            "supervisor": self._supervisor,
            "session": action.session,
            "principal": action.principal,
            "lease": self._lease,
        }
        [rows] = self._session.transact(("remote/attach_session", parameters))
        if not rows:
            return None
        session, child, attached = rows[0]
        held = {"jobs": [ref.task for ref in action.held], "tokens": [ref.claim for ref in action.held]}
        _, found = self._session.transact(
            ("remote/release_unheld", {"child": child, **held}), ("remote/find_held", {"children": [child]})
        )
        return Opened(session, child, attached, _jobs(found))

    def find(self, session: int, principal: str) -> Holder | None:
        """Return what a session holds, whichever gateway serves it. None: it has ended, or is another principal's."""
        [rows] = self._session.transact(("remote/find_session", {"session": session, "principal": principal}))
        if not rows:
            return None
        child, worker = rows[0]
        [found] = self._session.transact(("remote/find_held", {"children": [child]}))
        return Holder(child, worker, _jobs(found))

    def find_held(self, children: Sequence[int]) -> set[tuple[int, TaskRef]]:
        """Return the tasks that sessions hold, each with the child that owns the claim."""
        [rows] = self._session.transact(("remote/find_held", {"children": list(children)}))
        return {(row[0], TaskRef(row[2], row[1])) for row in rows}

    def extend(self, session: int, principal: str, refs: Sequence[TaskRef], seconds: float) -> set[TaskRef] | None:
        """Renew the lease of a session and extend tasks of it, whichever gateway serves it.

        Return the tasks that it holds. None: it has ended, or is another principal's.
        """
        parameters = {
            "session": session,
            "principal": principal,
            "jobs": [ref.task for ref in refs],
            "tokens": [ref.claim for ref in refs],
            "extend": seconds,
            "lease": self._lease,
        }
        [rows] = self._session.transact(("remote/store_extension", parameters))
        return {TaskRef(job, token) for _, token, job in rows if job is not None} if rows else None

    def renew(self, action: RenewSessions) -> set[int] | None:
        """Renew leases and return the sessions that this gateway still serves.

        None: none was renewed, because the gateway's supervisor has lost its lease.
        """
        return self._renew(action.sessions, self._lease)

    def end(self, action: EndSession) -> None:
        """End the lease of a session now. Supervisors then reclaim what it holds."""
        self._renew(((action.session, action.attached),), 0.0)

    def _renew(self, sessions: Sequence[tuple[int, int]], lease: float) -> set[int] | None:
        ids, attached = map(list, zip(*sessions, strict=True))
        parameters = {"supervisor": self._supervisor, "sessions": ids, "attached": attached, "lease": lease}
        [rows] = self._session.transact(("remote/renew_sessions", parameters))
        return {row[0] for row in rows} if all(row[1] for row in rows) else None

    def release_unacknowledged(self, action: ReleaseUnacknowledged) -> bool:
        """Release claims of a session that no process knows. Return False if it was taken over."""
        requeue = ("recover/requeue_unacknowledged", {"child": action.child, "known_tokens": list(action.known)})
        return self._held(action.session, action.attached, requeue) is not None

    def expire(self, action: ExpireTasks, finished: Mapping[TaskRef, Finished]) -> dict[TaskRef, float] | None:
        """Record that the leases of tasks expired. Return those that were extended elsewhere, in seconds.

        finished: what to record of each task. None: the session was taken over.
        """
        mine = {"sessions": [action.session], "attached": [action.attached]}
        [rows] = self._session.transact(("remote/take_extensions", mine))
        kept = {TaskRef(job, token): float(seconds) for _, token, job, seconds in rows}
        by_token: dict[int, list[Finished]] = {}
        for ref in action.tasks:
            if ref not in kept:
                by_token.setdefault(ref.claim, []).append(finished[ref])
        reports = [Report(action.child, token, "", tuple(each)) for token, each in by_token.items()]
        done = self._held(action.session, action.attached, *map(settle_jobs, reports)) if reports else []
        return None if done is None else kept

    def _held(self, session: int, attached: int, *requests: Request) -> list[Any] | None:
        hold = ("remote/hold_session", {"session": session, "attached": attached})
        try:
            return self._session.transact(hold, *requests)
        except psycopg.Error as problem:
            if problem.sqlstate == TAKEN_OVER:
                return None
            raise

    # -- what others have requested

    def find_cancels(self) -> list[tuple[int, TaskRef]]:
        """Return the tasks that are to be cancelled, with their session."""
        [rows] = self._session.transact(("remote/find_session_cancels", {"supervisor": self._supervisor}))
        return [(session, TaskRef(job, token)) for session, token, job in rows]


def _jobs(held: Iterable[Sequence[Any]]) -> dict[int, tuple[Job, ...]]:
    """Return the jobs of find_held.sql by token."""
    jobs: dict[int, list[Job]] = {}
    for _, token, id_, kind, attempts, most, timeout, crashes, webhook, held_for in held:
        left = max(timeout - held_for, LEAST) if timeout else 0.0
        jobs.setdefault(token, []).append(Job(id_, kind, attempts, most, left, crashes, webhook))
    return {token: tuple(each) for token, each in jobs.items()}
