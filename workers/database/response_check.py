"""Whether an answer is the one to the statement that was sent.

On a session of our own it always is. A pooler can lose count: pgbouncer 1.18 takes a notification that reaches a shared backend at the wrong
moment for the end of an answer, and from then on hands everybody the answer of somebody else. Read as "nothing to do", the answer of another
would leave a claim behind of which its worker has never heard. Columns tell most of them apart; nothing here looks at rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


GOOD: Final = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
"""An answer, and no refusal."""


class Answers:
    """What the answers of one session look like, by statement: the first one of each is believed, and the others must have its columns."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[int, bytes | None]] = {}

    def check(self, statement: str, result: PGresult) -> None:
        """Raise psycopg.OperationalError, as for a session that is lost, if this is the answer to another statement. A refusal has no columns."""
        if result.status not in GOOD:
            return
        columns = (result.nfields, result.fname(0))
        if self._columns.setdefault(statement, columns) != columns:
            message = f"the answer to another statement than {statement} has come: a pooler has mixed them up"
            raise psycopg.OperationalError(message)
