"""Cost of unique jobs in the database, in measures that do not depend on the machine."""

from __future__ import annotations

import pytest

from jobherd import Client
from tests.support.queue import Queue

JOBS = 500


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        queue.run("SET track_functions = 'all'")
        yield queue


def calls(queue):
    """Return how often functions of the schema were called, without those of the wake triggers."""
    queue.run("SELECT pg_stat_force_next_flush()")
    [(count,)] = queue.run("SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname !~ '^wake'")
    return int(count)


def written(queue):
    [(found,)] = queue.run("SELECT pg_current_wal_insert_lsn() - '0/0'")
    return int(found)


@pytest.mark.parametrize("unique", [("n",), None])
@pytest.mark.parametrize("delay", [None, "1h"])
def test_enqueue_of_many_unique_jobs_calls_no_function_for_each_job(queue, unique, delay):
    client = Client(connection=queue.connection)
    key = {"unique": unique} if unique else {"unique_key": "all"}
    found = client.enqueue_many("a:b", ({"n": n, "text": "x"} for n in range(JOBS)), delay=delay, **key)
    assert sum(job.new for job in found) == (JOBS if unique else 1)
    assert calls(queue) < 12


def test_many_duplicates_write_nothing(queue):
    client = Client(connection=queue.connection)
    first = client.enqueue_many("a:b", ({"n": n} for n in range(JOBS)), unique=("n",))
    before = written(queue)
    with queue.connection.transaction():
        again = client.enqueue_many("a:b", ({"n": n} for n in range(JOBS)), unique=("n",))
        assert queue.run("SELECT pg_current_xact_id_if_assigned()") == [(None,)]
    assert again == first
    assert not any(job.new for job in again)
    assert written(queue) - before < 1000  # a checkpoint or a statistics process of PostgreSQL may write
