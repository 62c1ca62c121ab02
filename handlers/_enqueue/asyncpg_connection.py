"""Runs Jobherd's statements on a connection of asyncpg, which must not be imported here.

asyncpg numbers its parameters and has no COPY of text. So large chunks are also sent as one statement
with an array. Errors of the database are asyncpg's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jobherd import sql
from jobherd.handlers._enqueue.missing_schema import explain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobherd.handlers._enqueue.statements import Statement

T = TypeVar("T")

_SAVEPOINT: Final = "jobherd_enqueue"


class AsyncpgConnection:
    """A connection of asyncpg, for the functions of `send`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def run(self, statement: Statement[T], schema: str) -> T:
        """Run a statement in the caller's transaction, if there is one."""
        text, names = sql.numbered(statement.name, schema)
        # as text first: a codec that the caller has set for jsonb would encode the document again
        text = text.replace("::jsonb", "::text::jsonb")
        try:
            rows = await self._connection.fetch(text, *(statement.parameters[name] for name in names))
        except Exception as problem:
            explain(problem, schema)
            raise
        return statement.read([tuple(row) for row in rows], tuple(rows[0].keys()) if rows else ())

    async def database(self) -> bytes:
        """Return the name of the database."""
        name: str = await self._connection.fetchval("SELECT current_database()")
        return name.encode()

    @contextlib.asynccontextmanager
    async def all_or_none(self) -> AsyncIterator[None]:
        """Make the block's statements one: a savepoint of the caller's transaction, or a transaction."""
        # asyncpg's own transaction() refuses if the caller began the transaction with a statement.
        begin, end, undo = (
            (f"SAVEPOINT {_SAVEPOINT}", f"RELEASE {_SAVEPOINT}", f"ROLLBACK TO {_SAVEPOINT}; RELEASE {_SAVEPOINT}")
            if self._connection.is_in_transaction()
            else ("BEGIN", "COMMIT", "ROLLBACK")
        )
        await self._connection.execute(begin)
        try:
            yield
        except BaseException:
            await self._connection.execute(undo)
            raise
        await self._connection.execute(end)
