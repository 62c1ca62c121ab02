"""Reports how a database's schema differs from the one that the migrations create.

Examples are a dropped index, an edited function and a changed column. The server itself computes
the target: the migrations run into a schema of another name, in a transaction that is rolled back,
and the two schemas are compared. Nothing is kept, and nothing of the real schema is locked or
changed. Must not fix anything: each difference comes with the statement that would.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import errors

from jobherd.sql import SCHEMA, check_schema, load
from jobherd.sql.migrate import AREAS, SKETCH, SchemaError, migrate, pending

if TYPE_CHECKING:
    import psycopg

_PATIENCE: Final = 2.0
"""Seconds to wait for that lock.

A migration may have to wait for a long transaction, and a check must not wait behind it.
"""


class MigratingError(Exception):
    """A migration holds the lock of the migrations; its result does not exist yet."""


_WEBHOOKS: Final = ("trigger", "webhook", "history")
"""The trigger that the first supervisor with a secret creates.

If it exists, the comparison creates it too. Otherwise it would be reported as foreign, and a
disabled one would go unnoticed.
"""


class Difference(NamedTuple):
    """One object that is not as the migrations leave it."""

    what: str
    """Its type: table, setting, column, default, constraint, index, trigger, view or function."""
    name: str
    of: str
    """The table it belongs to; empty if it belongs to none."""
    found: str | None
    """Its definition now; None if it is missing."""
    wanted: str | None
    """Its definition as the migrations create it; None if they do not."""
    remedy: str
    """The SQL that fixes it; empty if the object is only additional."""


def drift(connection: psycopg.Connection[object], *, schema: str = SCHEMA) -> list[Difference]:
    """Return every difference, in no particular order. The schema must be at this version.

    connection: in no transaction, with a role that may create a schema; it is left as it was.
    Raises psycopg.errors.InsufficientPrivilege if the role may not, and MigratingError while a
    migration waits or runs.

    >>> drift(connection)  # doctest: +SKIP
    [Difference(what='index', name='ready_by_id', of='ready', found=None, wanted='CREATE ...', ...)]
    """
    check_schema(schema)
    with connection.transaction():
        found = _read(connection, schema, called=schema)
    areas = [area for area in AREAS if _is_here(connection, schema, area)]
    with connection.transaction(force_rollback=True):
        try:
            migrate(connection, schema=SKETCH, patience=_PATIENCE)
            for area in areas:  # otherwise their objects would be reported as foreign
                migrate(connection, schema=SKETCH, area=area, patience=_PATIENCE)
        except errors.LockNotAvailable:
            raise MigratingError from None
        if _WEBHOOKS in found:
            connection.execute(load("maintenance/enable_webhooks", schema=SKETCH))
        wanted = _read(connection, SKETCH, called=schema)
    return [
        Difference(
            *key,
            found[key][0] if key in found else None,
            wanted[key][0] if key in wanted else None,
            _remedy(key, schema, found, wanted),
        )
        for key in sorted(found.keys() | wanted.keys())
        if found.get(key, ("",))[0] != wanted.get(key, ("",))[0]
    ]


def _is_here(connection: psycopg.Connection[object], schema: str, area: str) -> bool:
    """Return whether the schema has the objects of the area, as this version creates them."""
    try:
        return not pending(connection, schema=schema, area=area)
    except SchemaError:
        return False


_Key = tuple[str, str, str]
_Definitions = dict[_Key, tuple[str, str]]


def _read(connection: psycopg.Connection[object], schema: str, *, called: str) -> _Definitions:
    connection.cursor().execute(load("doctor/qualify_names"))
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
