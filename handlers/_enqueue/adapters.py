"""How psycopg converts the values of Jobherd's own statements, whatever an application has registered in `psycopg.adapters`.

A dumper or loader that an application registers there holds for every connection that is opened later. So Jobherd's connections are given a
map of their own, made as psycopg makes its global one. On a connection of the application's, only the cursors of Jobherd's statements have it.
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
    """Gives jsonb as its text: behind a byte that tells the version, of which there is one."""

    def load(self, data: Buffer) -> str:
        text = super().load(bytes(data)[1:])
        return text if isinstance(text, str) else text.decode(errors="replace")


def _pristine() -> AdaptersMap:
    """Return what psycopg registers when it is imported, in the same order."""
    types = TypesRegistry()
    postgres.register_default_types(types)
    adapters = AdaptersMap(types=types)
    postgres.register_default_adapters(adapters)
    dbapi20.register_dbapi20_adapters(adapters)
    register_all_arrays(adapters)
    return adapters


def _with_json_as_text(adapters: AdaptersMap) -> AdaptersMap:
    # psycopg's own loader raises for documents that Python cannot hold, and then the job cannot even be shown.
    adapters.register_loader("json", TextBinaryLoader)
    adapters.register_loader("jsonb", _JsonbLoader)
    return adapters


OURS: Final = _pristine()
"""The `context` of each connection that Jobherd opens for itself."""
_TEXTUAL: Final = _with_json_as_text(AdaptersMap(OURS))


class OurCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor for Jobherd's statements on any connection. Its rows are tuples, and JSON in binary answers is text."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """Not the connection's."""
        return _TEXTUAL


class OurAsyncCursor(psycopg.AsyncCursor[tuple[Any, ...]]):
    """`OurCursor` for asynchronous connections."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """Not the connection's."""
        return _TEXTUAL
