"""The baseline: its text, its comments, and databases of development versions with another baseline."""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path

import psycopg
import pytest

from jobherd import sql
from jobherd.sql.migrate import SchemaError, migrate, migrations, pending

FROZEN: str | None = None
"""The hash of the baseline. None until 0.1.0 is released: until then the files of sql/schema/ may change."""


@pytest.mark.parametrize(
    ("change", "newest"),
    [
        ("UPDATE jobherd.migrations SET name = 'jobs'", 1),
        ("INSERT INTO jobherd.migrations (area, version, name) VALUES ('jobherd', 20, 'failing_attempts')", 20),
    ],
)
def test_a_database_of_a_development_version_is_rejected(database, change, newest):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE jobherd.migrations SET name = 'schema'")
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
