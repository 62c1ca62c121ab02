"""Refusals that their code does not tell apart.

54000 stands for a row that is too long, which no later try changes, and for a server that has no transaction id left, which takes no write
until somebody has mended that. Taken for the former, an outcome would be written in other words than its own, and processes would end as
if what they had sent were wrong. The server's messages are translated; the name of its function that refused is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psycopg

NO_TRANSACTION: Final = "GetNewTransactionId"
"""Of the server: whatever writes needs one."""
_NO_IDS: Final = frozenset({NO_TRANSACTION, "GetNewMultiXactId"})
"""The other one is needed where two sessions lock a row together."""


def is_out_of_ids(refused_by: str | None) -> bool:
    """Return whether the function of the server that refused has no number to give."""
    return refused_by in _NO_IDS


def wants_ids(problem: psycopg.Error) -> bool:
    """Return whether it was refused because the server has run out of transaction ids: another try will be answered, once that is mended."""
    return is_out_of_ids(problem.diag.source_function)
