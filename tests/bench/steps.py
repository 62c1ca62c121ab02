"""Measure what the record of a durable step costs, against a bare insert with its commit.

It also measures how long 1,000 records take to read.

python -m tests.bench.steps [--rounds 15] [--jobs 300]

Record and insert take turns within a round, in an order drawn for each round, over one connection and
as a worker sends them. The server is durable: each waits for its commit.
"""

from __future__ import annotations

import random
import sys
import time
from typing import TYPE_CHECKING

import psycopg

from jobherd.workers.database.wire import Wire
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

AIM = 2.0
"""Highest ratio of the time for a record to the time for a bare insert."""
RESULT = '{"id": "ch_1", "cents": 500}'


def main() -> int:
    given = arguments(__doc__, rounds=15, jobs=300)
    dice = random.Random(given.seed)
    report = Report(f"steps: {given.jobs} records a round, of {len(RESULT)} bytes", given.seed)
    with ground() as (_, dsn), Queue(dsn) as queue, psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        connection.execute("CREATE TABLE public.bare (job bigint, name text, result json, PRIMARY KEY (job, name))")
        child = queue.child()
        queue.enqueue_many("a:b", 1)
        [row] = child.claim(1)
        wire = Wire(connection, "jobherd", prepared=False)
        about = {"child": child.id, "token": row.token, "job": row.id, "result": RESULT, "attempt": 1, "version": 1}

        def timed(call: Callable[[str], object]) -> float:
            """The milliseconds of one call, on average."""
            begun = time.perf_counter()
            for number in range(given.jobs):
                call(str(number))
            return 1000 * (time.perf_counter() - begun) / given.jobs

        def record(name: str) -> None:
            assert wire.exchange(("steps/record_step", {**about, "name": name}))[-1]

        def insert(name: str) -> None:
            connection.pgconn.nonblocking = 0
            values = [str(row.id).encode(), name.encode(), RESULT.encode()]
            connection.pgconn.exec_params(
                b"INSERT INTO public.bare VALUES ($1::bigint, $2, $3::json) RETURNING name", values
            )
            connection.pgconn.nonblocking = 1

        found: dict[str, list[float]] = {"record": [], "bare": []}
        for _ in range(given.rounds):
            for way in dice.sample(("record", "bare"), 2):
                queue.run("TRUNCATE jobherd.steps, public.bare")
                found[way].append(timed(record if way == "record" else insert))
        report.figure("record of a step", found["record"], found["bare"], unit="ms", aim=AIM)
        queue.run("TRUNCATE jobherd.steps")
        queue.run(
            "INSERT INTO jobherd.steps (job, name, result, token, attempt, version)"
            " SELECT %s, 'item ' || n, %s::json, 1, 1, 1 FROM generate_series(1, 1000) AS n", row.id, RESULT,
        )  # fmt: skip
        reads = []
        for _ in range(given.rounds):
            begun = time.perf_counter()
            assert len(wire.exchange(("steps/list_steps", {"job": row.id}))[-1]) == 1000
            reads.append(1000 * (time.perf_counter() - begun))
        report.figure("reading 1,000 records", reads, unit="ms")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
