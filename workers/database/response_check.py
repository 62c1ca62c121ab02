"""Checks that a response belongs to the statement that was sent.

Without a pooler it always does. A pooler can lose count: pgbouncer 1.18 mistakes a notification
that reaches a shared backend at the wrong moment for the end of a response. From then on every
client gets another client's rows. If another response were read as "no work", a claim could remain
of which its worker has no record. The columns tell most responses apart. This module does not look
at rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


GOOD: Final = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
"""The statuses of a response that is not an error."""


class Answers:
    """The columns of a session's responses, by statement.

    The first response to each statement is trusted, and later ones must have the same columns.
    """

    def __init__(self) -> None:
        self._columns: dict[str, tuple[int, bytes | None]] = {}

    def check(self, statement: str, result: PGresult) -> None:
        """Raise psycopg.OperationalError, as for a lost session, if this response is to another statement.

        An error has no columns and is not checked.
        """
        if result.status not in GOOD:
            return
        columns = (result.nfields, result.fname(0))
        if self._columns.setdefault(statement, columns) != columns:
            message = f"the answer to another statement than {statement} has come: a pooler has mixed them up"
            raise psycopg.OperationalError(message)
