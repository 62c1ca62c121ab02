"""jobs:purge_completed deletes old completed jobs in batches, and may run again at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd import configure
from jobherd.handlers._enqueue import default
from jobherd.handlers.jobs_purge import purge_completed
from jobherd.testing import run

if TYPE_CHECKING:
    from collections.abc import Iterator

PAST = """
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, priority, attempts, crashes, state, queue, kind,
                                 payload, error)
    SELECT nextval('jobherd.job_ids'), f.at, f.at, f.at, f.at, current_date + 30, 0, 1, 0, %(state)s, 'default', %(kind)s, '{}',
           CASE WHEN %(state)s = 'failed' THEN 'why' END
      FROM (SELECT clock_timestamp() - %(age)s::interval - n * interval '1 ms' AS at FROM generate_series(1, %(count)s) AS n) AS f"""
LEFT = "SELECT state, kind, count(*) FROM jobherd.history GROUP BY 1, 2 ORDER BY 1, 2"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    before = default._chosen
    client = configure(database)
    with psycopg.connect(database, autocommit=True) as one:
        yield one
    default._chosen = before
    client.close()


def past(
    connection: psycopg.Connection[tuple[object, ...]],
    count: int,
    *,
    age: str,
    state: str = "completed",
    kind: str = "t:one",
) -> None:
    connection.execute(PAST, {"count": count, "age": age, "state": state, "kind": kind})


@pytest.mark.promise("A16")
def test_purge_deletes_only_completed_jobs_older_than_the_limit(
    connection: psycopg.Connection[tuple[object, ...]],
) -> None:
    past(connection, 25, age="8 days")
    past(connection, 5, age="6 days", kind="t:young")
    past(connection, 3, age="20 days", state="failed")
    past(connection, 2, age="20 days", state="cancelled")
    ran = run(purge_completed, batch=10)
    assert ran.result == {"deleted": 25}
    assert [note for _, note, _ in ran.progress] == ["10 of 25 jobs", "20 of 25 jobs", "25 of 25 jobs"]
    assert connection.execute(LEFT).fetchall() == [
        ("cancelled", "t:one", 2),
        ("completed", "t:young", 5),
        ("failed", "t:one", 3),
    ]
    assert run(purge_completed).result == {"deleted": 0}


def test_purge_is_limited_to_one_kind_and_accepts_an_age_of_zero(
    connection: psycopg.Connection[tuple[object, ...]],
) -> None:
    past(connection, 4, age="0 s", kind="t:one")
    past(connection, 4, age="0 s", kind="t:two")
    assert run(purge_completed, older_than="0s", kind="t:two").result == {"deleted": 4}
    assert connection.execute(LEFT).fetchall() == [("completed", "t:one", 4)]


def test_purge_deletes_the_attempts_of_a_job(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    past(connection, 1, age="8 days")
    past(connection, 1, age="1 day", kind="t:young")
    connection.execute(
        "INSERT INTO jobherd.attempts (job, attempt, outcome, finished_at, drop_on) SELECT id, 1, 'retry', finished_at, drop_on FROM jobherd.history"
    )
    run(purge_completed)
    assert connection.execute(
        "SELECT h.kind FROM jobherd.attempts a LEFT JOIN jobherd.history h ON h.id = a.job"
    ).fetchall() == [("t:young",)]


def test_purge_skips_locked_rows(connection: psycopg.Connection[tuple[object, ...]], database: str) -> None:
    past(connection, 5, age="8 days")
    with psycopg.connect(database) as other:
        other.execute("SELECT id FROM jobherd.history ORDER BY id LIMIT 2 FOR UPDATE")
        assert run(purge_completed, batch=2).result == {"deleted": 3}
    assert run(purge_completed).result == {"deleted": 2}


@pytest.mark.parametrize("payload", [{"older_than": "soon"}, {"batch": 0}, {"batch": 10**6}])
def test_invalid_arguments_of_purge_are_poison(
    connection: psycopg.Connection[tuple[object, ...]], payload: dict[str, object]
) -> None:
    past(connection, 1, age="8 days")
    assert run(purge_completed, **payload).outcome.label == "poison"  # type: ignore[arg-type]
    assert len(connection.execute(LEFT).fetchall()) == 1
