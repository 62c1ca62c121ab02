"""Defines a request to the database and the server's reply to it, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from psycopg import pq

from jobherd import sql
from jobherd.sql.parameters import as_text
from jobherd.workers.database.errors import NO_TRANSACTION, is_used_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.pq.abc import PGresult

Row: TypeAlias = tuple[str | None, ...]
Answer: TypeAlias = list[Row] | None
"""The rows, as text; None if the session was lost before the answer, or the server rejected the
statement."""

_FOR_GOOD: Final = frozenset({b"22", b"23", b"54"})
"""Classes of errors that no later attempt changes: bad data, a violated constraint, a limit of the
server."""
_UNFOUND: Final = frozenset({b"42883", b"42P01"})
"""A function or table does not exist. It may belong to a trigger that the application has just
created, whose names are not in pg_catalog."""
_READ_ONLY: Final = b"25006"
"""A standby, or a primary that was made read-only: another host of the DSN may be the primary by
now."""


@dataclass(slots=True)
class Request:
    """A statement that is sent or queued."""

    name: str
    text: bytes
    parameters: list[bytes | None]
    answered: Callable[[Answer], None]
    refused: Callable[[], None] | None = None
    """Called instead of `answered` if the server permanently rejects the statement."""
    give_up_at: float = float("inf")
    prepares: bool = False
    """It only prepares the statement."""

    @classmethod
    def of(
        cls,
        name: str,
        parameters: Mapping[str, object],
        answered: Callable[[Answer], None],
        refused: Callable[[], None] | None = None,
        *,
        schema: str,
    ) -> Self:
        """Return the request of the statement of that name."""
        text, order = sql.numbered(name, schema)
        try:
            values = [as_text(parameters[key]) for key in order]
        except ValueError:  # text of a dead child that PostgreSQL rejects: it must not crash the supervisor
            values = [as_text(_harmless(parameters[key])) for key in order]
        return cls(name, text.encode(), values, answered, refused)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why the server has rejected a statement."""

    text: str
    permanent: bool
    unfound: bool
    """A name was not found, perhaps because of the search path."""
    read_only: bool
    """The server accepts no writes."""
    ends_session: bool
    write_problem: str
    """Why the server accepts no writes for now, though it answers; "" if it does."""

    @classmethod
    def of(cls, result: PGresult) -> Self:
        """Return the rejection that a result contains."""
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        by = (result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) or b"").decode(errors="replace")
        words = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        return cls(
            text=result.error_message.decode(errors="replace").strip().splitlines()[0],
            permanent=state[:2] in _FOR_GOOD and not is_used_up(by),
            unfound=state in _UNFOUND,
            read_only=state == _READ_ONLY,
            ends_session=result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) != b"ERROR",
            write_problem=f"it takes no writes: {words.decode(errors='replace')}" if by == NO_TRANSACTION else "",
        )


def rows_of(result: PGresult) -> list[Row]:
    """Return the rows of a result, as text."""
    return [
        tuple(_text(result.get_value(row, column)) for column in range(result.nfields)) for row in range(result.ntuples)
    ]


def _harmless(value: object) -> object:
    """Return a parameter without characters that PostgreSQL rejects."""
    if isinstance(value, str):
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return [_harmless(item) for item in value] if isinstance(value, list | tuple) else value


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
