"""The transactions that the gateway's actions need: what each sends, and what its answer changes.

`send` of a request runs in the database thread and changes no bookkeeping. `apply` runs in the
event loop with the answer and returns the actions that follow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway import sessions, tasks
from jobherd.workers.gateway.actions import (
    Action,
    AttachSession,
    EndSession,
    ExpireTasks,
    OpenSession,
    Release,
    ReleaseUnacknowledged,
    RenewSessions,
    Settle,
    Status,
    TaskRef,
)
from jobherd.workers.gateway.outcome_recorder import Outgoing, Recorded, Report, outgoing, released
from jobherd.workers.gateway.replies import Reply, answer_call
from jobherd.workers.gateway.responses import AWAY, GONE, LOST, UNSTORABLE, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.workers.gateway.actions import Opened
    from jobherd.workers.gateway.peer import Peer, Worker
    from jobherd.workers.gateway.settlements import Result, Transaction
    from jobherd.workers.gateway.state import State
    from jobherd.workers.gateway.transactions import Transactions
    from jobherd.workers.job.finished import Finished


class Request(Protocol):
    """A transaction that waits for its turn."""

    def send(self, database: Transactions) -> Any:
        """Run the transaction and return its answer. An exception is an answer too, except for StopWaiting."""

    def apply(self, state: State, answer: Any, peers: Mapping[int, Peer], now: float) -> list[Action]:
        """Enter the answer into the bookkeeping."""


@dataclass(slots=True)
class Open:
    """Open or attach a session.

    gone: there is no session to attach. If it exists and was not attached, this gateway's supervisor
        has lost its lease: another gateway can still attach it, and its worker must keep it.
    """

    action: OpenSession | AttachSession
    worker: Worker
    sent: float = 0.0
    gone: bool = False

    def send(self, database: Transactions) -> Opened | None:
        self.sent = time.monotonic()
        if isinstance(self.action, AttachSession):
            attached = database.attach(self.action)
            self.gone = attached is None and database.find(self.action.session, self.action.principal) is None
            return attached
        opened = database.open(self.worker.name, self.worker.client, self.action.principal)
        if opened is not None and self.worker.declaration is not None:
            database.declare(self.worker.declaration)
        return opened

    def apply(self, state: State, answer: Any, _peers: Mapping[int, Peer], now: float) -> list[Action]:
        stream = self.action.stream
        if self.gone:
            return sessions.on_not_opened(state, stream, Status.NOT_FOUND, GONE, now)
        if answer is None or isinstance(answer, Exception):
            return sessions.on_not_opened(state, stream, Status.UNAVAILABLE, AWAY, now)
        return sessions.on_opened(state, stream, answer, self.sent, now)


@dataclass(slots=True)
class Renew:
    """Renew the leases of all sessions."""

    action: RenewSessions
    sent: float = 0.0

    def send(self, database: Transactions) -> set[int] | None:
        self.sent = time.monotonic()
        return database.renew(self.action)

    def apply(self, state: State, answer: Any, _peers: Mapping[int, Peer], now: float) -> list[Action]:
        if answer is None or isinstance(answer, Exception):
            sessions.on_renewal_failed(state)
            return []
        return sessions.on_renewed(state, self.action, answer, self.sent, now)


@dataclass(slots=True)
class End:
    """End the lease of a session."""

    action: EndSession

    def send(self, database: Transactions) -> None:
        database.end(self.action)

    def apply(self, state: State, _answer: Any, _peers: Mapping[int, Peer], now: float) -> list[Action]:
        return sessions.on_ended(state, self.action.session, self.action.attached, now)


@dataclass(slots=True)
class ReleaseUnstarted:
    """Release tasks that did not start."""

    action: Release

    def send(self, database: Transactions) -> None:
        by_token: dict[int, list[Finished]] = {}
        for ref in self.action.tasks:
            by_token.setdefault(ref.claim, []).append(released(ref.task))
        reports = [Report(self.action.child, token, "", tuple(each)) for token, each in by_token.items()]
        database.record(outgoing(reports))

    def apply(self, state: State, _answer: Any, _peers: Mapping[int, Peer], _now: float) -> list[Action]:
        # After an error too: what is still claimed is then found by the check for unacknowledged claims.
        tasks.on_released(state, self.action)
        return []


@dataclass(slots=True)
class Unacknowledged:
    """Release claims of which no process knows."""

    action: ReleaseUnacknowledged

    def send(self, database: Transactions) -> bool:
        return database.release_unacknowledged(self.action)

    def apply(self, state: State, answer: Any, _peers: Mapping[int, Peer], now: float) -> list[Action]:
        if answer is False:
            return sessions.on_taken_over(state, self.action.session, self.action.attached, now)
        sessions.on_checked(state, self.action.session, self.action.attached, now)
        return []


@dataclass(slots=True)
class Expire:
    """Record that leases of tasks have expired."""

    action: ExpireTasks
    finished: dict[TaskRef, Finished]

    def send(self, database: Transactions) -> dict[TaskRef, float] | None:
        return database.expire(self.action, self.finished)

    def apply(self, state: State, answer: Any, _peers: Mapping[int, Peer], now: float) -> list[Action]:
        if answer is None or isinstance(answer, Exception):
            return sessions.on_taken_over(state, self.action.session, self.action.attached, now)
        return tasks.on_expired(state, self.action, answer, now)


@dataclass(slots=True)
class Cancels:
    """Find requests to cancel."""

    def send(self, database: Transactions) -> list[tuple[int, TaskRef]]:
        return database.find_cancels()

    def apply(self, state: State, answer: Any, _peers: Mapping[int, Peer], _now: float) -> list[Action]:
        if isinstance(answer, Exception):
            return []
        return [action for session, ref in answer for action in tasks.on_cancel(state, session, ref)]


@dataclass(slots=True)
class WriteProgress:
    """Write the latest progress of tasks."""

    reports: dict[TaskRef, str]

    def send(self, database: Transactions) -> None:
        database.write_progress(self.reports)

    def apply(self, _state: State, _answer: Any, _peers: Mapping[int, Peer], _now: float) -> list[Action]:
        return []


@dataclass(slots=True)
class Reported:
    """The results of one ResultBatch, or of a call, which gets the reply.

    finished: None for a task that the session does not hold.
    """

    settle: Settle
    ran_on: str
    finished: dict[TaskRef, Finished | None]
    reply: Reply | None = None


@dataclass(slots=True)
class Outcomes:
    """Record the results of some ResultBatches in one transaction."""

    batches: list[Reported]
    plan: Transaction
    outgoing: Outgoing | None = None

    def prepare(self) -> Outgoing:
        """Return what is recorded, with its statements."""
        if self.outgoing is None:
            self.outgoing = outgoing(*map(self._reports, (self.plan.rest, self.plan.large, self.plan.small)))
        return self.outgoing

    def send(self, database: Transactions) -> Recorded:
        done = database.record(self.prepare())
        unknown = {ref for batch in self.batches for ref, one in batch.finished.items() if one is None}
        done.lost |= database.never_recorded(unknown)
        return done

    def _reports(self, groups: tuple[tuple[Result, ...], ...]) -> list[Report]:
        workers = {batch.settle.session: (batch.settle.child, batch.ran_on) for batch in self.batches}
        reports = []
        for group in groups:
            child, ran_on = workers[group[0].session]
            reports.append(Report(child, group[0].claim, ran_on, tuple(one.finished for one in group)))
        return reports

    def apply(self, state: State, answer: Any, peers: Mapping[int, Peer], now: float) -> list[Action]:
        actions: list[Action] = []
        for batch in self.batches:
            if batch.reply is not None:
                answer_call(batch.reply.committed, answer)
            if isinstance(answer, Exception) and (batch.settle.stream or batch.reply is not None):
                refs = [ref for ref, one in batch.finished.items() if one is not None]
                actions += tasks.on_not_settled(state, batch.settle, refs, now)
                continue
            peer = batch.reply or peers.get(batch.settle.stream)
            if peer is not None and isinstance(answer, Recorded):
                for ref in batch.settle.tasks:
                    if ref in answer.lost:
                        peer.refuse(batch.settle.number, refusal(ref, m.Refusal.REASON_LOST, LOST))
                    elif ref in answer.reworded:
                        peer.refuse(batch.settle.number, refusal(ref, m.Refusal.REASON_UNSTORABLE, UNSTORABLE))
            actions += tasks.on_settled(state, batch.settle)
        return actions


BY_ACTION: Final[Mapping[type, Callable[[Any], Request]]] = {
    RenewSessions: Renew,
    EndSession: End,
    Release: ReleaseUnstarted,
    ReleaseUnacknowledged: Unacknowledged,
}
"""The requests of actions that say all that they need."""
