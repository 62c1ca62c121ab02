"""Counts for the metrics: the attempts of remote workers, and what passes between them and the gateway.

The counters are on the status board of the gateway's slot, so they outlive this process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jobherd.handlers._values.outcome import JOB_TIMEOUT
from jobherd.workers.gateway.actions import Status
from jobherd.workers.gateway.outcome_recorder import Recorded
from jobherd.workers.gateway.requests import Outcomes
from jobherd.workers.ipc.board_streams import SERVICES
from jobherd.workers.ipc.counters import OUTCOME_NUMBER, Policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.actions import TaskRef
    from jobherd.workers.gateway.peer import Peer
    from jobherd.workers.gateway.state import Session
    from jobherd.workers.ipc.counters import Tally
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.job.finished import Finished

_REFUSED: Final = {
    Status.UNAUTHENTICATED: "authentication",
    Status.PERMISSION_DENIED: "not_allowed",
    Status.RESOURCE_EXHAUSTED: "limit",
    Status.INVALID_ARGUMENT: "invalid",
    Status.FAILED_PRECONDITION: "invalid",
    Status.DEADLINE_EXCEEDED: "invalid",
    Status.NOT_FOUND: "session",
    Status.UNAVAILABLE: "unavailable",
}
"""ABORTED is missing: the worker has resumed its session elsewhere."""


class AttemptCounts:
    """Counts into the tally of a board."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._kinds: dict[str, int] = {}

    def count(self, session: Session, finished: Mapping[TaskRef, Finished | None]) -> None:
        """Count what will be recorded for tasks that the session holds."""
        alike: dict[tuple[str, int], list[float]] = {}
        for ref, one in finished.items():
            task = session.task(ref)
            if one is None or task is None:
                continue
            outcome = one.outcome
            if one.ran is not None and outcome.code is None:
                alike.setdefault((task.job.kind, OUTCOME_NUMBER[outcome.label]), []).append(one.ran)
                continue
            kind = self._number(task.job.kind)
            if one.ran is None:
                self._tally.count_unrun(kind, OUTCOME_NUMBER[outcome.label])
            else:
                self._tally.count(kind, OUTCOME_NUMBER[outcome.label], one.ran, timeout=outcome.code == JOB_TIMEOUT)
            if outcome.code is not None:
                self._tally.count_error(kind, outcome.code)
        for (name, number), seconds in alike.items():
            self._tally.count_all(self._number(name), number, seconds)

    def _number(self, kind: str) -> int:
        found = self._kinds.get(kind)
        if found is None:
            # Kinds beyond the size of the table share its first entry.
            found = self._kinds[kind] = self._tally.declare([Policy(kind)]).get(kind, 0)
        return found


class StreamCounts:
    """Counts streams, and what passes over them."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._counts = board.remote
        self._streams = dict.fromkeys(SERVICES, 0)

    def connected(self, peer: Peer, change: int) -> None:
        """Count a stream that was connected, +1, or has ended, -1."""
        self._streams[peer.service] += change
        self._board.say_streams(peer.service, self._streams[peer.service])

    def received(self) -> None:
        """Count a message of a stream."""
        self._counts.count("messages", "received")

    async def write(self, peer: Peer, message: m.WorkResponse, writing: Awaitable[None]) -> None:
        """Wait until gRPC has taken a message, and count it."""
        began = time.monotonic()
        await peer.write(writing)
        self._counts.observe("write_wait", time.monotonic() - began)
        self._counts.count("messages", "sent")
        if message.tasks.tasks:
            self._counts.observe("tasks_per_message", len(message.tasks.tasks))

    def session(self, event: str) -> None:
        """Count a session that was opened or resumed, or whose lease the gateway has ended."""
        self._counts.count("sessions", event)

    def refused(self, status: Status) -> None:
        """Count a client that is refused, or whose stream is ended, with a status."""
        if (why := _REFUSED.get(status)) is not None:
            self._counts.count("refused", why)

    def invalid(self, results: int) -> None:
        """Count results that no transaction can record."""
        self._counts.count("results", "invalid", results)

    def answered(self, request: object, answer: object) -> None:
        """Count the results of a transaction, unless they will be sent again."""
        if not isinstance(request, Outcomes) or not isinstance(answer, Recorded):
            return
        for batch in request.batches:
            if batch.settle.stream or batch.reply is not None:
                tasks = batch.settle.tasks
                lost = len(answer.lost.intersection(tasks))
                reworded = len((answer.reworded - answer.lost).intersection(tasks))
                self._counts.count("results", "lost", lost)
                self._counts.count("results", "unstorable", reworded)
                self._counts.count("results", "recorded", len(tasks) - lost - reworded)
