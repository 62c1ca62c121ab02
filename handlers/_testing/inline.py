"""Records and runs the jobs that a test enqueues, in a transaction that is rolled back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg

from jobherd.handlers._enqueue import origin
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import configure, keeping_default
from jobherd.handlers._enqueue.driver_connection import driver_of
from jobherd.handlers._enqueue.dsn import find_dsn, find_schema
from jobherd.handlers._run.classify import outcome_of
from jobherd.handlers._run.inputs import NoInputs
from jobherd.handlers._run.steps import StepError
from jobherd.handlers._testing.attempt import arun_payload, run_payload
from jobherd.handlers._testing.child_jobs import WatchedSteps
from jobherd.handlers._testing.enqueued import Watched
from jobherd.handlers._testing.ran import Ran
from jobherd.handlers._values.outcome import EXPIRED, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.driver_connection import CallersConnection
    from jobherd.handlers._policy.policy import Policy
    from jobherd.handlers._run.durable import Durable
    from jobherd.handlers._run.inputs import InputHost
    from jobherd.handlers._run.steps import StepHost


class _Watching(Client):
    """Client that handlers use inside `inline`: it records what they enqueue."""

    def __init__(self, inline: Inline, connection: psycopg.Connection[Any], schema: str) -> None:
        super().__init__(schema=schema, connection=connection)
        self._inline = inline

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        taken = list(chunks)
        ids = super().put(taken)
        self._inline.note(ids, taken)
        return ids


class Inline(Watched):
    """The jobs that were enqueued inside `inline`, and methods to check and run them.

    What an attempt writes through `connection` is kept if the handler returns or suspends the job,
    and undone if it raises.

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
        with self._around(handler, payload, fields) as (transaction_host, ran):
            ran.append(run_payload(handler, payload, transaction_host=transaction_host, **fields))
        return ran[-1]

    async def _aattempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        with self._around(handler, payload, fields) as (transaction_host, ran):
            ran.append(await arun_payload(handler, payload, transaction_host=transaction_host, **fields))
        return ran[-1]

    @contextlib.contextmanager
    def _around(
        self, handler: AnyHandler, payload: object, fields: dict[str, Any]
    ) -> Iterator[tuple[_InlineTransactions, list[Ran]]]:
        """Undo the attempt's writes and its enqueued jobs if it raised.

        The block appends the attempt's result.
        """
        undo = _Undo()
        ran: list[Ran] = [Ran(EXPIRED)]
        before = len(self.jobs)
        transaction_host = _InlineTransactions(self.connection, declared=handler.policy.transactional)
        records = self.records.of(handler, payload, fields)
        transaction_host.steps = steps = _InlineSteps(self, records, handler.policy, transaction_host)
        with contextlib.suppress(_Undo), self.connection.transaction(), self._known(fields):
            yield transaction_host, ran
            if transaction_host.completed is not None:
                ran.append(Ran(transaction_host.completed, ran[-1].progress))
            label = ran[-1].outcome.label
            raised = ran[-1].exception is not None and label != "suspended"
            if raised or (handler.policy.transactional and label != "ok"):
                del self.jobs[before:]
                for name in steps.undone_with_attempt:
                    del records[name]
                raise undo

    @contextlib.contextmanager
    def _known(self, fields: dict[str, Any]) -> Iterator[None]:
        """Make the job with these fields the parent of jobs enqueued inside the block.

        Only if the fields are those of a job that was enqueued.
        """
        job = fields.get("id")
        here = (
            None if job is None else origin.Origin(job, fields["trace"], self.connection.pgconn.db, self.client.schema)
        )
        before = origin.set_lookup(lambda: here)
        try:
            yield
        finally:
            origin.reset_lookup(before)


class _InlineSteps(WatchedSteps):
    """Steps of jobs that `inline` runs: their transactions are savepoints."""

    def __init__(
        self, watched: Inline, records: dict[str, Any], policy: Policy, transactions: _InlineTransactions
    ) -> None:
        super().__init__(watched, records, policy)
        self._transactions = transactions

    def _use(self, name: str) -> None:
        if self._transactions.is_open:
            message = "a durable step cannot be inside a transaction of the job: end the block before it"
            raise StepError(message)
        super()._use(name)

    def begin(self, _job: Durable, _name: str) -> Any:
        return self._transactions.begin()

    def abegin(self, _job: Durable, _name: str) -> Any:
        return self._transactions.abegin()

    def commit(self, job: Durable, name: str, result: str | None) -> None:
        self._transactions.commit()
        self.record(job, name, result)
        self.undone_with_attempt.append(name)

    def undo(self, name: str) -> None:
        self._transactions.undo()
        self.leave(name)


class _InlineTransactions:
    """Transactions of jobs that `inline` runs: savepoints of its own.

    completed: the outcome of a job that such a transaction completed, if any.
    """

    steps: StepHost
    inputs: InputHost = NoInputs(
        "`inline` runs no flows: give the results of nodes to `jobherd.testing.run_payload`, as inputs={...}"
    )

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
        self.commit()

    def commit(self) -> None:
        self._end(None)

    @property
    def is_open(self) -> bool:
        return self._declared or self._part is not None

    def undo(self) -> None:
        self._end(_Undo())

    def connection(self) -> psycopg.Connection[Any]:
        if self._part is None and not self._declared:
            message = (
                "the job is in no transaction: declare the handler with transactional=True, "
                "or use `with job.transaction():`"
            )
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
def inline(
    dsn: str | None = None, *, schema: str | None = None, connection: CallersConnection | None = None
) -> Iterator[Inline]:
    """Record and run jobs inside one transaction that is rolled back at the end.

    Inside the block, `Handler.enqueue` without client or connection enqueues into this transaction.

    Args:
        dsn: address of a database with Jobherd's schema. Default: as for `Client`.
        schema: Jobherd's schema. Default: as for `Client`.
        connection: the test's own connection or session, instead of `dsn`; see `Client`. The jobs are
            part of its open transaction, which the test rolls back, not this function.

    Raises:
        ValueError: `connection` is in autocommit mode and has no open transaction.

    Example:
        >>> with inline() as jobs:  # doctest: +SKIP
        ...     receipt.enqueue(order_id=7)
        ...     assert jobs.drain([receipt])[0].ran[0].outcome.label == "ok"
    """
    with keeping_default(), _transaction(dsn, connection) as own:
        watching = Inline(own, find_schema(schema))
        configure(client=watching.client)
        yield watching


@contextlib.contextmanager
def _transaction(dsn: str | None, connection: CallersConnection | None) -> Iterator[psycopg.Connection[Any]]:
    if connection is None:
        with psycopg.connect(find_dsn(dsn), client_encoding="UTF8") as own:
            try:
                yield own
            finally:
                own.rollback()
        return
    own = driver_of(connection)
    if own.autocommit and own.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        message = "connection has no open transaction, so the jobs would be committed: begin one, or pass a dsn"
        raise ValueError(message)
    own.execute("")  # begins the caller's transaction: a job's savepoint would otherwise be one, and commit
    yield own
