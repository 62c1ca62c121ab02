"""How a schema differs from what the migrations make: somebody dropped an index, mended a function, changed a column by hand.

What it should be is asked of the server itself: the migrations are run into a schema of another name, in a transaction that is rolled
back, and the two are compared. Nothing is kept, nothing of the real schema is locked or changed, and nothing here mends anything: each
difference comes with the statement that would.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import errors

from jobherd.sql import SCHEMA, check_schema, load
from jobherd.sql.migrate import AREAS, SchemaError, migrate, pending

if TYPE_CHECKING:
    import psycopg

_SKETCH: Final = "jobherd_sketch"
"""The schema that is drawn and rolled back. Two at once wait for each other, under the lock of the migrations."""
_PATIENCE: Final = 2.0
"""Seconds to wait for that lock: a migration may have to wait for a long transaction, and who asks what is wrong is not to wait behind it."""


class MigratingError(Exception):
    """Somebody migrates: what it will be is not there yet, and the lock of the migrations is theirs."""


_WEBHOOKS: Final = ("trigger", "webhook", "history")
"""What the first supervisor with a secret makes. Drawn too where it is, or it would be taken for somebody's own, and nobody would see that it is switched off."""


class Difference(NamedTuple):
    """One thing that is not as the migrations leave it."""

    what: str
    """Its sort: table, setting, column, default, constraint, index, trigger, view or function."""
    name: str
    of: str
    """The table it belongs to; empty for what belongs to none."""
    found: str | None
    """Its definition now; None if it is missing."""
    wanted: str | None
    """Its definition as the migrations make it; None if they make no such thing."""
    remedy: str
    """The SQL that mends it; empty for what is only more than was expected."""


def drift(connection: psycopg.Connection[object], *, schema: str = SCHEMA) -> list[Difference]:
    """Return every difference, in no order that matters. The schema must be at this version.

    connection: in no transaction, of a role that may create a schema; is left as it was.
    Raises psycopg.errors.InsufficientPrivilege if it may not, and MigratingError while a migration waits or runs.

    >>> drift(connection)  # doctest: +SKIP
    [Difference(what='index', name='ready_by_id', of='ready', found=None, wanted='CREATE UNIQUE INDEX ready_by_id ON ...', ...)]
    """
    check_schema(schema)
    with connection.transaction():
        found = _read(connection, schema, called=schema)
    areas = [area for area in AREAS if _is_here(connection, schema, area)]
    with connection.transaction(force_rollback=True):
        try:
            migrate(connection, schema=_SKETCH, patience=_PATIENCE)
            for area in areas:  # or all that they bring would be taken for somebody's own
                migrate(connection, schema=_SKETCH, area=area, patience=_PATIENCE)
        except errors.LockNotAvailable:
            raise MigratingError from None
        if _WEBHOOKS in found:
            connection.execute(load("enable_webhooks", schema=_SKETCH))
        wanted = _read(connection, _SKETCH, called=schema)
    return [
        Difference(
            *key, found[key][0] if key in found else None, wanted[key][0] if key in wanted else None, _remedy(key, schema, found, wanted)
        )
        for key in sorted(found.keys() | wanted.keys())
        if found.get(key, ("",))[0] != wanted.get(key, ("",))[0]
    ]


def _is_here(connection: psycopg.Connection[object], schema: str, area: str) -> bool:
    """Return whether the schema has what the area brings, as this version makes it."""
    try:
        return not pending(connection, schema=schema, area=area)
    except SchemaError:
        return False


_Key = tuple[str, str, str]
_Definitions = dict[_Key, tuple[str, str]]


def _read(connection: psycopg.Connection[object], schema: str, *, called: str) -> _Definitions:
    connection.cursor().execute(load("doctor/hide_schemas"))
    cursor = connection.cursor().execute(load("doctor/list_definitions"), {"schema": schema})
    word = re.compile(rf"\b{schema}\b")

    def named(text: str) -> str:
        return word.sub(called, text)

    return {
        (what, named(name), of or ""): (named(definition or ""), named(remedy or ""))
        for what, name, of, definition, remedy in (row for row in cursor.fetchall() if isinstance(row, tuple))
    }


def _remedy(key: _Key, schema: str, found: _Definitions, wanted: _Definitions) -> str:
    what, name, of = key
    if key not in wanted:
        return ""
    made = wanted[key][1]
    if key not in found or what in {"setting", "default", "trigger", "view", "function"}:
        return made
    match what:
        case "constraint":
            return f"ALTER TABLE {schema}.{of} DROP CONSTRAINT {name}; {made}"
        case "index":
            return f"DROP INDEX {schema}.{name}; {made}"
        case "column":
            return f"-- by hand: {schema}.{of}.{name} is {found[key][0]}, and should be {wanted[key][0]}"
    return ""
