"""The connections that handlers get for a job's own transaction: commit() and rollback() raise."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import psycopg
from psycopg import pq

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

_ADVICE: Final = (
    "Jobherd commits it together with the job's completion, and rolls it back if the handler raises: return, or raise"
)


class JobConnection(psycopg.Connection[Any]):
    """The connection that a handler gets for one transaction.

    It uses the same session as the previous one, and is closed when the transaction ends.
    """

    def commit(self) -> NoReturn:
        """Raise: what was written would stay even if the job fails."""
        message = f"commit() is not for handlers here. {_ADVICE}"
        raise psycopg.ProgrammingError(message)

    def rollback(self) -> NoReturn:
        """Raise: the claim would no longer be locked."""
        message = f"rollback() is not for handlers here; `with connection.transaction():` undoes a part. {_ADVICE}"
        raise psycopg.ProgrammingError(message)

    def __del__(self, _warn: object = None) -> None:
        """Keep the session open."""


class AsyncJobConnection(psycopg.AsyncConnection[Any]):
    """`JobConnection` for coroutines."""

    async def commit(self) -> NoReturn:
        """Raise, as `JobConnection.commit`."""
        message = f"commit() is not for handlers here. {_ADVICE}"
        raise psycopg.ProgrammingError(message)

    async def rollback(self) -> NoReturn:
        """Raise, as `JobConnection.rollback`."""
        message = (
            f"rollback() is not for handlers here; `async with connection.transaction():` undoes a part. {_ADVICE}"
        )
        raise psycopg.ProgrammingError(message)

    def __del__(self, _warn: object = None) -> None:
        """Keep the session open."""


AnyJobConnection = TypeVar("AnyJobConnection", JobConnection, AsyncJobConnection)


@cache
def closed_pgconn() -> PGconn:
    """Return a closed libpq connection, for the connection object of a transaction that has ended.

    A handler that kept the object then has a closed connection, and cannot write into the next
    job's transaction.
    """
    pgconn = pq.PGconn.connect_start(b"host=/ port=1")
    pgconn.finish()
    return pgconn
