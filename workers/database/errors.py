"""Classifies database errors: the only place that knows SQLSTATEs.

`is_disconnected`: the server cannot be reached, or accepts nothing now. `is_retryable`: the
session or the server failed and not the statement, so a retry may succeed in another session.
`is_transient`: a retry helps in the same session.

A code does not always tell. 54000 means a row that is too long, which no retry changes. It also
means a server that has no transaction id left, or no space for another notification. Such a server
accepts no write, or none that notifies, until an administrator fixes that. If the second case were
taken for the first, an outcome would be recorded with replaced text, and processes would exit as if
their statements were wrong. Server messages are translated, but the name of the server function
that raised the error is not.
"""

from __future__ import annotations

from typing import Final

import psycopg

NO_TRANSACTION: Final = "GetNewTransactionId"
"""The server function that assigns transaction ids: every write needs one."""
_USED_UP: Final = frozenset({NO_TRANSACTION, "GetNewMultiXactId", "PreCommit_Notify"})
"""The second is needed if two sessions lock a row together. The third is hit by notifications that
others send in Jobherd's transactions. Jobherd sends no notification of its own near the end of that
queue.
"""
_TRANSIENT: Final = frozenset({"40001", "40P01", "55P03", "57014"})
"""Serialization failure, deadlock, lock timeout, canceled statement: the session is usable, and a
retry helps.
"""
_UNKNOWN_FUNCTION: Final = "42883"
_RETRYABLE: Final = _TRANSIENT | {
    "25006", "0A000", "26000", "42P05", "42P01", _UNKNOWN_FUNCTION, "3D000", "3F000", "42501", "72000",
}  # fmt: skip
"""Also a standby; a plan from before a migration; statements that a pooler has lost; a database that
is being restored or moved. Also a trigger that an application has just created, which finds its
names only in a session that has its search path: see pin_search_path.sql.
"""
_RETRYABLE_CLASSES: Final = frozenset({"08", "25", "28", "53", "57", "58", "XX", "F0"})
_UNPREPARED: Final = frozenset({"26000", "42P05"})


def is_disconnected(problem: psycopg.Error) -> bool:
    """Return whether the server cannot be reached or accepts no statement now, whatever the statement.

    >>> is_disconnected(psycopg.OperationalError("connection refused"))
    True
    >>> is_disconnected(psycopg.errors.TooManyConnections()), is_disconnected(psycopg.errors.QueryCanceled())
    (True, False)
    """
    code = problem.sqlstate
    return code is None or code[:2] in {"08", "53"} or code[:3] == "57P"


def is_retryable(problem: psycopg.Error) -> bool:
    """Return whether the session or the server failed, and not the statement, so that a retry may succeed."""
    code = problem.sqlstate
    if code:
        return code in _RETRYABLE or code[:2] in _RETRYABLE_CLASSES or takes_no_writes(problem)
    return isinstance(problem, psycopg.OperationalError | psycopg.InterfaceError)


def is_transient(problem: psycopg.Error) -> bool:
    """Return whether a retry may succeed in the same session, such as after a deadlock."""
    return problem.sqlstate in _TRANSIENT


def is_unprepared(problem: psycopg.Error) -> bool:
    """Return whether the backend lacks a prepared statement, or has it already: a pooler is in between."""
    return problem.sqlstate in _UNPREPARED


def is_condition_wrong(problem: psycopg.Error) -> bool:
    """Return whether an SQL condition that an application has written is the cause of an error.

    A function that does not exist counts: another session does not help. In a statement of
    Jobherd's own, that error is retried.
    """
    return problem.sqlstate == _UNKNOWN_FUNCTION or not is_retryable(problem)


def is_used_up(server_function: str | None) -> bool:
    """Return whether this server function failed because its ids or its space are used up."""
    return server_function in _USED_UP


def takes_no_writes(problem: psycopg.Error) -> bool:
    """Return whether the server has run out of transaction ids or of space.

    A later try succeeds once an administrator has fixed that.
    """
    return is_used_up(problem.diag.source_function)


def error_name(problem: BaseException) -> str:
    """Return what may be logged of an error: its class, and its SQLSTATE if it has one.

    The message may contain values of a statement.

    >>> error_name(psycopg.errors.QueryCanceled())
    'QueryCanceled, 57014'
    """
    code = getattr(problem, "sqlstate", None)
    return f"{type(problem).__name__}, {code}" if code else type(problem).__name__
