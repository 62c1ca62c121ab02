"""A job's transaction as its handler sees it.

The handler's writes, the jobs it enqueues and its completion commit together. A handler opens the
transaction with `with job.transaction() as connection:`. If it is declared `transactional=True`,
all of it runs in one. The code that runs the handler provides a `TransactionHost`: a worker uses
its own database session, a test the transaction of `inline`. This module does not begin, commit or
roll back itself, and it contains no SQL statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from jobherd.handlers._enqueue import default
from jobherd.handlers._run.inputs import NoInputs
from jobherd.handlers._run.steps import NoSteps

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType

    import psycopg

    from jobherd.handlers._enqueue.send import Own
    from jobherd.handlers._run.inputs import InputHost
    from jobherd.handlers._run.steps import StepHost


class TransactionEndedError(RuntimeError):
    """A handler committed or rolled back its job's transaction itself.

    Its writes may persist although the job failed.
    """


class TransactionHost(Protocol):
    """Performs the transaction for the code that runs the handler."""

    @property
    def steps(self) -> StepHost:
        """Keeps the records of durable steps."""

    @property
    def inputs(self) -> InputHost:
        """Reads results of earlier nodes."""

    def begin(self) -> psycopg.Connection[Any]:
        """Begin the transaction and return its connection.

        Raises if the claim is lost, and psycopg's errors.
        """

    def abegin(self) -> psycopg.AsyncConnection[Any]:
        """Like `begin`, with an asynchronous connection."""

    def complete(self, result: object) -> None:
        """Record the job's completion in the transaction and commit.

        Raises if it was not committed.
        """

    def undo(self) -> None:
        """Roll the transaction back."""

    def connection(self) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
        """Return the connection of the open transaction. Raises RuntimeError if there is none."""


class Transaction:
    """The result of `job.transaction()`. Enter it once with `with`, or `async with` in a coroutine.

    Attributes:
        result: the job's result, any JSON value, default None. It is read at the end of the block.

    Example:
        >>> with (transaction := job.transaction()) as connection:  # doctest: +SKIP
        ...     connection.execute("UPDATE orders SET paid = true WHERE id = 7")
        ...     transaction.result = {"paid": 7}
    """

    def __init__(self, transaction_host: TransactionHost) -> None:
        self.result: object = None
        self._host = transaction_host
        self._before: Token[Own | None] | None = None

    def __enter__(self) -> psycopg.Connection[Any]:
        connection = self._host.begin()
        self._before = default.enter_transaction(connection)
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(problem)

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        connection = self._host.abegin()
        self._before = default.enter_transaction(connection)
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(problem)

    def _end(self, problem: BaseException | None) -> None:
        if self._before is not None:
            default.leave_transaction(self._before)
        if problem is None:
            self._host.complete(self.result)
        else:
            self._host.undo()


class NoTransactions:
    """Host of a job that cannot have a transaction, durable steps, or results of earlier nodes.

    message, steps, inputs: why, and what to do instead.
    """

    def __init__(self, message: str, steps: str, inputs: str) -> None:
        self._message = message
        self.steps: StepHost = NoSteps(steps)
        self.inputs: InputHost = NoInputs(inputs)

    def begin(self) -> NoReturn:
        """Raise RuntimeError with the message."""
        raise RuntimeError(self._message)

    abegin = connection = undo = begin

    def complete(self, _result: object) -> NoReturn:
        """Never called: no transaction can begin."""
        self.begin()


NO_DATABASE = NoTransactions(
    "this job has no database: transactions need a worker, or `jobherd.testing.inline` in a test",
    "this job has no database: durable steps need a worker, or `jobherd.testing.run` in a test",
    "this job has no database: give the results of nodes to `jobherd.testing.run_payload`, as inputs={...}",
)
BATCH_CALL = NoTransactions(
    "the jobs of a batch handler's call cannot have separate transactions: declare the handler without batch=N",
    "the jobs of a batch handler's call have no durable steps: declare the handler without batch=N",
    "the jobs of a batch handler's call cannot read results of nodes: pass these as arguments, or declare the handler "
    "without batch=N",
)
