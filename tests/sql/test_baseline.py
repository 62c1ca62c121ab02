"""The baseline makes the schema that the development versions before 0.1.0 had, and a database of the last of them goes on.

`development.sql.gz` is a dump, with rows, of a database that their migrations had made on
PostgreSQL 15. It stands in for the migrations, which are gone.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
from functools import partial
from pathlib import Path

import psycopg
import pytest

from jobherd import sql
from jobherd.sql import drift
from jobherd.sql.migrate import BASELINE, SchemaError, migrate, migrations, pending
from tests.support.postgres import tool
from tests.support.queue import Queue

DEVELOPMENT_DUMP = Path(__file__).parent / "development.sql.gz"
ROLES = ("jobherd_admin", "jobherd_enqueue", "jobherd_read", "jobherd_work")
FROZEN: str | None = None
"""The hash of the baseline. None until 0.1.0 is released: until then the files of sql/schema/ may change."""


def dump(dsn: str) -> str:
    """Return what pg_dump writes of the schema: definitions, comments, privileges and policies."""
    done = subprocess.run(
        [tool("pg_dump"), "--schema-only", "--no-owner", "--schema=jobherd", dsn],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith(("--", "SET ", "\\"))]
    # PostgreSQL 18 names NOT NULL constraints, and a dump of 15 does not say how.
    return re.sub(r"CONSTRAINT \w+_not_null NOT NULL", "NOT NULL", "\n".join(lines))


@pytest.fixture
def development(empty_database: str) -> str:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        for role in ROLES:
            if connection.execute("SELECT to_regrole(%s) IS NULL", (role,)).fetchone() == (True,):
                connection.execute(f"CREATE ROLE {role} NOLOGIN")
        connection.execute(gzip.decompress(DEVELOPMENT_DUMP.read_bytes()))
    return empty_database


def test_the_baseline_makes_what_the_development_versions_made(development, database):
    with psycopg.connect(development, autocommit=True) as connection:
        migrate(connection, grant=True)
    assert dump(development) == dump(database)
    with psycopg.connect(development) as one, psycopg.connect(database) as other:
        assert drift._read(one, "jobherd", called="jobherd") == drift._read(other, "jobherd", called="jobherd")


def test_a_database_of_the_last_development_version_goes_on(development):
    with psycopg.connect(development, autocommit=True) as connection:
        states = "SELECT state, count(*)::integer FROM jobherd.jobs GROUP BY state ORDER BY state"
        before = connection.execute(states).fetchall()
        assert dict(before) == {
            "blocked": 2,
            "completed": 1,
            "failed": 1,
            "ready": 12,
            "retrying": 1,
            "running": 2,
            "scheduled": 1,
        }
        later = [(step.version, step.name) for step in migrations()[1:]]
        assert pending(connection) == len(later)
        assert migrate(connection, grant=True) == len(later)
        assert pending(connection) == 0
        applied = "SELECT version, name FROM jobherd.migrations WHERE area = 'jobherd' ORDER BY version"
        assert connection.execute(applied).fetchall() == [(1, BASELINE), *later]
        assert connection.execute(states).fetchall() == before
        assert drift.drift(connection) == []
    with Queue(development) as queue:
        # A claim under limits is another statement.
        assert queue.run("SELECT jobherd.set_limit(kind => 'a:full'), jobherd.resume('e')") == [(1, True)]
        job = queue.enqueue("a:new", queue="new")
        child = queue.child()
        [row] = child.claim(10, ["new"])
        assert (row.id, row.attempts) == (job, 1)
        assert child.settle(row.token, [job], "ok") == [job]
        assert queue.state(job) == "completed"
        old = child.claim(10, ["c"])
        assert len(old) == 3
        assert child.settle(old[0].token, [one.id for one in old], "ok") == [one.id for one in old]
        assert queue.supervisor().reclaim(lease=0.0) == (1, 2)  # the supervisor in the dump, whose lease expired
        [(cancelled, count)] = queue.run(
            "SELECT state, count(*) FROM jobherd.history WHERE state = 'cancelled' GROUP BY 1"
        )
        assert (cancelled, count) == ("cancelled", 1)  # the request to cancel in the dump


@pytest.mark.parametrize(
    ("change", "newest"),
    [
        ("DELETE FROM jobherd.migrations WHERE version > 1", 1),
        ("DELETE FROM jobherd.migrations WHERE version > 39", 39),
        ("UPDATE jobherd.migrations SET name = 'another' WHERE version = 40", 40),
        ("INSERT INTO jobherd.migrations (area, version, name) VALUES ('jobherd', 110, 'later')", 110),
    ],
)
def test_another_development_version_is_rejected(development, change, newest):
    with psycopg.connect(development, autocommit=True) as connection:
        connection.execute(change)
        applied = connection.execute("TABLE jobherd.migrations ORDER BY version").fetchall()
        for call in (pending, migrate, partial(migrate, grant=True)):
            with pytest.raises(
                SchemaError, match=rf"development version before 0\.1\.0 \(migration {newest}\).*DROP SCHEMA"
            ):
                call(connection)
        assert connection.execute("TABLE jobherd.migrations ORDER BY version").fetchall() == applied


def test_later_migrations_follow_the_baseline():
    versions = [step.version for step in migrations()]
    assert versions == sorted(set(versions))
    assert versions[0] == 1


@pytest.mark.skipif(FROZEN is None, reason="0.1.0 is not released")
def test_the_baseline_never_changes_again():
    """A released database does not get the change: write a migration."""
    assert hashlib.sha256(migrations()[0].text.encode()).hexdigest() == FROZEN


def test_no_migration_patches_the_text_of_a_function():
    """If the text does not match, replace() changes nothing, without an error. Give the whole function."""
    for file in Path(sql.__file__).parent.rglob("*.sql"):
        if "queries" not in file.parts:
            assert not re.search(r"pg_get_(function|view)def|prosrc", file.read_text()), file


def test_each_table_and_each_function_for_users_has_a_comment(database):
    with psycopg.connect(database) as connection:
        silent = connection.execute("""
            SELECT c.relname FROM pg_class c
             WHERE c.relnamespace = 'jobherd'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
               AND obj_description(c.oid, 'pg_class') IS NULL AND c.relname <> 'migrations'
             UNION ALL
            SELECT p.proname FROM pg_proc p
             WHERE p.pronamespace = 'jobherd'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
               AND p.proname IN ('enqueue', 'enqueue_bytes', 'demand', 'cancel', 'cancel_as', 'retry', 'retry_as', 'retry_edited', 'delete',
                                 'reprioritize', 'reschedule', 'pause', 'resume', 'set_limit', 'send_fleet_command', 'note_audit', 'grant_tenant',
                                 'revoke_tenant', 'enable_webhooks', 'end_dashboard_sessions')""").fetchall()
    assert silent == []
