"""The statements about an application's table.

They quote names and report misfits of the table, and each does what its header says.
"""

from __future__ import annotations

import psycopg
import pytest

from jobherd.sql.table_statements import COLUMNS, compose, definition, find_columns, misfits, names_of
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster

ODD = {"state": "Status", "id": "Key$", "cancel": "order"}


def names(**given):
    return names_of(
        **(
            {"table": "public.Odd$Jobs", "view": None, "columns": (), "order_by": None, "alternate_columns": ODD}
            | given
        )
    )


@pytest.fixture
def table(cluster: Cluster, template: str):
    """A table whose names all need quotes, created by the printed definition."""
    with cluster.database(template=template) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(definition(names(), "odd:jobs").encode())
        yield connection


def add(connection, **values) -> int:
    columns = ", ".join(f'"{dict(names().columns).get(name, name)}"' for name in values)
    marks = ", ".join(["%s"] * len(values))
    statement = (
        f'INSERT INTO "Odd$Jobs" ({columns}) VALUES ({marks}) RETURNING "Key$"'
        if values
        else 'INSERT INTO "Odd$Jobs" DEFAULT VALUES RETURNING "Key$"'
    )
    return connection.execute(statement.encode(), list(values.values())).fetchone()[0]


def ask(connection, statement, **parameters):
    return connection.execute(compose(statement, names()), parameters).fetchall()


def shape(connection, of) -> list[str]:
    return misfits(
        of,
        {
            name: (type_, unique)
            for name, type_, unique in connection.execute(find_columns("jobherd"), {"table": of.quoted})
        },
    )


@pytest.mark.promise("B18", "B19", "B21", "B25", "B26", "B28", "B29", "B30", "B38", "B58")
def test_printed_definition_creates_a_table_without_misfits(table):
    """B18 to B30 by the printed types and defaults, B38, B58."""
    assert shape(table, names()) == []
    indexes = [
        row[0] for row in table.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'Odd$Jobs'").fetchall()
    ]
    assert any('("Status", process_after)' in each and "queued" in each for each in indexes)
    assert any("(started_at)" in each and "processing" in each for each in indexes)
    table.execute("LISTEN jobherd_jobs")
    table.execute(definition(names(), "odd:jobs").encode())  # can be repeated
    add(table)
    assert [note.payload for note in table.notifies(timeout=LIMIT, stop_after=1)] == ["@table:odd:jobs"]


def test_next_record_is_found_without_a_sort(table):
    table.execute("""INSERT INTO "Odd$Jobs" (queued_at) SELECT now() FROM generate_series(1, 5000)""")
    table.execute('ANALYZE "Odd$Jobs"')
    explained = table.execute(
        b"EXPLAIN " + compose("dequeue_record", names()), {"jobherd_host": "h", "jobherd_kind": "odd:jobs"}
    ).fetchall()
    plan = "\n".join(row[0] for row in explained)
    assert "Odd$Jobs_order" in plan
    assert "Sort" not in plan


@pytest.mark.parametrize(
    ("order", "index"),
    [
        ("a.repository_id, a.id", '("repository_id", "id")'),
        ('Weight desc NULLS LAST, "Id"', '("weight" desc NULLS LAST, "Id")'),
        ("lower(a.name)", ""),
        ("b.id", ""),
    ],
)
def test_only_an_order_by_columns_of_the_table_gets_an_index(order: str, index: str):
    text = definition(names(table="jobs", view="seen a", order_by=order), "k")
    assert (f'CREATE INDEX IF NOT EXISTS "jobs_order" ON "jobs" {index} WHERE "Status"' in text) == bool(index)
    assert ("jobs_order" in text) == bool(index)


def test_each_misfit_is_reported_with_its_fix(table):
    assert shape(table, names(table="nowhere")) == [
        'there is no table "nowhere": create it (jobherd check --print-sql prints how), or correct the name'
    ]
    table.execute('ALTER TABLE "Odd$Jobs" DROP COLUMN num_resets, DROP COLUMN "Status" CASCADE')
    table.execute(
        'ALTER TABLE "Odd$Jobs" ALTER COLUMN started_at TYPE timestamp, ALTER COLUMN worker_hostname TYPE varchar(99)'
    )
    table.execute('ALTER TABLE "Odd$Jobs" DROP CONSTRAINT "Odd$Jobs_pkey"')
    said = "\n".join(shape(table, names()))
    assert 'has no column "Status" (for state): ALTER TABLE "public"."Odd$Jobs" ADD COLUMN "Status" text' in said
    assert (
        '"started_at" of "public"."Odd$Jobs" is timestamp without time zone and must be timestamp with time zone: ALTER TABLE'
        in said
    )
    assert 'ADD PRIMARY KEY ("Key$")' in said
    assert said.count("\n") == 3
    for each in [line.split(": ", 1)[1].split(", or say")[0] for line in said.splitlines()]:
        table.execute(each.encode())
    assert shape(table, names()) == []


def test_record_is_claimed_once_in_order_and_each_claim_has_a_greater_token(table):
    later = add(table, process_after="infinity")
    paused = add(table)
    table.execute("INSERT INTO jobherd.gates (scope, name, paused_at) VALUES ('kind', 'odd:jobs', now())")
    assert ask(table, "dequeue_record", jobherd_host="h", jobherd_kind="odd:jobs") == []
    assert ask(table, "find_waiting", jobherd_kind="odd:jobs") == [(False, False)]
    assert ask(table, "find_waiting", jobherd_kind="another") == [(True, False)]
    table.execute("DELETE FROM jobherd.gates")
    table.execute('DELETE FROM "Odd$Jobs" WHERE "Key$" = %s', (paused,))
    flagged, first, second = add(table, cancel=True), add(table), add(table, state="errored", process_after="-infinity")
    claim = {"jobherd_host": "h", "jobherd_kind": "odd:jobs"}
    [(record, token, failures, resets, *_)] = ask(table, "dequeue_record", **claim)
    assert (record, failures, resets) == (first, 0, 0)
    with psycopg.connect(table.info.dsn, autocommit=True) as other, other.transaction():
        assert other.execute(compose("lock_record", names()), {"record": first, "token": token}).fetchall() == [
            (first,)
        ]
        assert other.execute(compose("lock_record", names()), {"record": first, "token": token - 1}).fetchall() == []
        # While the record is locked, the application can write to it, no reset requeues it, and a claim skips it.
        table.execute("""UPDATE "Odd$Jobs" SET "order" = true WHERE "Key$" = %s""", (first,))
        assert ask(table, "reset_stalled", age=0, most=5, message="", cancelled="") == []
        assert [row[0] for row in ask(table, "dequeue_record", **claim)] == [second]
        assert ask(table, "find_records_to_stop", records=[first], tokens=[token], sessions=["x"]) == [(first, token)]
    table.execute("""UPDATE "Odd$Jobs" SET "order" = false, "Status" = 'queued' WHERE "Key$" = %s""", (first,))
    assert ask(table, "find_records_to_stop", records=[first], tokens=[token], sessions=["x"]) == [(first, token)]
    [(again, greater, *_)] = ask(table, "dequeue_record", **claim)
    assert again == first
    assert greater > token
    done = {"state": "completed", "message": None, "delay": None, "failures": 0, "logs": None}
    assert ask(table, "settle_record", record=first, token=token, **done) == []
    assert ask(table, "settle_record", record=first, token=greater, **done) == [(first,)]
    assert ask(table, "dequeue_record", **claim) == []
    assert ask(table, "cancel_waiting", message="m") == [(flagged,)]
    assert ask(table, "find_waiting", jobherd_kind="odd:jobs") == [(False, True)]
    assert table.execute("""SELECT "Status" FROM "Odd$Jobs" WHERE "Key$" = %s""", (later,)).fetchone() == ("queued",)


@pytest.mark.promise("B45", "B46", "B47", "B48")
def test_stalled_record_is_requeued_until_it_was_reset_too_often(table):
    fresh = add(table, state="processing", started_at="now")
    beating = add(table, state="processing", started_at="-infinity", last_heartbeat_at="now")
    stale = add(table, state="processing", started_at="2020-01-01")
    worn = add(table, state="processing", started_at="2020-01-01", num_resets=2)
    stopped = add(table, state="processing", started_at="2020-01-01", cancel=True)
    with psycopg.connect(table.info.dsn) as other:
        other.execute("""SELECT FROM "Odd$Jobs" WHERE "Key$" = %s FOR KEY SHARE""", (stale,))
        assert dict(ask(table, "reset_stalled", age=60, most=2, message="given up", cancelled="c")) == {
            worn: "failed",
            stopped: "canceled",
        }
    assert dict(ask(table, "reset_stalled", age=60, most=2, message="given up", cancelled="c")) == {stale: "queued"}
    rows = table.execute(
        """SELECT "Key$", "Status", num_resets, failure_message FROM "Odd$Jobs" ORDER BY 1"""
    ).fetchall()
    assert rows == [
        (fresh, "processing", 0, None), (beating, "processing", 0, None), (stale, "queued", 1, None), (worn, "failed", 2, "given up"),
        (stopped, "canceled", 0, "c"),
    ]  # fmt: skip


def test_statements_use_exactly_the_columns_that_are_checked():
    """Every column that the statements name is checked in the table, and every checked column is used."""
    from importlib.resources import files

    text = "\n".join(file.read_text() for file in (files("jobherd.sql") / "table_templates").iterdir())
    ours = {"table", "quoted_table", "me", "seen", "view", "columns", "order_by", "condition", "gates"}
    assert {word.split("}")[0] for word in text.split("{")[1:]} - ours == set(COLUMNS)
