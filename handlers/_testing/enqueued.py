"""Records, checks and runs jobs that a test enqueues.

They are in a transaction that is rolled back, or in no database at all.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import psycopg

from jobherd import sql
from jobherd.handlers._define.binding import WHOLE, BindingError
from jobherd.handlers._enqueue import origin
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import configure, keeping_default
from jobherd.handlers._enqueue.dsn import find_dsn, find_schema
from jobherd.handlers._policy.durations import at_least_zero
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.unrunnable import unknown_kind
from jobherd.handlers._testing.attempt import Ran, arun_payload, refuse_loop, run_payload
from jobherd.handlers._values.outcome import EXPIRED, Outcome
from jobherd.handlers._values.payload import decode_payload

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from contextlib import AbstractContextManager
    from datetime import datetime

    from jobherd.handlers._define.handler import AnyHandler, Handler
    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._policy.durations import Duration

P = ParamSpec("P")
C = ParamSpec("C")
R = TypeVar("R")


@dataclass(slots=True)
class Enqueued:
    """A job that was enqueued during a test."""

    id: int
    kind: str
    payload: object
    """Payload as JSON; `enqueued` returns the handler's types."""
    options: dict[str, Any]
    attempts: int = 0
    over: bool = False
    """Whether it is in a final state."""
    ran: list[Ran] = field(default_factory=list)
    """Results of its attempts so far."""
    due: float = 0.0
    """Seconds from the start of the test until the job is due. A child job counts from when its
    parent job was due."""
    round: int = 1
    """1 for a job that the test enqueued, 2 for its child jobs, and so on."""


class Watched:
    """The jobs that a test enqueued, in order, and methods to check and run them.

    Attributes:
        jobs: the jobs enqueued so far.
        client: client that enqueues by kind.
    """

    client: Client

    def __init__(self) -> None:
        self.jobs: list[Enqueued] = []
        self._running: Enqueued | None = None
        self._touched: list[Enqueued] = []

    def enqueued(self, kind: str | AnyHandler) -> list[object]:
        """Return the payloads of all enqueued jobs of a kind, in order.

        Args:
            kind: a handler, for payloads in the types of its annotations, such as
                `Decimal("3.00")`; or a kind's name, for payloads as JSON.

        Example:
            >>> assert jobs.enqueued(receipt) == [{"order_id": 7}]  # doctest: +SKIP
        """
        name = kind if isinstance(kind, str) else kind.kind
        return [_typed(kind, job.payload) for job in self.jobs if job.kind == name]

    def assert_enqueued(self, kind: str | AnyHandler, /, **payload: object) -> Enqueued:
        """Return the first job of a kind whose payload has these values.

        Args:
            kind: as in `enqueued`.
            payload: parameters to compare. Others are ignored.

        Raises:
            AssertionError: there is no such job. The message lists the jobs of the kind.

        Example:
            >>> jobs.assert_enqueued(receipt, order_id=7)  # doctest: +SKIP
        """
        name = kind if isinstance(kind, str) else kind.kind
        alike = [job for job in self.jobs if job.kind == name]
        for job in alike:
            found = _typed(kind, job.payload)
            found = found if isinstance(found, dict) and not _is_whole(kind) else {WHOLE: found}
            if all(key in found and found[key] == value for key, value in payload.items()):
                return job
        others = (
            ", ".join(repr(_typed(kind, job.payload)) for job in alike[:10])
            or f"none of {name!r}, of others {len(self.jobs)}"
        )
        message = f"no job of {name!r} was enqueued with {payload!r}; there are: {others}"
        raise AssertionError(message)

    def run(self, handler: Handler[P, C, R], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
        """Run a handler once, like `jobherd.testing.run`, and record the jobs that it enqueues."""
        data = handler.split_bytes(args, kwargs)[0]
        return self._attempt(handler, handler.payload(*args, **kwargs), payload_bytes=data)

    async def arun(self, handler: Handler[P, C, R], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
        """`run` for a test inside an event loop."""
        data = handler.split_bytes(args, kwargs)[0]
        return await self._aattempt(handler, handler.payload(*args, **kwargs), payload_bytes=data)

    def drain(
        self,
        handlers: Iterable[AnyHandler],
        *,
        attempts: int = 1,
        due: Duration | None = 0,
        rounds: int | None = None,
        most: int = 1000,
    ) -> list[Enqueued]:
        """Run the due jobs and their child jobs until none is left.

        Return the jobs that ran, in that order.

        Args:
            handlers: handlers that run the jobs.
            attempts: most attempts of each job in this call, default 1. Backoff between attempts is
                skipped.
            due: a duration. Jobs delayed by at most that long run too, earlier ones first, as if
                the time had passed. A child job's delay counts from when its parent job was due, so
                a handler that enqueues its next run for tomorrow runs four times within "3d".
                Default 0: delayed jobs do not run. None: all jobs run.
            rounds: 1 runs only the jobs that exist now, 2 also their child jobs, and so on. Default
                None: all.
            most: attempts after which a loop is assumed, default 1000.

        Raises:
            RuntimeError: `most` attempts have not emptied the queue.
        """
        runs = self._runs(handlers, attempts, due, rounds, most)
        with contextlib.suppress(StopIteration):
            handler, payload, fields = next(runs)
            while True:
                refuse_loop(handler, "drain")
                handler, payload, fields = runs.send(self._attempt(handler, payload, **fields))
        return self._touched

    async def adrain(
        self,
        handlers: Iterable[AnyHandler],
        *,
        attempts: int = 1,
        due: Duration | None = 0,
        rounds: int | None = None,
        most: int = 1000,
    ) -> list[Enqueued]:
        """`drain` for a test inside an event loop."""
        runs = self._runs(handlers, attempts, due, rounds, most)
        with contextlib.suppress(StopIteration):
            handler, payload, fields = next(runs)
            while True:
                handler, payload, fields = runs.send(await self._aattempt(handler, payload, **fields))
        return self._touched

    def _runs(
        self, handlers: Iterable[AnyHandler], attempts: int, due: Duration | None, rounds: int | None, most: int
    ) -> Generator[tuple[AnyHandler, object, dict[str, Any]], Ran, None]:
        """Yield each attempt to run, and receive its result."""
        known = {handler.kind: handler for handler in handlers}
        until = float("inf") if due is None else at_least_zero(due, field="due")
        last = (
            float("inf")
            if rounds is None
            else max((job.round for job in self.jobs if not job.over), default=1) + rounds - 1
        )
        touched = self._touched = []
        for _ in range(most):
            waiting = [
                job
                for job in self.jobs
                if not job.over and len(job.ran) < attempts and job.due <= until and job.round <= last
            ]
            # of jobs due at the same time, the one enqueued first
            job = min(waiting, key=lambda one: one.due, default=None)
            if job is None:
                return
            if not job.ran:
                touched.append(job)
            self._running = job
            handler = known.get(job.kind)
            if handler is None:
                ran = Ran(unknown_kind(job.kind, age=0))
            else:
                limit = job.options["max_attempts"] or handler.policy.max_attempts
                own = {
                    name: job.options[name]
                    for name in ("tenant", "webhook", "payload_bytes", "parent_id", "traceparent")
                }
                try:
                    ran = yield (
                        handler,
                        job.payload,
                        {"id": job.id, "attempt": job.attempts + 1, "max_attempts": limit, **own},
                    )
                finally:
                    self._running = None
            job.attempts += ran.outcome.counted
            job.over = ran.outcome.state not in {"ready", "scheduled"}
            job.ran.append(ran)
        message = f"{most} runs have not emptied the queue: a job enqueues itself without a delay. Pass `rounds`, or a larger `most`"
        raise RuntimeError(message)

    def _note(self, ids: Iterable[int], chunks: list[Chunk]) -> None:
        """Record jobs that were enqueued by the test or by the running job."""
        by = self._running
        texts = ((chunk, text) for chunk in chunks for text in chunk.texts)
        for job_id, (chunk, text) in zip(ids, texts, strict=False):
            options = chunk.options.parameters()
            due = _wait(options) + (0.0 if by is None else by.due)
            job = Enqueued(
                job_id, chunk.kind, decode_payload(text), options, due=due, round=1 if by is None else by.round + 1
            )
            self.jobs.append(job)

    def _attempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        raise NotImplementedError

    async def _aattempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        raise NotImplementedError


def _typed(kind: str | AnyHandler, payload: object) -> object:
    """Return a payload in the handler's types.

    The payload is unchanged without a handler, or if it does not fit.
    """
    if isinstance(kind, str):
        return payload
    try:
        arguments = kind.binding.bind(payload)
    except BindingError:
        return payload
    return arguments[WHOLE] if kind.signature.whole else arguments


def _is_whole(kind: str | AnyHandler) -> bool:
    return not isinstance(kind, str) and kind.signature.whole


def _wait(options: dict[str, Any]) -> float:
    """Return the seconds until a job is due."""
    moment: datetime | None = options["run_at"]
    if moment is not None:
        return max(0.0, moment.timestamp() - time.time())
    return 0.0 if options["delay"] is None else float(options["delay"])


class Recorder(Watched):
    """The jobs that were enqueued inside `recorder`, without a database.

    Nothing is undone if a handler raises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client = _Recording(self)

    def _attempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        return run_payload(handler, payload, **fields)

    async def _aattempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        return await arun_payload(handler, payload, **fields)


class _Recording(Client):
    """Client of a recorder: it numbers and records jobs, and sends nothing."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(schema=sql.SCHEMA)
        self._recorder = recorder
        self._ids = itertools.count(1)

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        taken = list(chunks)
        ids = [next(self._ids) for chunk in taken for _ in chunk.texts]
        self._recorder._note(ids, taken)  # noqa: SLF001  # the two are one
        return ids

    def _session(self, within: float | None = None) -> NoReturn:  # noqa: ARG002  # as the client's own
        message = "a recorder has no database: use `inline`, or the fixture jobherd_inline"
        raise RuntimeError(message)


@contextlib.contextmanager
def recorder() -> Iterator[Recorder]:
    """Record enqueued jobs, without a database. Each payload is checked as usual.

    Inside the block, `Handler.enqueue` without client or connection goes to the recorder. A job
    enqueued with its own client or connection does not.

    Example:
        >>> from jobherd import handler
        >>> @handler("demo:receipt")
        ... def receipt(order_id: int) -> None: ...
        >>> with recorder() as jobs:
        ...     _ = receipt.enqueue(order_id=7)
        ...     jobs.assert_enqueued(receipt, order_id=7).id
        1
    """
    with keeping_default():
        watching = Recorder()
        configure(client=watching.client)
        yield watching


class _Watching(Client):
    """Client that handlers use inside `inline`: it records what they enqueue."""

    def __init__(self, inline: Inline, connection: psycopg.Connection[Any], schema: str) -> None:
        super().__init__(schema=schema, connection=connection)
        self._inline = inline

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        taken = list(chunks)
        ids = super().put(taken)
        self._inline._note(ids, taken)  # noqa: SLF001  # the two are one
        return ids


class Inline(Watched):
    """The jobs that were enqueued inside `inline`, and methods to check and run them.

    What an attempt writes through `connection` is kept if the handler returns, and undone if it
    raises.

    Attributes:
        connection: connection whose transaction contains everything.
        client: client that enqueues into that transaction by kind.
        jobs: the jobs enqueued so far, in order.
    """

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        super().__init__()
        self.connection = connection
        self.client = _Watching(self, connection, schema)

    def _attempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        with self._around(handler, fields) as (doors, ran):
            ran.append(run_payload(handler, payload, doors=doors, **fields))
        return ran[-1]

    async def _aattempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        with self._around(handler, fields) as (doors, ran):
            ran.append(await arun_payload(handler, payload, doors=doors, **fields))
        return ran[-1]

    @contextlib.contextmanager
    def _around(self, handler: AnyHandler, fields: dict[str, Any]) -> Iterator[tuple[_InlineDoors, list[Ran]]]:
        """Undo the attempt's writes and its enqueued jobs if it raised.

        The block appends the attempt's result.
        """
        undo = _Undo()
        ran: list[Ran] = [Ran(EXPIRED)]
        before = len(self.jobs)
        doors = _InlineDoors(self.connection, declared=handler.policy.transactional)
        with contextlib.suppress(_Undo), self.connection.transaction(), self._known(fields):
            yield doors, ran
            if doors.completed is not None:
                ran.append(Ran(doors.completed, ran[-1].progress))
            if ran[-1].exception is not None or (handler.policy.transactional and ran[-1].outcome.label != "ok"):
                del self.jobs[before:]
                raise undo

    @contextlib.contextmanager
    def _known(self, fields: dict[str, Any]) -> Iterator[None]:
        """Make the job with these fields the parent of jobs enqueued inside the block.

        Only if the fields are those of a job that was enqueued.
        """
        job = fields.get("id")
        here = (
            None
            if job is None
            else origin.Origin(job, fields["traceparent"], self.connection.pgconn.db, self.client.schema)
        )
        before = origin.ask(lambda: here)
        try:
            yield
        finally:
            origin.forget(before)


class _InlineDoors:
    """Transactions of jobs that `inline` runs: savepoints of its own.

    completed: the outcome of a job that such a transaction completed, if any.
    """

    def __init__(self, connection: psycopg.Connection[Any], *, declared: bool) -> None:
        self.completed: Outcome | None = None
        self._connection = connection
        self._declared = declared
        self._part: AbstractContextManager[psycopg.Transaction] | None = None

    def begin(self) -> psycopg.Connection[Any]:
        if self._declared or self._part is not None or self.completed is not None:
            message = "the job is in a transaction already, or was completed by one"
            raise RuntimeError(message)
        self._part = self._connection.transaction()
        self._part.__enter__()
        return self._connection

    def abegin(self) -> psycopg.AsyncConnection[Any]:
        message = "`inline` has a synchronous connection: test the transaction of a coroutine with a worker"
        raise RuntimeError(message)

    def complete(self, result: object) -> None:
        self.completed = outcome_of(result)
        self._end(None)

    def undo(self) -> None:
        self._end(_Undo())

    def connection(self) -> psycopg.Connection[Any]:
        if self._part is None and not self._declared:
            message = "the job is in no transaction: declare the handler with transactional=True, or use `with job.transaction():`"
            raise RuntimeError(message)
        return self._connection

    def _end(self, problem: _Undo | None) -> None:
        part, self._part = self._part, None
        if part is not None:
            with contextlib.suppress(_Undo):
                part.__exit__(None if problem is None else _Undo, problem, None)


class _Undo(Exception):  # noqa: N818  # not an error: it rolls a savepoint back
    pass


@contextlib.contextmanager
def inline(dsn: str | None = None, *, schema: str | None = None) -> Iterator[Inline]:
    """Record and run jobs inside one transaction that is rolled back at the end.

    Inside the block, `Handler.enqueue` without client or connection enqueues into this transaction.

    Args:
        dsn: address of a database with Jobherd's schema. Default: as for `Client`.
        schema: Jobherd's schema. Default: as for `Client`.

    Example:
        >>> with inline() as jobs:  # doctest: +SKIP
        ...     receipt.enqueue(order_id=7)
        ...     assert jobs.drain([receipt])[0].ran[0].outcome.label == "ok"
    """
    with keeping_default(), psycopg.connect(find_dsn(dsn), client_encoding="UTF8") as connection:
        watching = Inline(connection, find_schema(schema))
        configure(client=watching.client)
        try:
            yield watching
        finally:
            connection.rollback()
