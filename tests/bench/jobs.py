"""What the benchmarks do with a queue.

They load it while it is paused, release it, wait until it is empty, and calculate how fast that was.

Only this module of the benchmarks depends on the tables: when the schema changes, change it here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

LIMIT = 900.0
"""Seconds after which a queue counts as stuck."""
PAYLOAD = """json_build_object('n', n, 'user_id', 1234567, 'action', 'send_welcome_email', 'locale', 'en_GB', 'ref', 'ab12cd34ef56')"""
"""About 100 bytes."""


def hold(connection: psycopg.Connection) -> None:
    """Pause the queue: workers claim nothing from now on."""
    connection.execute("SELECT jobherd.pause('default', 'loading')")


def release(connection: psycopg.Connection) -> float:
    """Resume the queue; return the database's time just before."""
    (start,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())::double precision").fetchone()
    connection.execute("SELECT jobherd.resume('default')")
    return start


def load(connection: psycopg.Connection, jobs: int, *, kind: str = "bench:noop") -> None:
    """Enqueue `jobs` jobs, without ANALYZE afterwards."""
    connection.execute(
        f"INSERT INTO jobherd.ready (kind, payload) SELECT %s, {PAYLOAD} FROM generate_series(1, %s) AS n", [kind, jobs]
    )


def load_later(connection: psycopg.Connection, jobs: int) -> None:
    """Enqueue `jobs` jobs that are due tomorrow."""
    connection.execute(
        f"INSERT INTO jobherd.scheduled (kind, payload, run_at) SELECT 'bench:noop', {PAYLOAD}, now() + '1 day' FROM generate_series(1, %s) AS n",
        [jobs],
    )


def is_empty(connection: psycopg.Connection) -> bool:
    """Whether no job is ready or running. Cheap: it reads much only if there are no jobs."""
    return not connection.execute(
        "SELECT EXISTS (SELECT FROM jobherd.ready) OR EXISTS (SELECT FROM jobherd.running)"
    ).fetchone()[0]


def place(connection: psycopg.Connection, number: int) -> int:
    """The id of the waiting job that has `number` others before it."""
    return connection.execute("SELECT id FROM jobherd.ready ORDER BY id OFFSET %s LIMIT 1", [number]).fetchone()[0]


def is_claimed(connection: psycopg.Connection, job: int) -> bool:
    """Whether a job is not ready any more.

    Cost: one index lookup. To count rows would slow down the drain that is measured.
    """
    return not connection.execute("SELECT EXISTS (SELECT FROM jobherd.ready WHERE id = %s)", [job]).fetchone()[0]


def wait_until(true: Callable[[], bool], *, glance: float = 0.2) -> None:
    """Check the condition every `glance` seconds until it is true. Raises TimeoutError after LIMIT."""
    until = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > until:
            raise TimeoutError("the queue is stuck")
        time.sleep(glance)


def ended(connection: psycopg.Connection, since: float) -> list[float]:
    """The times at which jobs have completed since `since`, in order, in seconds after it."""
    return [
        row[0]
        for row in connection.execute(
            "SELECT extract(epoch FROM finished_at)::double precision - %(since)s AS at FROM jobherd.history"
            " WHERE state = 'completed' AND finished_at >= to_timestamp(%(since)s) ORDER BY finished_at",
            {"since": since},
        ).fetchall()
    ]


def drain(connection: psycopg.Connection, jobs: int, *, kind: str = "bench:noop", kept: bool = True) -> float:
    """Load the paused queue, release it, and return the jobs per second until the last one's end.

    kept: whether completed jobs of the kind are kept in the history. If not, the last job is of a kind
    whose jobs are kept, so that its end is known.
    """
    hold(connection)
    load(connection, jobs if kept else jobs - 1, kind=kind)
    if not kept:
        load(connection, 1)
    start = release(connection)
    wait_until(lambda: is_empty(connection))
    times = ended(connection, start)
    assert len(times) == (jobs if kept else 1), f"{len(times)} of {jobs} jobs were completed"
    return jobs / times[-1]
