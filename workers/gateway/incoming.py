"""Reads the messages of a worker's stream and feeds them to the bookkeeping.

It does not trust the client: what a message asks for is narrowed to what its principal may have,
and a number that is not usable counts as 0.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway import assignment, judge, tasks
from jobherd.workers.gateway.actions import Settle, Status, TaskRef
from jobherd.workers.gateway.requests import Reported

if TYPE_CHECKING:
    from jobherd.workers.gateway.coordinator import Coordinator
    from jobherd.workers.gateway.peer import Peer


class Incoming:
    """Receives messages for a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def receive(self, peer: Peer, request: m.WorkRequest) -> None:
        """A message has arrived on a stream."""
        now = time.monotonic()
        match request.WhichOneof("event"):
            case "results":
                self._on_results(peer, request.results, now)
            case "ready":
                self._on_ready(peer, request.ready, now)
            case "heartbeat":
                beat = request.heartbeat
                refs = [TaskRef(ref.task_id, ref.claim) for ref in beat.tasks]
                self._coordinator.carry_out(
                    tasks.on_heartbeat(
                        self._coordinator.state,
                        peer.id,
                        beat.number,
                        refs,
                        extend=usable_seconds(beat.extend_seconds),
                        now=now,
                    )
                )
            case "release":
                release = request.release
                self._coordinator.carry_out(
                    tasks.on_release(self._coordinator.state, peer.id, release.claim, release.behind_task_id)
                )
            case "hello":
                self._coordinator.reject(
                    peer, Status.FAILED_PRECONDITION, "a stream has one Hello, as its first message"
                )
            case "progress":
                if (session := self._coordinator.session_of(peer)) is not None:
                    self._coordinator.progress.note(session, peer.worker, request.progress)
                    self._coordinator.set_timer()
            case _:  # Of a newer client.
                pass

    def _on_ready(self, peer: Peer, ready: m.Ready, now: float) -> None:
        try:
            accepts = peer.worker.accepts(ready.kinds, ready.queues)
            reason, why = m.Refusal.REASON_NOT_ALLOWED, "the token allows none of these kinds and queues: see HelloAck"
            status = Status.PERMISSION_DENIED
        except ValueError as problem:
            accepts, reason, why, status = None, m.Refusal.REASON_INVALID, str(problem), Status.INVALID_ARGUMENT
        if accepts is None:
            self._coordinator.metrics.refused(status)
            peer.send(m.WorkResponse(refusal=m.Refusal(reason=reason, ready=ready.number, message=why)))
            return
        lease = usable_seconds(ready.lease_seconds)
        self._coordinator.carry_out(
            assignment.on_ready(
                self._coordinator.state, peer.id, ready.number, accepts, ready.count, lease=lease, now=now
            )
        )

    def _on_results(self, peer: Peer, batch: m.ResultBatch, now: float) -> None:
        session = self._coordinator.session_of(peer)
        if session is None:
            return
        peer.note_results(batch.number, batch.ByteSize())
        judged, refusals = judge.judge(session, peer.worker, batch.results, now)
        self._coordinator.counts.count(session, judged)
        self._coordinator.metrics.invalid(len(refusals))
        # Their acknowledgement, which may be among the actions, says it.
        for refusal in refusals:
            peer.refuse(batch.number, refusal)
        actions = tasks.on_results(self._coordinator.state, peer.id, batch.number, tuple(judged), now)
        for action in actions:
            if isinstance(action, Settle):
                self._coordinator.queue.add(Reported(action, self._coordinator.ran_on(peer.worker.name), judged))
        self._coordinator.carry_out([action for action in actions if not isinstance(action, Settle)])
        if batch.HasField("ready"):
            self._on_ready(peer, batch.ready, now)


def usable_seconds(value: float) -> float:
    """Return a number of seconds that a client sent; 0 if it is not a usable one."""
    return min(value, 86_400.0) if value > 0 else 0.0
