"""Migrations: forward only, all or none, also if several processes start at the same time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd import sql
from jobherd.sql.drift import drift
from jobherd.sql.migrate import CORE, Migration, RenamedError, SchemaError, migrate, migrations, pending
from tests.support.postgres import tool


def dump(dsn: str) -> list[str]:
    """Return what pg_dump writes of the schema: definitions, comments, privileges and policies."""
    done = subprocess.run(
        [tool("pg_dump"), "--schema-only", "--no-owner", "--schema=jobherd", dsn],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if line and not line.startswith(("--", "SET ", "\\"))]


def connect(dsn):
    return psycopg.connect(dsn, autocommit=True)


def test_empty_database_gets_all_migrations_once(empty_database):
    with connect(empty_database) as connection:
        assert pending(connection) == len(migrations())
        assert migrate(connection) == len(migrations())
        assert migrate(connection) == 0
        assert pending(connection) == 0


@pytest.mark.promise("C40", "C42", "C43")
def test_five_concurrent_migrations_all_succeed_and_only_one_applies_the_steps(empty_database):
    script = "import psycopg, sys; from jobherd.sql.migrate import migrate; print(migrate(psycopg.connect(sys.argv[1], autocommit=True)))"
    with ThreadPoolExecutor(5) as pool:
        runs = list(
            pool.map(
                lambda _: subprocess.run(
                    [sys.executable, "-c", script, empty_database], capture_output=True, text=True, check=False
                ),
                range(5),
            )
        )
    assert [run.returncode for run in runs] == [0] * 5, runs
    assert sorted(int(run.stdout) for run in runs) == [0, 0, 0, 0, len(migrations())]


def test_newer_schema_is_rejected_with_the_advice_to_upgrade(database):
    with connect(database) as connection:
        connection.execute(
            "INSERT INTO jobherd.migrations (area, version, name) VALUES (%s, 9999, 'from_the_future')", (CORE,)
        )
        with pytest.raises(SchemaError, match="upgrade this one"):
            migrate(connection)
        with pytest.raises(SchemaError, match="9999"):
            pending(connection)


def test_failed_migration_leaves_nothing_behind(empty_database, monkeypatch):
    steps = migrations()
    broken = (*steps[:-1], Migration(99, "broken", "CREATE TABLE jobherd.half (id int); SELECT 1/0"))
    monkeypatch.setattr("jobherd.sql.migrate.migrations", lambda area=CORE: broken)
    with connect(empty_database) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate(connection)
        assert connection.execute("SELECT to_regclass('jobherd.ready'), to_regclass('jobherd.half')").fetchone() == (
            None,
            None,
        )


@pytest.mark.timeout(60)
def test_migration_that_waits_for_a_table_in_use_does_not_block_producers(database, monkeypatch, caplog):
    steps = (*migrations(), Migration(9998, "changes", "ALTER TABLE jobherd.ready ALTER priority SET DEFAULT 1"))
    monkeypatch.setattr("jobherd.sql.migrate.migrations", lambda area=CORE: steps)
    paused = []
    with connect(database) as using, connect(database) as producing, connect(database) as migrating:
        using.execute("BEGIN")
        using.execute("SELECT FROM jobherd.ready")

        def pause(seconds):
            paused.append(seconds)
            producing.execute("SET lock_timeout = 100")
            producing.execute("INSERT INTO jobherd.ready (kind) VALUES ('a:b')")
            using.execute("COMMIT")

        monkeypatch.setattr("jobherd.sql.migrate.time", SimpleNamespace(sleep=pause))
        assert migrate(migrating) == 1
    assert len(paused) == 1
    assert "in use" in caplog.text


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_database_with_another_encoding_than_utf8_is_rejected(cluster, encoding):
    with connect(cluster.dsn()) as connection:
        connection.execute(
            f"CREATE DATABASE latin ENCODING '{encoding}' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0"
        )
        try:
            with connect(cluster.dsn("latin")) as other, pytest.raises(SchemaError, match=f"is {encoding}: .*UTF8"):
                migrate(other)
        finally:
            connection.execute("DROP DATABASE latin")


def test_migration_into_another_schema_does_not_create_schema_jobherd(empty_database):
    with connect(empty_database) as connection:
        migrate(connection, schema="queue_eu")
        assert connection.execute("SELECT to_regnamespace('jobherd')").fetchone() == (None,)
        number = connection.execute("SELECT queue_eu.enqueue('mail:receipt', '{\"order_id\": 7}')").fetchone()
        assert number is not None
        row = connection.execute("SELECT kind, state FROM queue_eu.jobs WHERE id = %s", number).fetchone()
        assert row == ("mail:receipt", "ready")


@pytest.mark.parametrize("schema", ["jobherd", "queue_eu"])
@pytest.mark.parametrize("owned", [True, False], ids=["its own", "a DBA's"])
def test_migration_into_an_existing_schema_needs_no_right_to_create_one(empty_database, schema, owned):
    with connect(empty_database) as dba:
        dba.execute("DROP ROLE IF EXISTS t_maker")
        dba.execute("CREATE ROLE t_maker LOGIN")
        try:
            dba.execute(f"REVOKE CREATE ON DATABASE {dba.info.dbname} FROM PUBLIC")
            if owned:
                dba.execute(f"CREATE SCHEMA {schema} AUTHORIZATION t_maker")
            else:
                dba.execute(
                    f"CREATE SCHEMA {schema}; GRANT CREATE, USAGE ON SCHEMA {schema} TO t_maker WITH GRANT OPTION"
                )
            with connect(make_conninfo(empty_database, user="t_maker")) as connection:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("CREATE SCHEMA another")
                assert migrate(connection, schema=schema) == len(migrations())
                assert migrate(connection, schema=schema, grant=True) == 0
                assert connection.execute(f"SELECT {schema}.enqueue('a:b')").fetchone() == (1,)
        finally:
            dba.execute("DROP OWNED BY t_maker CASCADE; DROP ROLE t_maker")


def test_drift_check_does_not_repeat_the_warning_about_missing_roles(database, monkeypatch, caplog):
    found = {"migrate/list_missing_roles": "SELECT 'jobherd_read'"}
    monkeypatch.setattr("jobherd.sql.migrate.load", lambda name, *rest: found.get(name) or sql.load(name, *rest))
    with connect(database) as connection:
        assert drift(connection) == []
        assert "may not create roles" not in caplog.text
        migrate(connection, grant=True)
        assert "there is no jobherd_read" in caplog.text


def test_settings_of_the_database_do_not_change_the_migrated_schema(empty_database, database):
    with connect(empty_database) as connection:
        name = connection.info.dbname
        connection.execute(
            "CREATE FUNCTION public.octet_length(jsonb) RETURNS integer IMMUTABLE LANGUAGE sql AS 'SELECT 0'"
        )
        for setting in (
            "plpgsql.extra_errors = 'all'", "plpgsql.extra_warnings = 'all'", "search_path = public, pg_catalog", "standard_conforming_strings = off",
            "transform_null_equals = on", "row_security = off", "datestyle = 'German'", "intervalstyle = 'sql_standard'", "timezone = 'Asia/Tokyo'",
        ):  # fmt: skip
            connection.execute(f"ALTER DATABASE {name} SET {setting}")
    with connect(empty_database) as connection:
        assert migrate(connection) == len(migrations())
        connection.execute("DROP FUNCTION public.octet_length(jsonb)")
        connection.execute(f"ALTER DATABASE {connection.info.dbname} RESET ALL")
    assert dump(empty_database) == dump(database)


def test_renamed_schema_is_rejected_with_statements_that_fix_it(database):
    with connect(database) as connection:
        connection.execute("ALTER SCHEMA jobherd RENAME TO queue_eu")
        for ask in (pending, migrate, partial(migrate, grant=True)):
            with pytest.raises(
                RenamedError, match="'queue_eu' was renamed, but its functions still call 'jobherd'"
            ) as refused:
                ask(connection, schema="queue_eu")
        connection.execute(refused.value.remedy)
        assert pending(connection) == 0


@pytest.mark.parametrize("name", ["", "a-b", "A", "1a", "x" * 42, "a; drop table b", 'a"b', "pg_x"])
def test_invalid_schema_name_is_rejected(name):
    with pytest.raises(ValueError, match="schema"):
        sql.check_schema(name)


def test_reserved_word_is_rejected_as_a_schema_name(cluster):
    """Otherwise a migration would fail with a syntax error."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        reserved = conn.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')").fetchall()
    assert {word for (word,) in reserved} <= sql.RESERVED
    with pytest.raises(ValueError, match="'order' is a reserved word"):
        sql.check_schema("order")


def test_every_statement_starts_with_a_comment():
    for file in sorted((Path(sql.__file__).parent / "queries").rglob("*.sql")):
        assert file.read_text(encoding="utf-8").startswith("-- "), file.name


def test_numbered_returns_the_parameter_names_in_the_order_of_their_numbers():
    text, names = sql.numbered("recover/terminate_child_sessions")
    assert names == ("supervisor", "incarnation")
    assert "$1" in text
    assert "$2" in text
    assert "%(" not in text


def test_load_names_a_statement_that_does_not_exist():
    with pytest.raises(FileNotFoundError, match="no_such"):
        sql.load("claim/no_such")


def test_keep_partitions_creates_partitions_in_another_schema(empty_database):
    """A maintenance process that searched for them in `jobherd` would crash at every start."""
    with psycopg.connect(empty_database, autocommit=True) as connection:
        migrate(connection, schema="jobs_eu")
        for made in (4, 0):
            assert connection.execute(
                sql.load("maintenance/keep_partitions", "jobs_eu"), {"ahead": 2, "most": None}
            ).fetchone() == (made, 0)
