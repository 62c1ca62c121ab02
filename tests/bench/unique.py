"""Measure what a key costs an enqueue: new unique jobs and duplicates against plain jobs.

python -m tests.bench.unique [--rounds 15] [--jobs 6000]

Jobs are enqueued one by one and in bulk. Plain and unique calls take turns within a round, in an order
drawn for each round, and each begins with empty tables. The server is durable, and every call commits.
A plain call in bulk is the statement, not COPY, which unique jobs do not use. The figure is the
server's processor time: the disk would hide the difference.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import psycopg

from jobherd import Client
from jobherd.handlers._enqueue.bulk import Chunk, chunks
from jobherd.handlers._enqueue.options import check_options
from jobherd.handlers._enqueue.send import put_on
from tests.bench.enqueue import payload
from tests.bench.hot import used
from tests.support.figures import Report
from tests.support.ground import arguments, ground

if TYPE_CHECKING:
    from collections.abc import Callable

AIMS = {1: 1.3, 100: 1.7, 1000: 1.7}
"""Highest ratio of a call with new unique jobs to one with plain jobs, by number of jobs."""


class ByStatement(Chunk):
    """A chunk that is never copied."""

    is_large = False


def main() -> int:
    given = arguments(__doc__, rounds=15, jobs=6000)
    dice = random.Random(given.seed)
    report = Report("unique: payloads of about 100 bytes, one field is the key", given.seed)
    with (
        ground() as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
        Client(connection=connection) as client,
    ):
        report.on(dsn)

        def put(first: int, size: int, **options: Any) -> None:
            payloads = [payload(first + number) for number in range(size)]
            made = chunks("bench:order", payloads, check_options(**options))
            put_on(connection, (ByStatement(one.kind, one.texts, one.options) for one in made), schema=client.schema)

        def timed(call: Callable[[int], None], calls: int, size: int) -> float:
            """The server's processor microseconds for each job."""
            start = used(connection.info.backend_pid)
            for number in range(calls):
                call(number * size)
            return (used(connection.info.backend_pid) - start) / (calls * size)

        for size, aim in AIMS.items():
            calls = max(4, min(300, given.jobs // size))
            found: dict[str, list[float]] = {"plain": [], "new": [], "duplicate": []}
            for _ in range(given.rounds):
                for way in dice.sample(("plain", "new"), 2):
                    connection.execute("TRUNCATE jobherd.ready, jobherd.keys")
                    options = {} if way == "plain" else {"unique": ("order_id",)}
                    found[way].append(timed(lambda first: put(first, size, **options), calls, size))  # noqa: B023
                    if way == "new":
                        found["duplicate"].append(
                            timed(lambda first: put(first, size, unique=("order_id",)), calls, size)
                        )  # noqa: B023
                        (rows,) = connection.execute("SELECT count(*) FROM jobherd.ready").fetchone()
                        assert rows == calls * size, f"{rows} of {calls * size} jobs"
            report.figure(f"new unique job, {size:,} a call", found["new"], found["plain"], unit="us", aim=aim)
            report.figure(f"duplicate, {size:,} a call", found["duplicate"], found["plain"], unit="us")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
