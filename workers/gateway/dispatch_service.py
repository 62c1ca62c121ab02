"""DispatchService: tasks over a stream or in one call, results and heartbeats in separate calls.

Each call fails without effect on the others: a stream that cannot be written ends, and results and
heartbeats are accepted without it. What they lead to is decided behind `coordinator.py`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
import psycopg

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.schema import DISPATCH
from jobherd.workers.gateway import assignment, sessions
from jobherd.workers.gateway.access import Role
from jobherd.workers.gateway.actions import TaskRef
from jobherd.workers.gateway.admission import admitting_handler
from jobherd.workers.gateway.incoming import Incoming, usable_seconds
from jobherd.workers.gateway.peer import session_number
from jobherd.workers.gateway.unary import GoneError, Unary
from jobherd.workers.gateway.worker_service import HelloError, end, worker_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.actions import Filter
    from jobherd.workers.gateway.authentication import Authenticator
    from jobherd.workers.gateway.coordinator import Coordinator
    from jobherd.workers.gateway.peer import Peer, Worker

    Context = grpc.aio.ServicerContext[Any, Any]

LONGEST_WAIT: Final = 30.0
"""Seconds that ClaimJobs waits for a task at most."""
NO_CLAIM: Final = 5.0
"""Seconds after which a ClaimJobs that does not wait is answered although no claim could be made."""
LOOK_EVERY: Final = 1.0
"""Seconds between two looks for tasks of streams without room that have ended at another gateway."""
REJECTED: Final = (psycopg.Error, ValueError, OverflowError)
"""What a transaction raises if the database rejects it, or a value cannot be sent to it."""


class DispatchService:
    """The service."""

    def __init__(self, coordinator: Coordinator, authenticator: Authenticator) -> None:
        self._coordinator = coordinator
        self._incoming = Incoming(coordinator)
        self._authenticator = authenticator
        self._unary = Unary(coordinator)
        self._streams: set[int] = set()
        self._looking: asyncio.Task[None] | None = None

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what gRPC calls."""
        functions: dict[str, Callable[..., Any]] = {
            "StreamJobs": self._stream,
            "ReportResult": self._report,
            "Heartbeat": self._beat,
            "ClaimJobs": self._claim,
        }
        return admitting_handler(DISPATCH, functions, self._authenticator, Role.WORK)

    def wake(self) -> None:
        """Do nothing: the coordinator is woken."""

    async def drain(self) -> None:
        """Return once no worker has a task of this gateway. The coordinator has told the streams."""
        await self._coordinator.drained.wait()

    # -- the stream

    async def _stream(self, request: m.StreamJobsRequest, principal: Principal, context: Context) -> None:
        hello = m.Hello(
            worker_id=request.worker_id, kinds=request.policies, max_message_bytes=request.max_message_bytes
        )
        worker, accepts = await self._check(
            context, hello, principal, m.Ready(kinds=request.kinds, queues=request.queues), "StreamJobsRequest"
        )
        session = await self._session_of(context, request.session)
        held = tuple(TaskRef(ref.task_id, ref.claim) for ref in request.held)
        peer = self._coordinator.connect(accepts, lease=usable_seconds(request.lease_seconds), service="dispatch")
        self._streams.add(peer.id)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            slots = request.max_in_flight or 1
            self._coordinator.greet(peer, worker, sessions.Hello(principal.name, session, held, slots))
            while (message := await peer.next()) is not None:
                await self._pass_on(peer, message, context)
        finally:
            self._streams.discard(peer.id)
            self._coordinator.disconnect(peer)
        await end(peer, context)

    async def _pass_on(self, peer: Peer, message: m.WorkResponse, context: Context) -> None:
        """Write a message, and ask for more tasks if there is room."""
        write = partial(self._coordinator.metrics.write, peer, message)
        match message.WhichOneof("event"):
            case "hello_ack":
                await write(context.write(m.StreamJobsResponse(opened=message.hello_ack)))
            case "tasks":
                ready, message.tasks.ready = message.tasks.ready, 0
                self._coordinator.handed(peer, ready)
                if message.tasks.tasks:
                    await write(context.write(m.StreamJobsResponse(tasks=message.tasks)))
                self._coordinator.written(peer, ready)
            case "cancel":
                await write(context.write(m.StreamJobsResponse(cancel=message.cancel)))
                return
            case "drain":
                await write(context.write(m.StreamJobsResponse(drain=message.drain)))
                return
            case _:  # such as ReleaseRest, which this service does not have
                return
        stream = self._coordinator.state.streams.get(peer.id)
        if stream is not None:
            self._coordinator.top_up(stream.session)

    async def _look(self) -> None:
        """Look for tasks that have ended at another gateway, as long as there are streams."""
        try:
            while self._streams:
                await asyncio.sleep(LOOK_EVERY)
                with suppress(*REJECTED):
                    await self._unary.forget_ended(self._streams)
        finally:
            self._looking = None

    # -- calls

    async def _report(
        self, request: m.ReportResultRequest, principal: Principal, context: Context
    ) -> m.ReportResultResponse:
        session = await self._session_of(context, request.session)
        try:
            return m.ReportResultResponse(refusals=await self._unary.report(session, principal, request.results))
        except (GoneError, *REJECTED) as problem:
            await _fail(context, problem)

    async def _beat(self, request: m.HeartbeatRequest, principal: Principal, context: Context) -> m.HeartbeatResponse:
        session = await self._session_of(context, request.session)
        refs = [TaskRef(ref.task_id, ref.claim) for ref in request.tasks]
        try:
            lost, seconds = await self._unary.beat(session, principal, refs, usable_seconds(request.extend_seconds))
        except (GoneError, *REJECTED) as problem:
            await _fail(context, problem)
        return m.HeartbeatResponse(
            lost=[m.TaskRef(task_id=ref.task, claim=ref.claim) for ref in lost], session_seconds=seconds
        )

    async def _claim(self, request: m.ClaimJobsRequest, principal: Principal, context: Context) -> m.ClaimJobsResponse:
        ready = m.Ready(number=1)
        ready.MergeFrom(request.ready)
        ready.number = 1
        worker, _ = await self._check(
            context, m.Hello(worker_id=request.worker_id), principal, ready, "ClaimJobsRequest"
        )
        session = await self._session_of(context, request.session)
        try:
            held = await self._unary.held(session, principal) if session else ()
        except (GoneError, *REJECTED) as problem:
            await _fail(context, problem)
        # The script sends no heartbeats while its tasks run, also those of earlier calls.
        limits = self._coordinator.state.limits
        rest = self._unary.rest_of(session, principal, time.monotonic())
        linger = max(limits.session_lease, usable_seconds(ready.lease_seconds) or limits.task_lease, rest)
        peer = self._coordinator.connect(service="dispatch")
        try:
            self._coordinator.greet(peer, worker, sessions.Hello(principal.name, session, held, 0, linger))
            opened = await _next(peer, "hello_ack")
            answer = await self._claim_once(peer, ready, min(usable_seconds(request.wait_seconds), LONGEST_WAIT))
            if opened is not None and answer is not None:
                self._coordinator.handed(peer, ready.number)
                return m.ClaimJobsResponse(session=opened.hello_ack.session, tasks=answer.tasks.tasks)
        finally:
            self._coordinator.disconnect(peer)
        await end(peer, context)
        raise AssertionError("a stream without an answer has ended")

    async def _claim_once(self, peer: Peer, ready: m.Ready, wait: float) -> m.WorkResponse | None:
        """Return the TaskBatch, empty after that time; None: the stream has ended."""
        self._incoming.receive(peer, m.WorkRequest(ready=ready))
        if not wait:
            assignment.answer_by_next_claim(self._coordinator.state, peer.id, ready.number)
        take_back = m.WorkRequest(ready=m.Ready(number=ready.number))
        timer = asyncio.get_running_loop().call_later(wait or NO_CLAIM, self._take_back, peer, take_back)
        try:
            return await _next(peer, "tasks")
        finally:
            timer.cancel()

    def _take_back(self, peer: Peer, ready: m.WorkRequest) -> None:
        self._incoming.receive(peer, ready)

    # -- checks

    async def _check(
        self, context: Context, hello: m.Hello, principal: Principal, ready: m.Ready, where: str
    ) -> tuple[Worker, Filter]:
        """Return who a client is and what it may get, or end the call."""
        try:
            worker = worker_of(hello, principal, where=where)
        except HelloError as problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        try:
            accepts = worker.accepts(ready.kinds, ready.queues)
        except ValueError as problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        if accepts is None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the principal {principal.name} may get none of these kinds and queues",
            )
        return worker, accepts

    async def _session_of(self, context: Context, text: str) -> int:
        try:
            return session_number(text)
        except ValueError:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the session is not one of this database")


async def _next(peer: Peer, event: str) -> m.WorkResponse | None:
    """Return the next message of that kind, or None if the stream has ended."""
    while (message := await peer.next()) is not None:
        if message.WhichOneof("event") == event:
            return message
    return None


async def _fail(context: Context, problem: Exception) -> NoReturn:
    if isinstance(problem, GoneError):
        await context.abort(grpc.StatusCode.NOT_FOUND, "the session has ended, or belongs to another client")
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the database rejects the call now; try again")
