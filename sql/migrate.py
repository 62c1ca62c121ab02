"""Migrates a database to the schema that this code needs, forward only.

Everything happens in one transaction under an advisory lock. So any number of supervisors may start
at the same time on an empty database, and a killed one leaves nothing behind. Must not decide when
to migrate: the caller does.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from psycopg import errors

from jobherd.sql import SCHEMA, check_schema, in_schema, load

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    import psycopg

log = logging.getLogger("jobherd.migrate")

CORE = "jobherd"
SKETCH: Final = "jobherd_sketch"
"""The temporary schema of `drift`, created and rolled back.

Two comparisons at once wait for each other, under the lock of the migrations.
"""
BASELINE: Final = "baseline"
"""Recorded as the name of the first migration.

Databases of development versions before 0.1.0 have another name there.
"""
AREAS: Final = ("forge",)
"""Sets of handlers with tables of their own, which are created in the schema if the handlers are
used.
"""
OLDEST_SERVER = 150000
BRIEFLY: Final = 1.0
"""Seconds that a step waits for a table in use.

Sessions that come later wait behind it, including claims.
"""
PAUSE: Final = 5.0
"""Seconds before the next try, in which the waiting sessions can run."""


class SchemaError(Exception):
    """The database cannot be used by this version; the message says what to do."""


class RenamedError(SchemaError):
    """The schema has another name than its functions call.

    remedy: the SQL that restores the name.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration: its number, its name and its text."""

    version: int
    name: str
    text: str


def migrations(area: str = CORE) -> tuple[Migration, ...]:
    """Return the migrations of an area in order.

    An area is the core, or a set of handlers with tables of its own (`forge`). The core's first
    migration is the baseline: the files of `sql/schema/`, joined in the order of their names.
    """
    root: Traversable = files("jobherd.sql")
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in (root / "migrations" if area == CORE else root / area / "migrations").iterdir()
        if (match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name))
    ]
    if area == CORE:
        parts = sorted((file for file in (root / "schema").iterdir() if file.name.endswith(".sql")), key=str)
        found.append(Migration(1, BASELINE, "\n".join(part.read_text(encoding="utf-8") for part in parts)))
    return tuple(sorted(found, key=lambda step: step.version))


def migrate(
    connection: psycopg.Connection[object],
    *,
    schema: str = SCHEMA,
    area: str = CORE,
    grant: bool = False,
    patience: float | None = None,
) -> int:
    """Apply missing migrations, set the privileges of each role, and return the number applied.

    grant: set the privileges even if no migration is missing. By default nothing is written then,
    so a read-only role can check.
    patience: seconds to wait for another session's migration; default None: until it has finished.
    After that LockNotAvailable is raised.
    `connection` must not be in a transaction. Raises SchemaError if the schema is newer than this
    code, if it was renamed, if the server is older than PostgreSQL 15, or if the database's
    encoding is not UTF-8.
    """
    if not grant and not pending(connection, schema=schema, area=area):
        return 0
    told = False
    with connection.transaction():
        check_server(connection)
        connection.cursor().execute(load("session/disable_timeouts"), {"local": True})
        connection.cursor().execute(load("migrate/reset_settings"))
        if patience is not None:
            connection.cursor().execute(load("session/set_lock_timeout"), {"milliseconds": round(patience * 1000)})
        connection.cursor().execute(load("migrate/lock_migrations"))
        while True:
            try:
                with connection.transaction():
                    return _apply(connection, schema=schema, area=area, grant=grant)
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                if not told:
                    log.warning(
                        "a table that the migration changes is in use by a long transaction: trying until "
                        "it is not (`jobherd doctor` names "
                        "what is open for minutes)"
                    )
                told = True
            # this session keeps the migration lock: otherwise several migrators would try in each
            # other's pauses
            time.sleep(PAUSE)


def _apply(connection: psycopg.Connection[object], *, schema: str, area: str, grant: bool) -> int:
    """Apply missing migrations; return their number.

    Raises LockNotAvailable if a table stays in use.
    """
    cursor = connection.cursor
    cursor().execute(load("session/set_lock_timeout"), {"milliseconds": round(BRIEFLY * 1000)})
    cursor().execute(load("migrate/create_migrations_table", schema))
    missing = _missing(connection, schema=schema, area=area)
    for step in missing:
        cursor().execute(in_schema(step.text, schema).encode())
        cursor().execute(
            load("migrate/record_migration", schema), {"area": area, "version": step.version, "name": step.name}
        )
    if missing or grant:
        _grant(connection, schema)
    return len(missing)


def _grant(connection: psycopg.Connection[object], schema: str) -> None:
    connection.cursor().execute(load("migrate/grant_roles", schema))
    lacking = [
        str(row[0])
        for row in connection.cursor().execute(load("migrate/list_missing_roles")).fetchall()
        if isinstance(row, tuple)
    ]
    if lacking and schema != SKETCH:  # A comparison grants nothing that lasts, and `doctor` has its own note.
        log.warning(
            "this role may not create roles, so there is no %s, and only the owner of the schema can work "
            "with it: ask a role with CREATEROLE to "
            "run `CREATE ROLE ... NOLOGIN` for each, and then run `jobherd migrate` again",
            ", ".join(lacking),
        )


def pending(connection: psycopg.Connection[object], *, schema: str = SCHEMA, area: str = CORE) -> int:
    """Return how many migrations are missing.

    Raises SchemaError as `migrate` does, and if this role cannot see it.
    """
    check_schema(schema)
    with connection.transaction():
        check_server(connection)
        row = connection.cursor().execute(load("migrate/find_migrations", schema)).fetchone()
        if not (isinstance(row, tuple) and row[0]):
            return len(migrations(area))
        if row[1]:
            msg = (
                f"row-level security hides the tables of the schema {schema!r} from this role; `jobherd "
                "doctor` prints the SQL that switches it off"
            )
            raise SchemaError(msg)
        return len(_missing(connection, schema=schema, area=area))


def check_server(connection: psycopg.Connection[object]) -> None:
    """Raise SchemaError unless the server is PostgreSQL 15 or newer and the encoding UTF-8."""
    row = connection.cursor().execute(load("migrate/check_server")).fetchone()
    version, encoding = row if isinstance(row, tuple) else (0, "")
    if version < OLDEST_SERVER:
        msg = f"PostgreSQL {version // 10000} is too old: Jobherd needs 15 or newer"
        raise SchemaError(msg)
    if isinstance(encoding, bytes):  # in a database of encoding SQL_ASCII psycopg returns text as bytes
        encoding = encoding.decode("ascii")
    if encoding != "UTF8":
        msg = f"the database's encoding is {encoding}: Jobherd needs one that was created with ENCODING 'UTF8'"
        raise SchemaError(msg)


def _missing(connection: psycopg.Connection[object], *, schema: str, area: str) -> list[Migration]:
    known = migrations(area)
    rows = connection.cursor().execute(load("migrate/list_migrations", schema), {"area": area}).fetchall()
    applied = {row[0]: row[1] for row in rows if isinstance(row, tuple)}
    newest = max(applied, default=0)
    if area == CORE and applied.get(1, BASELINE) != BASELINE:
        msg = (
            f"the schema {schema!r} is from a development version before 0.1.0 (migration {newest}), which "
            "cannot be migrated: "
            f"drop it (DROP SCHEMA {schema} CASCADE deletes its jobs), and run `jobherd migrate`"
        )
        raise SchemaError(msg)
    if newest > known[-1].version:
        msg = (
            f"the database's schema {schema!r} is at version {newest} ({area}), this Jobherd has {known[-1].version}: "
            "a newer version has migrated it; upgrade this one"
        )
        raise SchemaError(msg)
    row = connection.cursor().execute(load("migrate/find_former_name"), {"schema": schema}).fetchone()
    if isinstance(row, tuple) and row[0]:
        remedy = f"ALTER SCHEMA {schema} RENAME TO {row[0]}"
        msg = f"the schema {schema!r} was renamed, but its functions still call {row[0]!r}. Rename it back: {remedy}"
        raise RenamedError(msg, remedy)
    return [step for step in known if step.version not in applied]
