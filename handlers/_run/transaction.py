"""A job's transaction, as its handler sees it: what it writes there, the jobs it enqueues there and its completion are one.

A handler opens it by `with job.transaction() as connection:`, or is declared `transactional=True` and runs in it from its first line to
its last. Who runs the handler holds the other end (`TransactionHost`): a worker its own session to the database, a test the transaction of
`inline`. Nothing here begins, commits or rolls back by itself, and nothing here knows a statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from jobherd.handlers._enqueue import default

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType

    import psycopg

    from jobherd.handlers._enqueue.send import Own


class TransactionEndedError(RuntimeError):
    """A handler has committed or rolled back its job's transaction by itself; what it wrote may stand although the job failed."""


class TransactionHost(Protocol):
    """What whoever runs the handler does for its transaction."""

    def begin(self) -> psycopg.Connection[Any]:
        """Begin it and return its connection. Raises what says that the claim is lost, or psycopg's errors."""

    def abegin(self) -> psycopg.AsyncConnection[Any]:
        """`begin`, with a connection to be awaited."""

    def complete(self, result: object) -> None:
        """Write the job's completion in it and commit. Raises if it was not committed."""

    def undo(self) -> None:
        """Roll it back."""

    def connection(self) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
        """Return the connection of the transaction that is open. Raises RuntimeError if there is none."""


class Transaction:
    """What `job.transaction()` returns, to be entered once with `with`, or `async with` in a coroutine.

    result: what the job's result is to be, any JSON value, default None; taken at the end of the block.

    >>> with (transaction := job.transaction()) as connection:  # doctest: +SKIP
    ...     connection.execute("UPDATE orders SET paid = true WHERE id = 7")
    ...     transaction.result = {"paid": 7}
    """

    def __init__(self, doors: TransactionHost) -> None:
        self.result: object = None
        self._doors = doors
        self._before: Token[Own | None] | None = None

    def __enter__(self) -> psycopg.Connection[Any]:
        connection = self._doors.begin()
        self._before = default.join(connection)
        return connection

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self._end(problem)

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        connection = self._doors.abegin()
        self._before = default.join(connection)
        return connection

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self._end(problem)

    def _end(self, problem: BaseException | None) -> None:
        if self._before is not None:
            default.part(self._before)
        if problem is None:
            self._doors.complete(self.result)
        else:
            self._doors.undo()


class Nowhere:
    """The doors of a job that can have no transaction. message: why, and what to do instead."""

    def __init__(self, message: str) -> None:
        self._message = message

    def begin(self) -> NoReturn:
        """Say so."""
        raise RuntimeError(self._message)

    abegin = connection = undo = begin

    def complete(self, _result: object) -> NoReturn:
        """Never called: nothing was begun."""
        self.begin()


NOWHERE = Nowhere("this job has no database beside it: transactions need a worker, or `jobherd.testing.inline` in a test")
TOGETHER = Nowhere("the jobs of a batch handler's call have no transaction of their own: declare the handler without batch=N")
