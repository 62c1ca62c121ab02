"""Reuses databases: each test gets one that looks new.

Creating a database writes 8 MB into some 300 files, and dropping it removes them. With one database
for each of a thousand tests, that took a third of the suite's time. So the changes of a test are
checked. If only rows and sequences have changed, they are restored; after any other change (a table,
a trigger, a partition, a privilege, statistics of a table), the database is dropped.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import Cluster

PATIENCE = 10_000
"""Milliseconds within which a terminated session must end."""
END_SESSIONS = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
ALONE = """
SELECT NOT EXISTS (SELECT FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker')
"""
"""Checked after END_SESSIONS, whose result does not tell: the server also returns false for a session that was just
ending."""
CATALOGS = """
SELECT relname FROM pg_class
WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared
  AND relname NOT IN ('pg_class', 'pg_statistic')
ORDER BY 1
"""
# Every change of a catalog row raises its xmin or changes the count. Exceptions: pg_class, because
# TRUNCATE writes to it, and pg_statistic, because the server stores statistics of its own catalogs
# there at any time.
CATALOG = "SELECT {name}::text, count(*), max(xmin::text::bigint) FROM pg_catalog.{table}"
OTHERS = """
SELECT 'pg_class', count(*), hashtext(string_agg(
    concat_ws(',', oid, relname, relnamespace, relowner, relkind, relpersistence, relacl, reloptions, relrowsecurity), ';' ORDER BY oid))
FROM pg_class WHERE oid >= 16384 AND relnamespace <> 'pg_toast'::regnamespace
UNION ALL
SELECT 'pg_statistic', count(*), max(xmin::text::bigint) FROM pg_statistic WHERE starelid >= 16384
UNION ALL
SELECT 'pg_database', (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = d.oid)
    + (SELECT count(*) FROM pg_prepared_xacts WHERE database = d.datname),
    hashtext(concat_ws(',', datdba, datallowconn, datconnlimit, datacl))
FROM pg_database AS d WHERE datname = current_database()
"""
OURS = "relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'pg_toast'::regnamespace)"
TOUCHED = f"""
SELECT oid::regclass::text FROM pg_class
WHERE relkind = 'r' AND {OURS} AND (pg_relation_size(oid) > 0 OR reltuples <> -1 OR relpages <> 0)
"""
SEQUENCES = f"SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S' AND {OURS}"


@dataclass(frozen=True)
class Pristine:
    """The state of a database before its first use."""

    catalogs: str
    """The statement that returns the state of its catalogs."""
    shape: frozenset[tuple[Any, ...]]
    rows: dict[str, bytes]
    """The rows of non-empty tables, as COPY writes them."""
    sequences: dict[str, tuple[int, bool]]


class Lending:
    """The databases of a server that are copies of a template."""

    def __init__(self, cluster: Cluster, template: str) -> None:
        self._cluster, self._template = cluster, template
        self._free: list[tuple[str, Pristine]] = []

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Yield the DSN of a database that equals the template.

        At the end, its sessions are terminated, and it is restored or dropped.
        """
        name, pristine = self._free.pop() if self._free else self._make()
        yield self._cluster.dsn(name)
        if self._restore(name, pristine):
            self._free.append((name, pristine))
        else:
            self._cluster.drop(name)

    def _make(self) -> tuple[str, Pristine]:
        name = self._cluster.create(self._template)
        with psycopg.connect(self._cluster.dsn(name), autocommit=True) as connection:
            return name, look_at(connection)

    def _restore(self, name: str, pristine: Pristine) -> bool:
        try:
            with psycopg.connect(self._cluster.dsn(name), autocommit=True) as connection:
                return restore(connection, pristine)
        except psycopg.Error:
            return False


def prepare(cluster: Cluster, template: str, *statements: str) -> Lending:
    """Return a `Lending` whose databases are copies of a template after these statements."""
    # never dropped: a drop would write and sync data of a server that is removed soon anyway
    name = cluster.create(template)
    with psycopg.connect(cluster.dsn(name), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)
    return Lending(cluster, name)


def look_at(connection: psycopg.Connection[Any]) -> Pristine:
    names = [name for (name,) in connection.execute(CATALOGS)]
    each = [sql.SQL(CATALOG).format(name=sql.Literal(name), table=sql.Identifier(name)) for name in names]
    catalogs = sql.SQL(" UNION ALL ").join([*each, sql.SQL(OTHERS)]).as_string(connection)
    rows = {}
    for (table,) in connection.execute(TOUCHED).fetchall():
        with connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT binary)") as copy:
            rows[table] = b"".join(bytes(chunk) for chunk in copy)
    sequences = {}
    for (name,) in connection.execute(SEQUENCES).fetchall():
        sequences[name] = connection.execute(f"SELECT last_value, is_called FROM {name}").fetchone()
    return Pristine(catalogs, frozenset(connection.execute(catalogs).fetchall()), rows, sequences)


def restore(connection: psycopg.Connection[Any], pristine: Pristine) -> bool:
    """Restore a database if only rows and sequences have changed; return whether it is as before."""
    connection.execute(END_SESSIONS, [PATIENCE])
    (ended,) = connection.execute(ALONE).fetchone() or (False,)
    if not ended or frozenset(connection.execute(pristine.catalogs).fetchall()) != pristine.shape:
        return False
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")  # no triggers: restored rows must not notify
        touched = {table for (table,) in connection.execute(TOUCHED)} | set(pristine.rows)
        if touched:
            connection.execute(f"TRUNCATE {', '.join(sorted(touched))} CASCADE")
        for table, rows in pristine.rows.items():
            with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy:
                copy.write(rows)
        for name, (last, called) in pristine.sequences.items():
            connection.execute("SELECT setval(%s::regclass, %s, %s)", [name, last, called])
    # otherwise the server would analyze a table because of an earlier test's changes
    connection.execute("SELECT pg_stat_reset()")
    return True
