"""`bench` measures with a real supervisor and leaves nothing behind, even if it is interrupted."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import psycopg
import pytest

from jobherd import sql
from jobherd.supervisor.cli.bench import scratch
from jobherd.supervisor.cli.bench.scratch import PREFIX
from tests.cli.rows import send
from tests.cli.shell import LIMIT, jobherd, start
from tests.support.processes import children_of, wait_for_exit

SMALL = ("--jobs", 400, "--workers", 1)


def scratches(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", [PREFIX]
        ).fetchall()
        return [row[0] for row in rows]


def test_bench_measures_and_leaves_no_schema(empty_database):
    answer = jobherd("bench", *SMALL, "--json", dsn=empty_database)
    assert answer.code == 0, answer
    found = answer.json
    for name in ("round_trip_ms", "commit_ms", "start_ms"):
        assert 0 < found[name]["p50"] <= found[name]["p95"] <= found[name]["p99"]
    assert (found["jobs"], found["workers"]) == (400, 1)
    assert found["enqueue_per_s"] > 0
    assert all(rate > 0 for rate in found["drain_per_s"].values())
    assert scratches(empty_database) == []
    assert answer.err == ""


def test_bench_touches_no_existing_jobs_and_ignores_settings(database, tmp_path):
    send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"queue\": \"bench\"}')")
    (tmp_path / "jobherd.toml").write_text('queues = ["mail"]\nclaim_size = 3\n')
    answer = jobherd("bench", *SMALL, dsn=database, cwd=tmp_path, JOBHERD_CLAIM_SIZE="7", JOBHERD_QUEUES="mail")
    assert answer.code == 0, answer
    assert "enqueue to start" in answer.out
    assert "drain, batch 100" in answer.out
    assert send(database, "SELECT kind, state, attempts FROM jobherd.jobs") == [("a:b", "ready", 0)]
    assert send(database, "SELECT count(*) FROM jobherd.kinds") == [(0,)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_bench_drops_its_schema_and_ends_its_supervisor(empty_database, how):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("LISTEN jobherd_jobs")
        process = start("bench", "--jobs", 1_000_000, "--workers", 1, dsn=empty_database)
        heard = connection.notifies(timeout=LIMIT)
        # Five notifications show that the supervisor is ready and runs jobs: only jobs that are
        # enqueued while its worker is idle cause one.
        for _ in range(5):
            next(heard)
        heard.close()
        family = children_of(process.pid)
        assert family
        process.send_signal(how)
        _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (130, b"")
    assert scratches(empty_database) == []
    for pid in family:
        wait_for_exit(pid, LIMIT)


def test_interruption_cancels_the_statement_again_if_a_cancel_came_too_early(empty_database):
    with (
        psycopg.connect(empty_database, autocommit=True) as connection,
        psycopg.connect(empty_database, autocommit=True) as other,
    ):
        cancel, times = connection.cancel_safe, itertools.count(1)

        def cancel_too_early_twice(**options):
            if next(times) > 2:
                cancel(**options)

        connection.cancel_safe = cancel_too_early_twice

        def interrupt():
            while not other.execute(
                "SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
            ).fetchall():
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=interrupt)
        with pytest.raises(KeyboardInterrupt), scratch.interruptible():
            thread.start()
            try:
                connection.execute("SELECT pg_sleep(3600)")
            finally:
                scratch.end_statement(connection)
        thread.join()
        assert next(times) > 3
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_bench_drops_the_schema_of_a_killed_run_but_not_of_a_running_one(empty_database):
    left, used = f"{PREFIX}left", f"{PREFIX}used"
    with psycopg.connect(empty_database, autocommit=True) as living:
        living.execute(f"CREATE SCHEMA {left}")
        living.execute(f"CREATE SCHEMA {used}")
        living.execute(sql.load("bench/lock_scratch"), {"name": used})
        answer = jobherd("bench", *SMALL, dsn=empty_database)
    assert answer.code == 0, answer
    assert answer.err == f"jobherd: dropped the schema {left}, which a killed benchmark had left\n"
    assert scratches(empty_database) == [used]


def test_drop_statement_rejects_any_other_schema(database):
    with (
        psycopg.connect(database, autocommit=True) as connection,
        pytest.raises(psycopg.errors.RaiseException, match="is not a scratch schema"),
    ):
        connection.execute(sql.load("bench/drop_scratch"))
    assert send(database, "SELECT count(*) FROM jobherd.ready") == [(0,)]


def test_role_that_must_not_create_schemas_gets_a_one_line_error(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    answer = jobherd("bench", *SMALL, dsn=psycopg.conninfo.make_conninfo(empty_database, user="guest"))
    assert answer.code == 78
    assert len(answer.err.splitlines()) == 1


def test_read_only_database_gets_a_one_line_error(empty_database):
    answer = jobherd("bench", *SMALL, dsn=f"{empty_database} options='-c default_transaction_read_only=on'")
    assert answer.code == 69
    assert answer.err.startswith("jobherd: the database takes no writes: ")
    assert len(answer.err.splitlines()) == 1


def test_bench_rejects_invalid_numbers_and_an_unreachable_database(database):
    assert jobherd("bench", "--jobs", "7", dsn=database).code == 2
    assert jobherd("bench", "--jobs", "many", dsn=database).code == 2
    assert jobherd("bench", "--workers", "0", dsn=database).code == 78
    assert jobherd("bench", dsn="host=/nonexistent").code == 69
