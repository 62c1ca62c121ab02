"""ProducerService: enqueues, shows and cancels jobs for programs in any language.

It reads and writes messages and decides nothing: `new_jobs.py` checks jobs, and `producing.py` uses
the database.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import grpc
import psycopg
import psycopg_pool
from psycopg.errors import DeadlockDetected, LockNotAvailable

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.schema import PRODUCER
from jobherd.handlers._values.job_id import DuplicateJob
from jobherd.workers.database.errors import error_name
from jobherd.workers.gateway.access import Role
from jobherd.workers.gateway.admission import admitting_handler
from jobherd.workers.gateway.enqueue_stream import Arrivals
from jobherd.workers.gateway.new_jobs import NewJobsError, NotAllowedError, check_key, chunks_of, digest_of
from jobherd.workers.gateway.producing import Enqueued, NewJobs, Producing
from jobherd.workers.gateway.request_memory import RequestMemory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.authentication import Authenticator

    Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger("jobherd.gateway")

T = TypeVar("T")

LONGEST_WAIT: Final = 60.0
"""Seconds that GetJob waits at most."""
LARGE: Final = 64 << 10
"""Bytes of a request from which it is checked in a thread: meanwhile workers get no answers."""
OWN: Final = 'jobherd.enqueue: option "after"'
"""Begin of the errors about the jobs that a job waits for."""
LOCKED_ALONE: Final = 0.2
"""Seconds that a request of a stream waits for a key once it has waited with others: the whole stream waits."""


class ProducerService:
    """The service. schema: where Jobherd's tables are."""

    def __init__(self, dsn: str, schema: str, authenticator: Authenticator) -> None:
        self._producing = Producing(dsn, schema)
        self._authenticator = authenticator
        self._memory = RequestMemory()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what gRPC calls."""
        functions: dict[str, Callable[..., Any]] = {
            "Enqueue": self._enqueue,
            "EnqueueStream": self._enqueue_stream,
            "GetJob": self._get,
            "CancelJob": self._cancel,
        }
        return admitting_handler(PRODUCER, functions, self._authenticator, Role.ENQUEUE)

    def wake(self) -> None:
        """Do nothing: producers wait for no wake-up of the supervisor."""

    async def drain(self) -> None:
        """Return at once: a call that has not ended when the server stops is repeated elsewhere."""

    async def _enqueue(self, request: m.EnqueueRequest, principal: Principal, context: Context) -> m.EnqueueResponse:
        try:
            [jobs] = await self._check([request], principal)
            [done] = await self._producing.enqueue([_accepted(jobs)], principal.name)
            done = _accepted(done)
        except NotAllowedError as problem:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(problem))
        except NewJobsError as problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        except psycopg.Error as problem:
            await _fail(context, problem)
        return m.EnqueueResponse(**done.answer())

    async def _enqueue_stream(
        self, requests: AsyncIterator[m.EnqueueStreamRequest], principal: Principal, context: Context
    ) -> None:
        arrivals = Arrivals(self._memory)
        reader = asyncio.create_task(arrivals.read(requests))
        try:
            while taken := await arrivals.take():
                if not self._authenticator.admits(principal):
                    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token or certificate was withdrawn")
                answered = iter(taken)
                async for done in self._put(taken, principal):
                    request = next(answered)
                    answer = m.EnqueueStreamResponse(number=request.number)
                    if isinstance(done, Enqueued):
                        answer = m.EnqueueStreamResponse(number=request.number, **done.answer())
                    else:
                        answer.refused = _rejected(done) if isinstance(done, psycopg.Error) else str(done)
                    await context.write(answer)
            await reader
        except psycopg.Error as problem:
            await _fail(context, problem)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            arrivals.close()

    async def _put(
        self, requests: Sequence[m.EnqueueStreamRequest], principal: Principal
    ) -> AsyncIterator[Enqueued | NewJobsError | psycopg.Error]:
        """Enqueue the jobs of requests together, and yield what became of each. Raises psycopg.Error.

        If that fails, each gets its own transaction, so that the jobs of one request harm no other.
        What became of it is yielded after its commit: a later error must not hide it.
        """
        checked = await self._check(requests, principal)
        valid = [jobs for jobs in checked if isinstance(jobs, NewJobs)]
        together: Iterator[Enqueued | NewJobsError] | None = None
        try:
            together = iter(await self._producing.enqueue(valid, principal.name) if valid else ())
        except (psycopg.Error, DuplicateJob) as problem:
            if not isinstance(problem, DuplicateJob | DeadlockDetected) and not _is_about_request(problem):
                raise
        for jobs in checked:
            if not isinstance(jobs, NewJobs):
                yield jobs
            else:
                yield await self._put_alone(jobs, principal) if together is None else next(together)

    async def _put_alone(self, jobs: NewJobs, principal: Principal) -> Enqueued | NewJobsError | psycopg.Error:
        try:
            [done] = await self._producing.enqueue([jobs], principal.name, patience=LOCKED_ALONE)
        except psycopg.Error as problem:
            if not _is_about_request(problem):
                raise
            return problem
        return done

    async def _check(
        self, requests: Sequence[m.EnqueueRequest | m.EnqueueStreamRequest], principal: Principal
    ) -> list[NewJobs | NewJobsError]:
        if sum(request.ByteSize() for request in requests) < LARGE:
            return [_read(request, principal) for request in requests]
        return await asyncio.to_thread(lambda: [_read(request, principal) for request in requests])

    async def _get(self, request: m.GetJobRequest, principal: Principal, context: Context) -> m.GetJobResponse:
        wait = min(request.wait_seconds, LONGEST_WAIT) if request.wait_seconds > 0 else 0.0
        try:
            job = await self._producing.show(request.id, principal, wait)
        except psycopg.Error as problem:
            await _fail(context, problem)
        if job is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"job {request.id} not found")
        return m.GetJobResponse(job=job)

    async def _cancel(self, request: m.CancelJobRequest, principal: Principal, context: Context) -> m.CancelJobResponse:
        if "\0" in request.reason:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "reason must not contain the character U+0000")
        try:
            state = await self._producing.cancel(request.id, principal, request.reason)
        except psycopg.Error as problem:
            await _fail(context, problem)
        if state is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"job {request.id} not found")
        return m.CancelJobResponse(state=state)


def _read(request: m.EnqueueRequest | m.EnqueueStreamRequest, principal: Principal) -> NewJobs | NewJobsError:
    """Return the jobs of a request, with the digest if there is a key; or why they are not valid."""
    try:
        key = check_key(request.idempotency_key)
        return NewJobs(
            chunks_of(request.jobs, principal), key, digest_of(request.jobs) if key else b"", principal.tenants
        )
    except NewJobsError as problem:
        return problem


def _accepted(done: T | NewJobsError) -> T:
    if isinstance(done, NewJobsError):
        raise done
    return done


def _is_about_jobs(problem: psycopg.Error) -> bool:
    """Return whether PostgreSQL rejects the values of the request, so that a repeated call would fail too."""
    return problem.sqlstate is not None and problem.sqlstate[:2] in {"22", "23", "54"}


def _is_about_request(problem: psycopg.Error) -> bool:
    """Return whether other requests may succeed now."""
    return isinstance(problem, LockNotAvailable) or _is_about_jobs(problem)


def _rejected(problem: psycopg.Error) -> str:
    if isinstance(problem, LockNotAvailable):
        return "another transaction holds a key of these jobs: send them again"
    own = problem.diag.message_primary or ""  # Other messages can have parts of payloads.
    return f"PostgreSQL rejects these jobs: {own if own.startswith(OWN) else error_name(problem)}"


async def _fail(context: Context, problem: psycopg.Error) -> NoReturn:
    if _is_about_jobs(problem):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _rejected(problem))
    if isinstance(problem, LockNotAvailable):
        await context.abort(grpc.StatusCode.UNAVAILABLE, _rejected(problem))
    if not isinstance(problem, psycopg_pool.PoolTimeout):
        _log.warning("a call of a producer failed: %s", error_name(problem))
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the database does not answer now; try again")
