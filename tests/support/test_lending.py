"""A reused database looks new; a database that cannot be restored is not reused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.lending import Lending

if TYPE_CHECKING:
    from tests.support.postgres import Cluster

ROWS = """
SELECT jobherd.enqueue('a:b', '{}');
SELECT jobherd.enqueue('a:b', '{}', '{"delay": "1h"}');
SELECT jobherd.pause('mail');
"""
CONTENT = {
    "r": "SELECT coalesce(json_agg(t)::text, '') FROM jobherd.{} AS t",
    "S": "SELECT concat_ws(' ', last_value, is_called) FROM jobherd.{}",
}
NAMES = (
    "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'jobherd'::regnamespace AND relkind IN ('r', 'S')"
)


@pytest.fixture(scope="module")
def lending(cluster: Cluster, template: str) -> Lending:
    return Lending(cluster, template)


def use(lending: Lending, statements: str) -> tuple[str, dict[str, str]]:
    """Borrow a database and execute statements there; return its name and its content before."""
    with lending.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        names = connection.execute(NAMES).fetchall()
        content = {name: connection.execute(CONTENT[kind].format(name)).fetchone()[0] for name, kind in names}
        connection.execute(statements)
        return connection.info.dbname, content


def test_database_with_changed_rows_and_sequences_is_restored_and_reused(lending: Lending):
    name, fresh = use(lending, ROWS)
    seeds = [table for table, rows in fresh.items() if rows.startswith("[")]
    assert seeds
    assert use(lending, "".join(f"DELETE FROM jobherd.{table};" for table in seeds)) == (name, fresh)
    assert use(lending, "SELECT 1") == (name, fresh)


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE mine ()",
        "ALTER TABLE jobherd.ready SET (fillfactor = 50)",
        "GRANT SELECT ON jobherd.ready TO PUBLIC",
        "CREATE OR REPLACE FUNCTION jobherd.pause(queue text, reason text DEFAULT NULL) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        "ALTER TABLE jobherd.ready DISABLE TRIGGER ALL",
        "SELECT jobherd.enqueue('a:b', '{}'); ANALYZE jobherd.ready",
        "DROP INDEX jobherd.attempts_by_job",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 64', current_database()); END $$",
        "DO $$ BEGIN EXECUTE format('REVOKE TEMP ON DATABASE %I FROM PUBLIC', current_database()); END $$",
    ],
)
def test_database_with_any_other_change_is_not_reused(lending: Lending, statements: str):
    name, _ = use(lending, statements)
    again, _ = use(lending, "SELECT 1")
    assert again != name


def test_leftover_session_is_terminated(lending: Lending):
    with lending.database() as dsn:
        left = psycopg.connect(dsn)
        left.execute("LOCK TABLE jobherd.ready")
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    left.close()
