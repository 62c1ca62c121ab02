"""Run jobs in a test, here and now, as a worker would.

    from handlers.testing import run

    ran = run(receipt, order_id=7)
    assert ran.outcome.label == "ok"

The payload makes the round trip through JSON, the binding, the call and the outcome are those of the worker. What is not there is the
process around it: no timeout is enforced, and a crash is a crash of the test. `inline` adds a database: jobs that the handlers enqueue
go into a transaction of its connection, can be looked at and run, and are gone at the end.
"""

from __future__ import annotations

import contextlib
import random as _random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import psycopg

from handlers import _origin
from handlers._batch import BatchSignature, endings_of
from handlers._binding import WHOLE
from handlers._call import call
from handlers._client import Client
from handlers._default import configure, keeping_default
from handlers._dsn import find_dsn, find_schema
from handlers._job import Job
from handlers._outcome import EXPIRED, Outcome, Raised, outcome_of, unknown_kind, unreadable
from handlers._payload import PayloadError, check_payload, decode_payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from handlers._backoff import Dice
    from handlers._bulk import Chunk
    from handlers._handler import AnyHandler, Handler

__all__ = ["EXPIRED", "Enqueued", "Inline", "Outcome", "Ran", "inline", "run", "run_batch", "run_payload"]

P = ParamSpec("P")
C = ParamSpec("C")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ran:
    """What one attempt did."""

    outcome: Outcome
    """What becomes of the job: label, state, delay, result, error, code, traceback."""
    progress: tuple[tuple[float, str, object], ...] = ()
    """What the handler said of its progress, in order: fraction, note, data."""
    exception: BaseException | None = None
    """What the handler raised, if it did."""

    @property
    def result(self) -> object:
        """The result as it comes back from the database, or None."""
        return None if self.outcome.result is None else decode_payload(self.outcome.result)


@dataclass(slots=True)
class Enqueued:
    """A job that was enqueued while `inline` watched."""

    id: int
    kind: str
    payload: object
    options: dict[str, Any]
    attempts: int = 0
    over: bool = False
    """Whether it is in a terminal state."""
    ran: list[Ran] = field(default_factory=list)
    """Its attempts so far."""


def run(handler: Handler[P, C, R], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
    """Run a handler once with these arguments and return what became of the job. No database is needed.

    Raises TypeError and PayloadError as `enqueue` would; what the handler raises is in the result.

    >>> from handlers import handler
    >>> @handler("demo:double")
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> run(double, number=21).result
    42
    """
    data = handler.split_bytes(args, kwargs)[0]
    return run_payload(handler, handler.payload(*args, **kwargs), payload_bytes=data)


def run_payload(
    handler: AnyHandler,
    payload: object,
    *,
    attempt: int = 1,
    max_attempts: int | None = None,
    random: Dice = _random,
    payload_bytes: bytes | None = None,
    **fields: Any,
) -> Ran:
    """Run a handler once with any payload, also one that does not fit.

    payload_bytes: what goes along as bytes, default nothing. attempt, max_attempts: where the job stands; default its first attempt of what the handler declares.
    random: where the jitter of the back-off comes from. fields: for `Job`, like `id`, `crashes` or `on_cancelled`.
    """
    if handler.policy.batch is not None:
        return _run_together(handler, [payload], attempt=attempt, max_attempts=max_attempts, random=random, fields=[fields])[0]
    text = check_payload(payload)
    limit = handler.policy.max_attempts if max_attempts is None else max_attempts
    told: list[tuple[float, str, object]] = []
    try:
        decoded = decode_payload(text)
        arguments = handler.binding.bind(decoded)
        handler.signature.take_bytes(arguments, payload_bytes)
    except PayloadError as problem:
        return Ran(unreadable(problem), exception=problem)
    job = _job(handler, told, {"attempt": attempt, "max_attempts": limit, "payload": decoded, "payload_bytes": payload_bytes} | fields)
    ending: object
    try:
        ending = call(handler, job, arguments)
    except BaseException as problem:
        ending = Raised(problem)
    outcome = outcome_of(ending, handler=handler, attempt=attempt, max_attempts=limit, random=random)
    return Ran(outcome, tuple(told), ending.exception if isinstance(ending, Raised) else None)


def run_batch(handler: AnyHandler, payloads: Iterable[object], *, random: Dice = _random) -> list[Ran]:
    """Call a batch handler once with all these payloads and return what became of each job, in order. Their ids are 1, 2, 3, ...

    A payload that does not fit is that job's poison, and the handler is called with the others, as a worker does it.
    random: where the jitter of the back-off comes from. Raises TypeError for a handler of single jobs.

    >>> from handlers import handler
    >>> @handler("demo:double", batch=10)
    ... def double(numbers: list[int]) -> list[int]:
    ...     return [2 * number for number in numbers]
    >>> [ran.result for ran in run_batch(double, [1, 21])]
    [2, 42]
    """
    if handler.policy.batch is None:
        message = f"{handler.kind!r} takes one job a call: use run(), or declare it with batch=N"
        raise TypeError(message)
    taken = list(payloads)
    return _run_together(handler, taken, attempt=1, max_attempts=None, random=random, fields=[{"id": n + 1} for n in range(len(taken))])


def _run_together(
    handler: AnyHandler, payloads: list[object], *, attempt: int, max_attempts: int | None, random: Dice, fields: list[dict[str, Any]]
) -> list[Ran]:
    signature = handler.signature
    assert isinstance(signature, BatchSignature)
    limit = handler.policy.max_attempts if max_attempts is None else max_attempts
    told: list[list[tuple[float, str, object]]] = [[] for _ in payloads]
    ran: list[Ran | None] = [None] * len(payloads)
    jobs, arguments, places = [], [], []
    for place, payload in enumerate(payloads):
        text = check_payload(payload)
        try:
            decoded = decode_payload(text)
            arguments.append(handler.binding.bind(decoded)[WHOLE])
        except PayloadError as problem:
            ran[place] = Ran(unreadable(problem), exception=problem)
            continue
        jobs.append(_job(handler, told[place], {"attempt": attempt, "max_attempts": limit, "payload": decoded} | fields[place]))
        places.append(place)
    ending: object = None
    try:
        if jobs:
            ending = call(handler, jobs, signature.arguments(arguments))
    except BaseException as problem:
        ending = Raised(problem)
    for place, one in zip(places, endings_of(ending, [job.id for job in jobs]), strict=True):
        outcome = outcome_of(one, handler=handler, attempt=attempt, max_attempts=limit, random=random)
        ran[place] = Ran(outcome, tuple(told[place]), one.exception if isinstance(one, Raised) else None)
    return [one for one in ran if one is not None]


def _job(handler: AnyHandler, told: list[tuple[float, str, object]], fields: dict[str, Any]) -> Job:
    given: dict[str, Any] = {
        "id": 1,
        "kind": handler.kind,
        "queue": handler.policy.queue,
        "priority": handler.policy.priority,
        "created": time.time(),
        "run": time.time(),
        "deadline": time.monotonic() + handler.policy.timeout,
        "on_progress": lambda fraction, note, data: told.append((fraction, note, data)),
    }
    return Job(**given | fields)


class _Watching(Client):
    """The client that handlers use while `inline` watches: it notes what they enqueue."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str, jobs: list[Enqueued]) -> None:
        super().__init__(schema=schema, connection=connection)
        self._jobs = jobs

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        taken = list(chunks)
        ids = super().put(taken)
        texts = ((chunk, text) for chunk in taken for text in chunk.texts)
        for job_id, (chunk, text) in zip(ids, texts, strict=True):
            self._jobs.append(Enqueued(job_id, chunk.kind, decode_payload(text), chunk.options.parameters()))
        return ids


class Inline:
    """What `inline` hands out: the jobs that were enqueued, and the means to run them.

    connection: the connection whose transaction everything is in. client: enqueues into it by name.
    jobs: what was enqueued so far, in order.
    """

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self.jobs: list[Enqueued] = []
        self.connection = connection
        self.client: Client = _Watching(connection, schema, self.jobs)

    def enqueued(self, kind: str | AnyHandler) -> list[object]:
        """Return the payloads of all jobs of a kind that were enqueued, in order.

        >>> assert jobs.enqueued(receipt) == [{"order_id": 7}]  # doctest: +SKIP
        """
        name = kind if isinstance(kind, str) else kind.kind
        return [job.payload for job in self.jobs if job.kind == name]

    def run(self, handler: Handler[P, C, R], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
        """Run a handler once, as `run` does; what it writes through `connection` stays if it returns and is undone if it raises."""
        data = handler.split_bytes(args, kwargs)[0]
        return self._attempt(handler, handler.payload(*args, **kwargs), payload_bytes=data)

    def drain(self, handlers: Iterable[AnyHandler], *, attempts: int = 1, most: int = 1000) -> list[Enqueued]:
        """Run the jobs that wait, and those that they enqueue, until none is left. Returns the jobs that ran.

        handlers: the handlers to run them with. Waiting times are passed over.
        attempts: how often at most each job is run here, default 1. most: runs after which a loop is suspected, RuntimeError.
        """
        known = {handler.kind: handler for handler in handlers}
        touched: list[Enqueued] = []
        for _ in range(most):
            job = next((job for job in self.jobs if not job.over and len(job.ran) < attempts), None)
            if job is None:
                return touched
            if not job.ran:
                touched.append(job)
            handler = known.get(job.kind)
            if handler is None:
                ran = Ran(unknown_kind(job.kind, age=0))
            else:
                limit = job.options["max_attempts"] or handler.policy.max_attempts
                own = {name: job.options[name] for name in ("tenant", "webhook", "payload_bytes", "set_off_by", "traceparent")}
                ran = self._attempt(handler, job.payload, id=job.id, attempt=job.attempts + 1, max_attempts=limit, **own)
            job.attempts += ran.outcome.counted
            job.over = ran.outcome.state not in {"ready", "scheduled"}
            job.ran.append(ran)
        message = f"{most} runs have not emptied the queue: a job enqueues itself for ever, or pass a larger `most`"
        raise RuntimeError(message)

    def _attempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        undo = _Undo()
        ran = Ran(EXPIRED)
        before = len(self.jobs)
        doors = _InlineDoors(self.connection, declared=handler.policy.transactional)
        with contextlib.suppress(_Undo), self.connection.transaction(), self._known(fields):
            ran = run_payload(handler, payload, doors=doors, **fields)
            if doors.completed is not None:
                ran = Ran(doors.completed, ran.progress)
            if ran.exception is not None or (handler.policy.transactional and ran.outcome.label != "ok"):
                del self.jobs[before:]
                raise undo
        return ran

    @contextlib.contextmanager
    def _known(self, fields: dict[str, Any]) -> Iterator[None]:
        """What is enqueued meanwhile was set off by the job of these fields, if they are of one that was enqueued."""
        job = fields.get("id")
        here = None if job is None else _origin.Origin(job, fields["traceparent"], self.connection.pgconn.db, self.client.schema)
        before = _origin.ask(lambda: here)
        try:
            yield
        finally:
            _origin.forget(before)


class _InlineDoors:
    """Transactions of jobs that `inline` runs: parts of its own. completed: what the job became by one, if it did."""

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


class _Undo(Exception):  # noqa: N818  # rolls a savepoint back
    pass


@contextlib.contextmanager
def inline(dsn: str | None = None, *, schema: str | None = None) -> Iterator[Inline]:
    """Watch and run jobs inside one transaction that is rolled back at the end.

    dsn: a database with Jobherd's schema; default as for `Client`. schema: default as for `Client`.

    While it lasts, `Handler.enqueue` without client or connection goes into this transaction.

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
