"""Refusals that their code does not tell apart.

54000 stands for a row that is too long, which no later try changes, and for a server that has no transaction id left, or no room for another
notification, which takes no write, or none that notifies, until somebody has mended that. Taken for the former, an outcome would be written in
other words than its own, and processes would end as if what they had sent were wrong. The server's messages are translated; the name of its
function that refused is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psycopg

NO_TRANSACTION: Final = "GetNewTransactionId"
"""Of the server: whatever writes needs one."""
_USED_UP: Final = frozenset({NO_TRANSACTION, "GetNewMultiXactId", "PreCommit_Notify"})
"""The second is needed where two sessions lock a row together. The third is met by what others notify in our transactions: for our own words there is
a place at the end of that queue, or they are not said (sql/migrations/0031)."""


def is_used_up(refused_by: str | None) -> bool:
    """Return whether the function of the server that refused has no number, or no room, to give."""
    return refused_by in _USED_UP


def takes_no_writes(problem: psycopg.Error) -> bool:
    """Return whether it was refused because the server has run out of transaction ids, or of room: another try will be answered, once that is mended."""
    return is_used_up(problem.diag.source_function)
