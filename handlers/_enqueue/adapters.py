"""Type conversion for Jobherd's own statements.

It does not depend on what an application registers in `psycopg.adapters`. A dumper or loader
registered there applies to every connection opened later. So Jobherd's connections get their own
map, built as psycopg builds its global one. On an application's connection, only the cursors of
Jobherd's statements use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import dbapi20, postgres
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row
from psycopg.types import TypesRegistry
from psycopg.types.array import register_all_arrays
from psycopg.types.string import TextBinaryLoader

if TYPE_CHECKING:
    from psycopg.abc import Buffer


class _JsonbLoader(TextBinaryLoader):
    """Returns jsonb as text, without the leading version byte; there is only one version."""

    def load(self, data: Buffer) -> str:
        text = super().load(bytes(data)[1:])
        return text if isinstance(text, str) else text.decode(errors="replace")


def _pristine() -> AdaptersMap:
    """Return the adapters that psycopg registers when it is imported, in the same order."""
    types = TypesRegistry()
    postgres.register_default_types(types)
    adapters = AdaptersMap(types=types)
    postgres.register_default_adapters(adapters)
    dbapi20.register_dbapi20_adapters(adapters)
    register_all_arrays(adapters)
    return adapters


def _with_json_as_text(adapters: AdaptersMap) -> AdaptersMap:
    # psycopg's own loader raises for documents that Python cannot hold; then the job could not even
    # be shown.
    adapters.register_loader("json", TextBinaryLoader)
    adapters.register_loader("jsonb", _JsonbLoader)
    return adapters


OURS: Final = _pristine()
"""The `context` of each connection that Jobherd opens."""
_TEXTUAL: Final = _with_json_as_text(AdaptersMap(OURS))


class OurCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor for Jobherd's statements on any connection.

    Rows are tuples, and JSON in binary results is text.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """Jobherd's adapters, not the connection's."""
        return _TEXTUAL


class OurAsyncCursor(psycopg.AsyncCursor[tuple[Any, ...]]):
    """`OurCursor` for asynchronous connections."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """Jobherd's adapters, not the connection's."""
        return _TEXTUAL
