"""Measure the ceiling of a drain.

This is the highest rate of this server with plain processes that only claim, call and complete.

As in the product, the table that contains a job is its state. Everything else is left out: a lean
row, no fencing token, no queues, no history, no retry. A claim moves a batch from `lean_ready` into
one row of arrays, and that row is deleted when the batch ends. One statement does both, sent over
bare libpq while the process works on the batch before it. The product is measured against this.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

import orjson
import psycopg
from psycopg import pq

from tests.support.herd import ROOT

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

TABLES = """
CREATE TABLE lean_ready (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind smallint NOT NULL DEFAULT 1,
    attempts smallint NOT NULL DEFAULT 0, payload text NOT NULL);
CREATE TABLE lean_running (batch bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ids bigint[] NOT NULL, kinds smallint[] NOT NULL,
    attempts smallint[] NOT NULL, payloads text[] NOT NULL) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
ALTER TABLE lean_running ALTER payloads SET STORAGE EXTERNAL, ALTER ids SET STORAGE EXTERNAL;
CREATE TABLE lean_history (ids bigint[] NOT NULL, payloads text[] NOT NULL, ended_at timestamptz NOT NULL DEFAULT clock_timestamp());
ALTER TABLE lean_history ALTER payloads SET STORAGE EXTERNAL, ALTER ids SET STORAGE EXTERNAL;
"""
CYCLE = """
WITH ended AS (DELETE FROM lean_running WHERE batch = $1::bigint RETURNING ids, payloads)
, past AS ({past})
, taken AS (
    DELETE FROM lean_ready
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM lean_ready ORDER BY id LIMIT $2::integer FOR UPDATE SKIP LOCKED))
    RETURNING id, kind, attempts, payload
), held AS (
    INSERT INTO lean_running (ids, kinds, attempts, payloads)
    SELECT array_agg(id), array_agg(kind), array_agg(attempts + 1::smallint), array_agg(payload) FROM taken HAVING count(*) > 0
    RETURNING batch
)
SELECT h.batch, t.id, t.kind, t.payload FROM held h CROSS JOIN taken t"""
PAST = {
    False: "SELECT FROM ended",
    True: "INSERT INTO lean_history (ids, payloads) SELECT ids, payloads FROM ended",
}


def noop(n: int, user_id: int, action: str, locale: str, ref: str) -> None:
    """Do nothing, like the product's no-op job."""


HANDLERS = {"1": noop}


class Ceiling:
    """A number of plain processes on a server. `drain(n)` returns jobs per second.

    batch: jobs of a claim. history: keep one row for each batch.
    """

    def __init__(self, dsn: str, *, processes: int = 2, batch: int = 500, history: bool = False) -> None:
        self._dsn, self._processes, self._batch, self._history = dsn, processes, batch, history
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS lean_ready, lean_running, lean_history")
            connection.execute(TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE lean_ready, lean_running, lean_history")

    def drain(self, jobs: int, payload: str) -> float:
        """Drain the jobs; return jobs per second. payload: an SQL expression that may use the number `n`."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(
                f"INSERT INTO lean_ready (payload) SELECT {payload}::text FROM generate_series(1, %s) AS n", [jobs]
            )
        words = [
            sys.executable,
            "-m",
            "tests.bench.ceiling",
            self._dsn,
            str(self._batch),
            *(["--history"] if self._history else []),
        ]
        started = [
            subprocess.Popen(
                words,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(self._processes)
        ]
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()  # The process is ready.
        start = time.time()
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        done, last = 0, start
        for process in started:
            assert process.stdout is not None
            count, at = process.stdout.readline().split()
            process.stdout.close()
            process.wait()
            done, last = done + int(count), max(last, float(at))
        assert done == jobs, f"{done} of {jobs}"
        return jobs / (last - start)


def main() -> None:
    """Run one of the processes.

    It prints that it is ready, waits for the start, drains, and prints the number of its jobs and the time
    of its last write.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("batch")
    parser.add_argument("--history", action="store_true")
    given = parser.parse_args()
    with psycopg.connect(given.dsn, autocommit=True) as connection:
        pgconn = connection.pgconn
        pgconn.prepare(b"cycle", CYCLE.format(past=PAST[given.history]).encode())
        batch = given.batch.encode()
        print("here", flush=True)
        sys.stdin.read()
        count, working, ended = 0, [], None
        pgconn.send_query_prepared(b"cycle", [None, batch])
        while True:
            for kind, payload in working:
                HANDLERS[kind](**orjson.loads(payload))
            count += len(working)
            token, after = _answer(pgconn)  # The answer to the claim that was sent before the work on this batch.
            if not working and token is None:
                break
            pgconn.send_query_prepared(b"cycle", [ended, batch])
            working, ended = after, token
        print(count, time.time(), flush=True)


def _answer(pgconn: PGconn) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    token, jobs = None, []
    while (result := pgconn.get_result()) is not None:
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise RuntimeError(result.error_message)
        for row in range(result.ntuples):
            token = result.get_value(row, 0)
            jobs.append((result.get_value(row, 2).decode(), result.get_value(row, 3)))
    return token, jobs


if __name__ == "__main__":
    main()
