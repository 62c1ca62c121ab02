"""A session, producer or server that dies between a key and its job leaves neither, and the next caller gets the key.

One statement writes both, so a trigger of this test waits in the server: before the row of a job is written, when the
call has its keys, or after it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import psycopg
import pytest

from jobherd import Client, Unique
from jobherd.sql.migrate import migrate
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster
from tests.support.queue import Queue

WAYS = {
    "one": {"unique": ("n",)},
    "many": {"unique": ("n",)},
    "later": {"unique": ("n",), "delay": "1h"},
    "throttled": {"unique": ("n",), "throttle": "1h"},
    "replaced": {"unique": Unique(by=("n",), conflict="replace")},
    "debounced": {"unique": ("n",), "debounce": "1h"},
}
POINTS = {"between key and job": "BEFORE", "after the job": "AFTER"}
GATE = 271828
WAIT = f"""
    CREATE FUNCTION public.wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_lock_shared({GATE}), pg_advisory_unlock_shared({GATE});
        RETURN NEW;
    END $$"""
STANDS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
WAITS = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
PRODUCER = """
import sys, psycopg
from tests.sql.test_unique_faults import put
with psycopg.connect(sys.argv[1]) as connection:
    put(connection, sys.argv[2])
"""


def put(connection, way):
    """Enqueue the job with the key; `many` does it in the middle of other jobs."""
    client = Client(connection=connection)
    if way == "many":
        return client.enqueue_many("a:b", ({"n": n} for n in range(-3, 4)), **WAYS[way])[3]
    return client.enqueue("a:b", {"n": 0}, **WAYS[way])


def make_point(dsn, name):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(WAIT)
        for table in ("ready", "scheduled"):
            connection.execute(
                f"CREATE TRIGGER wait_at_the_gate {POINTS[name]} INSERT ON jobherd.{table}"
                " FOR EACH ROW EXECUTE FUNCTION public.wait_at_the_gate()"
            )


@contextmanager
def shut(dsn):
    """Let every session that reaches the point wait there until the end of the context."""
    with psycopg.connect(dsn, autocommit=True) as watch:
        watch.execute("SELECT pg_advisory_lock(%s)", [GATE])
        yield watch


def await_session(watch, query, value):
    for _ in range(int(LIMIT * 200)):
        if found := watch.execute(query, [value]).fetchone():
            return found[0]
        watch.execute("SELECT pg_sleep(0.005)")
    pytest.fail("no session waits")


@contextmanager
def calling(dsn, way, found):
    """Make the call in another thread. Append its result, or the error that ended it, to `found`."""

    def call():
        try:
            with psycopg.connect(dsn) as connection:
                found.append(put(connection, way))
        except psycopg.OperationalError as problem:
            found.append(problem)

    thread = threading.Thread(target=call)
    thread.start()
    yield
    thread.join(LIMIT)


def verify_the_key_is_free(dsn, way):
    with Queue(dsn) as queue:
        assert [queue.count(table) for table in ("ready", "scheduled", "keys")] == [0, 0, 0]
        first = put(queue.connection, way)
        assert (first.new, put(queue.connection, way).new) == (True, False)
        verify_one_job_has_it(dsn, first)


def verify_one_job_has_it(dsn, job):
    with Queue(dsn) as queue:
        assert queue.run("SELECT job FROM jobherd.keys WHERE shown = '{\"n\": 0}'") == [(job,)]
        assert queue.run("SELECT id FROM jobherd.jobs WHERE (payload ->> 'n')::int = 0") == [(job,)]


@pytest.mark.parametrize(
    ("point", "way"),
    [*(("between key and job", way) for way in WAYS), ("after the job", "many"), ("after the job", "debounced")],
)
def test_terminated_session_leaves_neither_key_nor_job(database, way, point):
    make_point(database, point)
    found = []
    with shut(database) as watch, calling(database, way, found):
        watch.execute("SELECT pg_terminate_backend(%s)", [await_session(watch, STANDS, GATE)])
    assert isinstance(found[0], psycopg.errors.AdminShutdown)
    verify_the_key_is_free(database, way)


@pytest.mark.parametrize("way", ["one", "many", "replaced"])
def test_caller_that_waits_for_a_killed_producer_gets_the_key(database, way):
    make_point(database, "between key and job")
    found = []
    with shut(database) as watch:
        first = subprocess.Popen([sys.executable, "-c", PRODUCER, database, way])
        holder = await_session(watch, STANDS, GATE)
        with calling(database, way, found):
            await_session(watch, WAITS, holder)
            first.send_signal(signal.SIGKILL)
            first.wait()
            watch.execute("SELECT pg_advisory_unlock(%s)", [GATE])
    assert found[0].new
    verify_one_job_has_it(database, found[0])


@pytest.mark.parametrize("point", POINTS)
def test_crash_of_postgresql_leaves_neither_key_nor_job(point):
    with Cluster() as cluster, cluster.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        make_point(dsn, point)
        found = []
        with shut(dsn) as watch, calling(dsn, "many", found):
            await_session(watch, STANDS, GATE)
            cluster.kill()
        assert isinstance(found[0], psycopg.OperationalError)
        cluster.start()
        verify_the_key_is_free(dsn, "many")
