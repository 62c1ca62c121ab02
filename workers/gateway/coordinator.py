"""Feeds events to the bookkeeping and carries out its actions: messages to streams, transactions.

It runs in the event loop. It decides nothing about tasks and sessions: `sessions.py` explains which
module does. It must not wait for the database: transactions wait in a queue for the database
thread, which runs them in order and returns each answer to the loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jobherd.workers.gateway import assignment, deadlines, judge, sessions, tasks
from jobherd.workers.gateway.actions import (
    AttachSession,
    CancelTask,
    EndSession,
    EndStream,
    ExpireTasks,
    OpenSession,
    SendAck,
    SendDrain,
    SendHeartbeatAck,
    SendReleaseRest,
    SendTasks,
    Settle,
    Status,
    Welcome,
)
from jobherd.workers.gateway.claim_timing import ClaimTiming
from jobherd.workers.gateway.counting import AttemptCounts, StreamCounts
from jobherd.workers.gateway.database_round import DatabaseRound
from jobherd.workers.gateway.delivery import Delivery
from jobherd.workers.gateway.peer import Peer, TaskPeer
from jobherd.workers.gateway.progress import ProgressReports
from jobherd.workers.gateway.replies import Lookup
from jobherd.workers.gateway.request_queue import Queue
from jobherd.workers.gateway.requests import BY_ACTION, Cancels, Expire, Open, Reported, WriteProgress
from jobherd.workers.gateway.responses import response
from jobherd.workers.gateway.state import State
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.actions import Action, Claim, Filter
    from jobherd.workers.gateway.claims import Claimed
    from jobherd.workers.gateway.database import Database
    from jobherd.workers.gateway.peer import Worker
    from jobherd.workers.gateway.state import Limits, Session
    from jobherd.workers.gateway.transactions import Transactions
    from jobherd.workers.process.spec import ChildSpec

_log = logging.getLogger("jobherd.gateway")

NEVER: Final = float("inf")
T = TypeVar("T")


class Coordinator:
    """The bookkeeping, the database thread and the connected streams of one gateway.

    state: only the functions of the bookkeeping change it.
    connected: set once there is a database session. drained: set when nothing is out after `drain`.
    counts, metrics: the attempts of remote workers, and what passes over streams, for the metrics.
    """

    def __init__(self, spec: ChildSpec, database: Database, limits: Limits) -> None:
        self.state = State(limits)
        self.connected = asyncio.Event()
        self.drained = asyncio.Event()
        self._spec = spec
        self._database = database
        self.queue = Queue()
        self._peers: dict[int, Peer] = {}
        self._workers: dict[int, Worker] = {}
        """By session: also those without a stream."""
        self._numbers = itertools.count(1)
        self._delivery = Delivery()
        self._work = asyncio.Event()
        self._timing = ClaimTiming(spec)
        self.counts = AttemptCounts(spec.board.tally)
        self.metrics = StreamCounts(spec.board)
        self._gates = spec.control.gates
        self.progress = ProgressReports()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve the database thread. Raises StopWaiting if the supervisor is dead or was reclaimed."""
        session = self._database.session
        database_round = DatabaseRound(session, self._spec.supervisor, self.state.limits.session_lease)
        await self._database.call(session.connect)
        self.connected.set()
        while True:
            await self._work.wait()
            self._work.clear()
            while True:
                now = time.monotonic()
                claim = self._timing.next_claim(self.state, self._delivery.unsent, now)
                requests = self.queue.take(self.state)
                if claim is None and not requests:
                    break
                await self._database.call(database_round.run, claim, requests, self._on_claimed, self._on_answer)
            if self._timing.rest(self.state, time.monotonic()):
                self.wake()
            self.set_timer()  # for a claim that may not be made yet

    # -- events

    def connect(self, accepts: Filter | None = None, *, lease: float = 0.0, service: str = "work") -> Peer:
        """Return the peer of a new stream. accepts: what it gets without sending Readys."""
        number = next(self._numbers)
        peer = Peer(number, service) if accepts is None else TaskPeer(number, service, accepts, lease)
        self._peers[peer.id] = peer
        self.metrics.connected(peer, 1)
        self.carry_out(sessions.on_connect(self.state, peer.id, time.monotonic()))
        return peer

    def greet(self, peer: Peer, worker: Worker, hello: sessions.Hello) -> None:
        """The Hello of a stream was accepted."""
        peer.worker = worker
        self.carry_out(sessions.on_hello(self.state, peer.id, hello, time.monotonic()))

    def reject(self, peer: Peer, status: Status, why: str) -> None:
        """The client has broken the protocol: end its stream."""
        self.carry_out(sessions.on_violation(self.state, peer.id, status, why, time.monotonic()))

    def disconnect(self, peer: Peer) -> None:
        """A stream has ended."""
        if self._peers.pop(peer.id, None) is None:
            return
        self.metrics.connected(peer, -1)
        self._delivery.forget(peer)
        self.carry_out(sessions.on_break(self.state, peer.id, time.monotonic()))

    def handed(self, peer: Peer, ready: int) -> None:
        """A TaskBatch is about to be written: from here on the worker may have its tasks."""
        self.carry_out(assignment.on_handed(self.state, peer.id, ready, time.monotonic()))

    def written(self, peer: Peer, ready: int) -> None:
        """A TaskBatch was written."""
        self._delivery.written(peer, ready)
        assignment.on_written(self.state, peer.id, ready)
        self._work.set()

    def wake(self) -> None:
        """A wake-up has arrived: there may be jobs, or requests to cancel some."""
        assignment.on_wake(self.state)
        if any(session.claims for session in self.state.sessions.values()):
            self.queue.add(Cancels())
        if not self.state.groups:
            self._timing.note_no_claim()
        if (gates := self._spec.control.gates) != self._gates:
            self._gates = gates
            self.carry_out(sessions.on_gates_changed(self.state))
        self._work.set()

    def top_up(self, session: int) -> None:
        """Ask for tasks if the stream of a session has room and its client sends no Readys."""
        known = self.state.sessions.get(session)
        peer = self._peers.get(known.stream) if known is not None else None
        if isinstance(peer, TaskPeer):
            assignment.top_up(self.state, peer.id, peer.accepts, lease=peer.lease)
        self.carry_out(())

    def report(self, reported: Reported) -> None:
        """A call has reported results: record them, and answer it."""
        self.queue.add(reported)
        tasks.on_reported(self.state, reported.settle.session, reported.settle.tasks)
        self.top_up(reported.settle.session)

    async def look_up(self, run: Callable[[Transactions], T]) -> T:
        """Run a function with the database, after all that waits, and return its answer. Raises psycopg.Error."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.queue.add(Lookup(run, answer))
        self._work.set()
        return await answer

    def worker_of(self, session: int) -> Worker | None:
        """Return the worker of a session that this gateway serves."""
        return self._workers.get(session)

    def withdraw(self, admits: Callable[[Principal], bool]) -> None:
        """End the streams of clients that are not admitted any more."""
        for peer in [one for one in self._peers.values() if hasattr(one, "worker")]:
            if not admits(peer.worker.principal):
                self.reject(peer, Status.UNAUTHENTICATED, "the token or certificate was withdrawn")

    def drain(self, within: float) -> None:
        """Claim nothing more, and let workers finish."""
        self.carry_out(sessions.on_drain(self.state, within))

    def session_of(self, peer: Peer) -> Session | None:
        """Return the session of a stream."""
        stream = self.state.streams.get(peer.id)
        return self.state.sessions.get(stream.session) if stream is not None else None

    def ran_on(self, worker: str) -> str:
        """Return where the tasks of a worker ran, for people."""
        return f"{worker} via {self._spec.settings.host}"

    # -- actions

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Carry out what follows from an event."""
        for action in actions:
            match action:
                case SendTasks(stream=stream):
                    self._send_tasks(self._peers[stream], action)
                case SendAck(stream=stream, up_to=up_to):
                    self._peers[stream].acknowledge(up_to)
                case EndStream(stream=stream, status=status, why=why):
                    self.metrics.refused(status)
                    if (ended := self._peers.get(stream)) is not None:
                        self._delivery.forget(ended)
                        ended.end(status, why)
                case Welcome() | SendHeartbeatAck() | CancelTask() | SendReleaseRest() | SendDrain():
                    peer = self._peers[action.stream]
                    peer.send(response(action, peer.worker, self.state.limits))
                    if isinstance(action, Welcome):
                        self._workers[action.session] = peer.worker
                        resumed = self.state.sessions[action.session].attached > 1
                        self.metrics.session("resumed" if resumed else "opened")
                        peer.opened.set()
                case OpenSession(stream=stream) | AttachSession(stream=stream):
                    self.queue.add(Open(action, self._peers[stream].worker))
                case ExpireTasks(session=session):
                    worker = self._workers.get(session)
                    expired = judge.judge_expired(self.state.sessions[session], worker, action, time.monotonic())
                    self.counts.count(self.state.sessions[session], expired)
                    self.queue.add(Expire(action, expired))
                case _:
                    if isinstance(action, EndSession):
                        self.metrics.session("ended")
                    self.queue.add(BY_ACTION[type(action)](action))
        if self.state.draining and sessions.is_drained(self.state):
            self.drained.set()
        self._work.set()
        self.set_timer()

    def _send_tasks(self, peer: Peer, action: SendTasks) -> None:
        """Send the tasks of a claim. What does not fit is released; what no message can carry is snoozed."""
        stream = self.state.streams[peer.id]
        session = self.state.sessions[stream.session]
        over, too_large = self._delivery.send(peer, action, lease=stream.unwritten[action.ready][1])
        if over:
            self.carry_out(self.state.release(session, over))
        if too_large:
            for ref in too_large:
                session.close(ref)
            settle = Settle(0, 0, session.id, session.child, tuple(too_large))
            self.queue.add(Reported(settle, self.ran_on(peer.worker.name), too_large))

    def _on_claimed(self, claim: Claim, answer: Claimed | None) -> None:
        """The claim was answered. None: it got no answer, and its session has ended."""
        now = time.monotonic()
        self._timing.note(answer, now)
        if answer is None:
            self.carry_out(assignment.on_claim_failed(self.state, claim, now))
            return
        reach("gateway.claimed")
        found = [
            judge.apply_rules(self._workers.get(share.session), one, answer.tasks)
            for share, one in zip(claim.shares, answer.found, strict=True)
        ]
        with self._delivery.of(answer.tasks):
            self.carry_out(assignment.on_claimed(self.state, claim, found, now, answer.opens_in))

    # -- the database thread

    def _on_answer(self, request: Any, result: Any) -> None:
        self.metrics.answered(request, result)
        self.carry_out(request.apply(self.state, result, self._peers, time.monotonic()))
        if len(self._workers) > 2 * len(self.state.sessions) + 16:
            self._workers = {number: one for number, one in self._workers.items() if number in self.state.sessions}

    # -- time

    def set_timer(self) -> None:
        now = time.monotonic()
        when = min(deadlines.wake_at(self.state, now), self._timing.again_at(now), self.progress.wake_at())
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
            self._timer = None
        if when < NEVER:
            self._timer = asyncio.get_running_loop().call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if reports := self.progress.take(time.monotonic()):
            self.queue.add(WriteProgress(reports))
        self.carry_out(deadlines.due(self.state, time.monotonic()))
