"""Ends a job's own transaction: sends its last statement, and commits. It does not know what the statement means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import TransactionStatus

from jobherd.handlers._run.transaction import TransactionEndedError
from jobherd.workers.run.transaction_messages import check_commit
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.workers.database.opening import Row
    from jobherd.workers.run.transaction_session import TransactionSession

_ENDED = "the handler has committed or rolled back its job's transaction itself"


def send_last(
    session: TransactionSession, xact: str, write: Callable[[], tuple[str, Mapping[str, object]]]
) -> list[Row]:
    """Send the last statement of the transaction `xact` and return its rows.

    write: returns the statement and its parameters, once the transaction is known to be intact.
    Raises TransactionEndedError, RuntimeError and psycopg.Error. The transaction is then still open.
    """
    connection = session.connection
    assert connection is not None
    if (status := connection.info.transaction_status) is TransactionStatus.IDLE:
        raise TransactionEndedError(_ENDED)
    check_commit(status)
    last = write()
    with connection.pipeline():
        found, written = (
            connection.execute(session.text(name), values) for name, values in (("settle/show_transaction", {}), last)
        )
    if found.fetchall()[0][0] != xact:
        raise TransactionEndedError(_ENDED)
    return written.fetchall()


def commit(session: TransactionSession) -> psycopg.Error | None:
    """Commit. Return the error if the session was lost meanwhile, so that the commit is in doubt.

    Raises any other error: then nothing was committed.
    """
    assert session.connection is not None
    try:
        reach("transaction.settled")
        session.connection.commit()
        reach("transaction.committed")
    except psycopg.Error as problem:
        if not session.is_lost:
            raise
        return problem
    return None
