"""Measure rejected layouts of the queue against the present one.

Each only drains the same jobs by claims and settlements of the same size.

    updated   one table with a state: a claim updates it, a settlement updates it again; a partial
              index on waiting jobs. What most queues do.
    deleted   the same, but a settlement deletes the row.
    narrow    a narrow table of waiting jobs, and another one that keeps the jobs: a claim deletes
              from the first and writes its lease to the other.
    moved     the table is the state, as in Jobherd: a claim moves whole rows into one row for the
              batch, a settlement deletes it.
    queues    the same with a partition for each of 64 queues, of which one is drained.

None has a history. Rates are of two sessions that do nothing else. Buffers and bytes of WAL per job do
not depend on the machine. The figures are in the docstring of `sql`.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Final, NamedTuple

import psycopg

from tests.support.figures import Report
from tests.support.ground import arguments, ground

COLUMNS: Final = """id bigint GENERATED ALWAYS AS IDENTITY, queue text COLLATE "C" NOT NULL DEFAULT 'default', priority smallint NOT NULL DEFAULT 0,
    kind text NOT NULL DEFAULT 'a:b', attempts smallint NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now(), payload json NOT NULL"""
PAYLOAD: Final = "json_build_object('n', n, 'user_id', 1234567, 'action', 'send_welcome_email', 'locale', 'en_GB', 'ref', 'ab12cd34ef56')"
PICK: Final = (
    "SELECT ctid FROM {table} WHERE {where} ORDER BY queue, priority, id LIMIT %(batch)s FOR UPDATE SKIP LOCKED"
)


class Layout(NamedTuple):
    """The statements that make the layout, claim a batch, and settle it with what the claim returned."""

    make: str
    claim: str
    settle: str
    fill: str = f"INSERT INTO l.job (payload) SELECT {PAYLOAD} FROM generate_series(1, %(jobs)s) AS n"


def _picked(table: str, where: str = "true") -> str:
    return f"ARRAY({PICK.format(table=table, where=where)})"


_MOVED: Final = Layout(
    f"CREATE TABLE l.job ({COLUMNS}); CREATE UNIQUE INDEX ON l.job (queue, priority, id); CREATE UNIQUE INDEX ON l.job (id);"
    "CREATE TABLE l.running (token bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, jobs l.job[]);"
    "ALTER TABLE l.running ALTER jobs SET STORAGE EXTERNAL",
    f"WITH taken AS (DELETE FROM l.job WHERE ctid = ANY ({_picked('l.job', 'queue = (SELECT queue FROM l.job ORDER BY queue LIMIT 1)')}) RETURNING *),"
    " held AS (INSERT INTO l.running (jobs) SELECT array_agg((t.id, t.queue, t.priority, t.kind, t.attempts, t.run_at, t.payload)::l.job) FROM taken t HAVING count(*) > 0 RETURNING token)"
    " SELECT h.token, t.id, t.payload FROM held h CROSS JOIN taken t",
    "WITH gone AS (DELETE FROM l.running WHERE token = %(first)s RETURNING jobs) SELECT cardinality(jobs) FROM gone",
)
LAYOUTS: Final = {
    "updated": Layout(
        f"CREATE TABLE l.job ({COLUMNS}, state text NOT NULL DEFAULT 'ready', token bigint, PRIMARY KEY (id));"
        "CREATE INDEX ON l.job (queue, priority, id) WHERE state = 'ready'",
        "UPDATE l.job SET state = 'running', attempts = attempts + 1, token = 1 WHERE ctid = ANY ("
        + _picked("l.job", "state = 'ready'")
        + ") RETURNING 0, id, payload",
        "UPDATE l.job SET state = 'completed' WHERE id = ANY (%(ids)s) AND token = 1",
    ),
    "deleted": Layout(
        f"CREATE TABLE l.job ({COLUMNS}, state text NOT NULL DEFAULT 'ready', token bigint, PRIMARY KEY (id));"
        "CREATE INDEX ON l.job (queue, priority, id) WHERE state = 'ready'",
        "UPDATE l.job SET state = 'running', attempts = attempts + 1, token = 1 WHERE ctid = ANY ("
        + _picked("l.job", "state = 'ready'")
        + ") RETURNING 0, id, payload",
        "DELETE FROM l.job WHERE id = ANY (%(ids)s) AND token = 1",
    ),
    "narrow": Layout(
        f"CREATE TABLE l.job ({COLUMNS}, PRIMARY KEY (id));"
        'CREATE TABLE l.ready (id bigint NOT NULL, queue text COLLATE "C" NOT NULL, priority smallint NOT NULL, PRIMARY KEY (queue, priority, id));'
        "CREATE TABLE l.running (token bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ids bigint[])",
        f"WITH taken AS (DELETE FROM l.ready WHERE ctid = ANY ({_picked('l.ready')}) RETURNING id),"
        " held AS (INSERT INTO l.running (ids) SELECT array_agg(id) FROM taken HAVING count(*) > 0 RETURNING token)"
        " SELECT h.token, j.id, j.payload FROM held h CROSS JOIN l.job j WHERE j.id = ANY (ARRAY(SELECT id FROM taken))",
        "WITH gone AS (DELETE FROM l.running WHERE token = %(first)s RETURNING ids), past AS (DELETE FROM l.job WHERE id = ANY (SELECT unnest(ids) FROM gone))"
        " SELECT cardinality(ids) FROM gone",
        f"WITH made AS (INSERT INTO l.job (payload) SELECT {PAYLOAD} FROM generate_series(1, %(jobs)s) AS n RETURNING id, queue, priority)"
        " INSERT INTO l.ready SELECT * FROM made",
    ),
    "moved": _MOVED,
    "queues": _MOVED._replace(
        make=f"CREATE TABLE l.job ({COLUMNS.replace('GENERATED ALWAYS AS IDENTITY', 'NOT NULL DEFAULT nextval($$l.ids$$)')}) PARTITION BY LIST (queue);"
        "CREATE TABLE l.job_default PARTITION OF l.job FOR VALUES IN ('default');"
        "DO $$ BEGIN FOR n IN 1..63 LOOP EXECUTE format('CREATE TABLE l.job_%%s PARTITION OF l.job FOR VALUES IN (%%L)', n, 'q' || n); END LOOP; END $$;"
        "CREATE UNIQUE INDEX ON l.job (queue, priority, id);"
        "CREATE TABLE l.running (token bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, jobs l.job[]); ALTER TABLE l.running ALTER jobs SET STORAGE EXTERNAL",
        claim="WITH taken AS (DELETE FROM l.job WHERE queue = 'default' AND ctid = ANY ("
        + _picked("l.job", "queue = 'default'")
        + ") RETURNING *), held AS (INSERT INTO l.running (jobs) SELECT array_agg((t.id, t.queue, t.priority, t.kind, t.attempts, t.run_at, t.payload)::l.job) FROM taken t HAVING count(*) > 0 RETURNING token)"
        " SELECT h.token, t.id, t.payload FROM held h CROSS JOIN taken t",
    ),
}
STEER: Final = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan; SET jit = off"
)


def drain(dsn: str, layout: Layout, batch: int) -> int:
    """Claim and settle until no job is left; return the number of jobs."""
    count = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(STEER)
        while rows := connection.execute(layout.claim, {"batch": batch}, prepare=True, binary=True).fetchall():
            ids = [row[1] for row in rows]
            connection.execute(
                layout.settle,
                {"first": rows[0][0], "ids": ids} if "%(ids)s" in layout.settle else {"first": rows[0][0]},
                prepare=True,
            )
            count += len(rows)
    return count


def counts(connection: psycopg.Connection) -> tuple[float, float]:
    connection.execute("SELECT pg_stat_force_next_flush()")
    return connection.execute(
        "SELECT (blks_hit + blks_read)::float8, (pg_current_wal_insert_lsn() - '0/0')::float8 FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()


def main() -> int:
    given = arguments(__doc__, jobs=100_000, batch=100, rounds=3, sessions=2)
    report = Report(f"layouts: {given.jobs:,} jobs in batches of {given.batch}, {given.sessions} sessions")
    rates: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    buffers: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    logs: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    with ground() as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        connection.execute("CREATE SCHEMA l; CREATE SEQUENCE l.ids")
        for _ in range(given.rounds):
            for name, layout in LAYOUTS.items():
                connection.execute("DROP SCHEMA l CASCADE; CREATE SCHEMA l; CREATE SEQUENCE l.ids")
                connection.execute(layout.make.replace("%%", "%"))
                connection.execute(layout.fill, {"jobs": given.jobs})
                connection.execute("CHECKPOINT")
                before, begun = counts(connection), time.monotonic()
                done: list[int] = []
                family = [
                    threading.Thread(target=lambda layout=layout: done.append(drain(dsn, layout, given.batch)))
                    for _ in range(given.sessions)
                ]
                for thread in family:
                    thread.start()
                for thread in family:
                    thread.join()
                took = time.monotonic() - begun
                after = counts(connection)
                report.holds(f"{name}: every job once", sum(done) == given.jobs, sum(done))
                rates[name].append(given.jobs / took)
                buffers[name].append((after[0] - before[0]) / given.jobs)
                logs[name].append((after[1] - before[1]) / given.jobs)
    for name in LAYOUTS:
        report.figure(f"{name}, rate", rates[name], rates["updated"], unit="jobs/s")
        report.figure(f"{name}, buffers a job", buffers[name], buffers["updated"])
        report.figure(f"{name}, bytes of log a job", logs[name], logs["updated"])
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
