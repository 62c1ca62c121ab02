"""Classifies database errors that their SQLSTATE does not tell apart.

54000 means a row that is too long, which no retry changes. It also means a server that has no
transaction id left, or no space for another notification. Such a server accepts no write, or none
that notifies, until an administrator fixes that. If the second case were taken for the first, an
outcome would be recorded with replaced text, and processes would exit as if their statements were
wrong. Server messages are translated, but the name of the server function that raised the error is
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psycopg

NO_TRANSACTION: Final = "GetNewTransactionId"
"""The server function that assigns transaction ids: every write needs one."""
_USED_UP: Final = frozenset({NO_TRANSACTION, "GetNewMultiXactId", "PreCommit_Notify"})
"""The second is needed if two sessions lock a row together. The third is hit by notifications that
others send in Jobherd's transactions. Jobherd sends no notification of its own near the end of that
queue (sql/migrations/0031).
"""


def is_used_up(refused_by: str | None) -> bool:
    """Return whether this server function failed because its ids or its space are used up."""
    return refused_by in _USED_UP


def takes_no_writes(problem: psycopg.Error) -> bool:
    """Return whether the server has run out of transaction ids or of space.

    A later try succeeds once an administrator has fixed that.
    """
    return is_used_up(problem.diag.source_function)
