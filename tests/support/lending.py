"""Databases that one test after the other gets, each as fresh as the first.

Making a database writes 8 MB into some 300 files, and dropping it removes them: with a database for
each of a thousand tests that was a third of the suite's time. So what a test has left behind is
looked at. If only rows and sequences have changed, they are put back as they were; after anything
else (a table, a trigger, a partition, a privilege, statistics of a table) the database is dropped.
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
"""Milliseconds that a session may take to end after it was told to."""
END_SESSIONS = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
ALONE = """
SELECT NOT EXISTS (SELECT FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker')
"""
"""Asked afterwards.

Of one that was just about to end by itself the server says that there was none to be ended.
"""
CATALOGS = """
SELECT relname FROM pg_class
WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared
  AND relname NOT IN ('pg_class', 'pg_statistic')
ORDER BY 1
"""
# Whatever changes a row of a catalog leaves a higher xmin or another count. Not so in pg_class,
# which TRUNCATE writes to itself, nor in pg_statistic, where the server notes what it finds out
# about its own catalogs whenever it likes.
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
    """What a database is before anybody has used it."""

    catalogs: str
    """The statement that tells what its catalogs are like."""
    shape: frozenset[tuple[Any, ...]]
    rows: dict[str, bytes]
    """The tables that are not empty, with their rows as COPY writes them."""
    sequences: dict[str, tuple[int, bool]]


class Lending:
    """The databases of a cluster that are copies of a template."""

    def __init__(self, cluster: Cluster, template: str) -> None:
        self._cluster, self._template = cluster, template
        self._free: list[tuple[str, Pristine]] = []

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Give the DSN of a database that is as the template, and take it back at the end with the sessions left on it."""
        name, pristine = self._free.pop() if self._free else self._make()
        yield self._cluster.dsn(name)
        if self._put_back(name, pristine):
            self._free.append((name, pristine))
        else:
            self._cluster.drop(name)

    def _make(self) -> tuple[str, Pristine]:
        name = self._cluster.create(self._template)
        with psycopg.connect(self._cluster.dsn(name), autocommit=True) as connection:
            return name, look_at(connection)

    def _put_back(self, name: str, pristine: Pristine) -> bool:
        try:
            with psycopg.connect(self._cluster.dsn(name), autocommit=True) as connection:
                return put_back(connection, pristine)
        except psycopg.Error:
            return False


def prepare(cluster: Cluster, template: str, *statements: str) -> Lending:
    """Lend databases that are copies of a template in which that was done."""
    # and never dropped: the server would write and sync what is thrown away with it in a moment
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


def put_back(connection: psycopg.Connection[Any], pristine: Pristine) -> bool:
    """Make a database as it was, if nothing but rows and sequences has changed; return whether it is."""
    connection.execute(END_SESSIONS, [PATIENCE])
    (ended,) = connection.execute(ALONE).fetchone() or (False,)
    if not ended or frozenset(connection.execute(pristine.catalogs).fetchall()) != pristine.shape:
        return False
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")  # nobody is notified of what comes back
        touched = {table for (table,) in connection.execute(TOUCHED)} | set(pristine.rows)
        if touched:
            connection.execute(f"TRUNCATE {', '.join(sorted(touched))} CASCADE")
        for table, rows in pristine.rows.items():
            with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy:
                copy.write(rows)
        for name, (last, called) in pristine.sequences.items():
            connection.execute("SELECT setval(%s::regclass, %s, %s)", [name, last, called])
    # or the server would analyze a table because of what an earlier test did to it
    connection.execute("SELECT pg_stat_reset()")
    return True
