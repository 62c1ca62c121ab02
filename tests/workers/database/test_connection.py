"""A worker whose database becomes unreachable and reachable again, at any moment, with and without jobs."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import psycopg
import pytest

from jobherd.sql.migrate import migrate
from jobherd.workers.database.connection import Session
from jobherd.workers.database.errors import is_retryable
from jobherd.workers.database.opening import session_parameters
from jobherd.workers.database.reconnecting import socket_identity
from jobherd.workers.ipc.pipes import EXIT_REQUESTED, Ready
from jobherd.workers.system.procfs import started
from tests.support.gate import Gate
from tests.support.herd import ROOT
from tests.support.network import Network
from tests.support.postgres import Cluster, quick_place
from tests.support.proxy import Proxy
from tests.support.seats import Bench, wait_for_line


def backend(bench: Bench) -> int:
    return bench.ask("SELECT backend_pid FROM jobherd.children")[0]["backend_pid"]


def end_backend(bench: Bench) -> None:
    assert bench.ask("SELECT pg_terminate_backend(%(pid)s, 10000) AS gone", pid=backend(bench))[0]["gone"]


def test_worker_records_the_outcome_in_a_new_session_if_its_session_ends_during_a_job(bench: Bench, gate: Gate):
    child = bench.start()
    job = bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    before = backend(bench)
    end_backend(bench)
    arrival.open("kept")
    row = bench.wait(job, "completed")
    assert (row["result"], row["attempts"]) == ("kept", 1)
    assert backend(bench) != before
    assert bench.ask("SELECT count(*) AS n FROM jobherd.children")[0]["n"] == 1
    lines = child.log().splitlines()
    assert [line.split(": ")[1].split(",")[0].split(" after")[0] for line in lines] == [
        "the database is away",
        "the database is back",
    ]
    assert child.dismiss() == EXIT_REQUESTED


def test_idle_worker_continues_in_the_first_session_that_it_opens_after_its_session_ended(bench: Bench):
    child = bench.start()
    child.wait_idle()
    with psycopg.connect(bench.dsn, autocommit=True) as owner:
        owner.execute("CREATE TABLE opened (backend int)")
        owner.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO opened VALUES (NEW.backend_pid); RETURN NULL; END $$"
        )
        owner.execute(
            "CREATE TRIGGER note AFTER INSERT OR UPDATE OF backend_pid ON jobherd.children FOR EACH ROW EXECUTE FUNCTION note()"
        )
        end_backend(bench)
        job = bench.enqueue("act:nothing")
        child.nudge()
        bench.wait(job, "completed")
        assert owner.execute("SELECT count(*) FROM opened").fetchone() == (1,)


@pytest.mark.promise("E13")
def test_claim_whose_answer_was_lost_is_released_and_made_again(bench: Bench):
    with Proxy(bench.dsn) as proxy:
        child = bench.start(dsn=proxy.dsn)
        child.wait_idle()
        job = bench.enqueue("act:returns", value=1)
        proxy.swallow()
        child.nudge()
        proxy.wait()
        row = bench.wait(job, "completed")
        assert (row["attempts"], len(row["history"])) == (1, 1)
        assert "released 1 jobs" in child.log()
        assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.parametrize("where", ["before", "answered"])
def test_outcome_is_recorded_unchanged_if_the_answer_to_its_settlement_was_garbled(
    bench: Bench, gate: Gate, where: str
):
    """An error that libpq itself raises has no SQLSTATE.

    If it counted as a rejection of the statement, a completed job would be recorded as failed.
    """
    with Network(bench.dsn) as network:
        child = bench.start(dsn=network.dsn)
        job = bench.enqueue("act:gated", name="a")
        child.nudge()
        arrival = gate.wait_arrival("a")
        child.board.dismiss()
        child.close_wake()  # An exiting worker sends the settlement without a claim.
        network.arm("jobherd:worker:*", "settle/settle_jobs", where=where, action="garble")
        arrival.open("kept")
        network.wait_hit()
        row = bench.wait(job, "completed", "failed")
        assert (row["state"], row["result"], row["attempts"]) == ("completed", "kept", 1)
        assert child.wait() == EXIT_REQUESTED


BREAKS = [(where, action) for action in ("cut", "stall") for where in ("before", "torn", "answered")]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that this test forks wait 1 s for data from the server."""
    monkeypatch.setitem(Session.__init__.__kwdefaults__, "patience", 1.0)


@pytest.mark.parametrize("word", ["claim/claim_job", "settle_"])
def test_each_job_runs_once_wherever_the_connection_breaks_or_goes_silent(bench: Bench, impatient: None, word: str):
    """A stalled connection still acknowledges every packet, so the kernel's own time limits do not detect it."""
    with Network(bench.dsn) as network:
        child = bench.start(dsn=network.dsn)
        for number, (where, action) in enumerate(BREAKS):
            child.wait_idle()
            network.arm("jobherd:worker:*", word, where=where, action=action)
            job = bench.enqueue("act:returns", value=number)
            child.nudge()
            network.wait_hit(more_than=number)
            row = bench.wait(job, "completed", timeout=60)
            assert (row["attempts"], len(row["history"]), row["result"]) == (1, 1, number), (where, action)
        assert child.dismiss() == EXIT_REQUESTED


def test_outcome_is_recorded_if_the_connection_goes_silent_during_a_job(bench: Bench, impatient: None, gate: Gate):
    with Network(bench.dsn) as network:
        child = bench.start(dsn=network.dsn)
        job = bench.enqueue("act:gated", name="a")
        child.nudge()
        arrival = gate.wait_arrival("a")
        assert network.stall("jobherd:worker:*") == 1
        arrival.open("kept")
        row = bench.wait(job, "completed", timeout=60)
        assert (row["result"], row["attempts"]) == ("kept", 1)
        assert "no message from the server for 1 s" in child.log()
        assert child.dismiss() == EXIT_REQUESTED


def test_worker_waits_longer_when_it_repeats_a_settlement_that_took_too_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """With a fixed limit, a settlement of many megabytes on a slow disk was aborted and repeated indefinitely."""
    monkeypatch.setitem(Session.__init__.__kwdefaults__, "patience", 0.3)
    bench.ask(
        """CREATE FUNCTION slow_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN NEW; END $$;
           CREATE TRIGGER slow_disk BEFORE INSERT ON jobherd.history FOR EACH ROW WHEN (NEW.kind = 'act:returns') EXECUTE FUNCTION slow_disk()"""
    )
    child = bench.start()
    child.wait_idle()
    job = bench.enqueue("act:returns", value="at last")
    child.nudge()
    row = bench.wait(job, "completed")
    assert (row["result"], row["attempts"]) == ("at last", 1)
    assert "no message from the server for 0.6 s" in child.log()
    assert child.dismiss() == EXIT_REQUESTED


def test_settlement_whose_answer_was_lost_is_not_recorded_twice(bench: Bench, gate: Gate):
    with Proxy(bench.dsn) as proxy:
        child = bench.start(dsn=proxy.dsn)
        first, then = bench.enqueue("act:gated", name="a"), bench.enqueue("act:gated", name="b")
        child.nudge()
        arrival = gate.wait_arrival("a")
        proxy.swallow()  # The answer to the settlement, and to the claim of the second job with it.
        arrival.open("once")
        proxy.wait()
        gate.wait_arrival("b").open()
        bench.wait(then, "completed")
        assert [len(bench.job(job)["history"]) for job in (first, then)] == [1, 1]
        assert bench.job(then)["attempts"] == 1
        assert child.dismiss() == EXIT_REQUESTED


@contextmanager
def bench_of_its_own(**settings: str) -> Iterator[tuple[Cluster, Bench]]:
    """Start a server that the test may stop, with a bench."""
    with Cluster(settings, place=quick_place()) as own, own.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        with Bench(dsn) as bench:
            yield own, bench


def test_job_whose_claim_is_lost_in_a_server_crash_runs_again_and_its_first_outcome_is_dropped(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    """A claim of short jobs does not wait for its fsync.

    If the server crashes before the fsync, the job is still in the queue and runs again.
    """
    monkeypatch.setattr("jobherd.workers.run.executor.SHORT", 600.0)  # Also in the worker, which may be delayed.
    with bench_of_its_own(wal_writer_delay="10s") as (own, bench):
        child = bench.start()
        known = bench.enqueue("act:maybe", name="")  # After this job, the kind counts as short.
        child.nudge()
        bench.wait(known, "completed")
        child.wait_idle()
        job = bench.enqueue("act:maybe", name="a")
        child.nudge()
        arrival = gate.wait_arrival("a")
        bench.connection.close()
        own.stop("immediate")
        own.start()
        arrival.open("late")
        again = gate.wait_arrival("a")
        assert "was not written" in child.log()
        again.open("then")
        child.close_wake()
        assert child.wait() == EXIT_REQUESTED
        with psycopg.connect(bench.dsn) as connection:
            row = connection.execute("SELECT state, result, attempts FROM jobherd.jobs WHERE id = %s", [job]).fetchone()
        assert row == ("completed", "then", 1)


def test_worker_dismissed_during_a_database_outage_records_its_outcome_before_it_exits(gate: Gate):
    with bench_of_its_own() as (own, bench):
        child = bench.start()
        job = bench.enqueue("act:gated", name="a")
        child.nudge()
        arrival = gate.wait_arrival("a")
        bench.connection.close()
        own.stop("immediate")
        child.close_wake()
        arrival.open("late")
        arrival.wait_gone()
        own.start()
        assert child.wait() == EXIT_REQUESTED
        with psycopg.connect(bench.dsn) as connection:
            row = connection.execute("SELECT state, result FROM jobherd.jobs WHERE id = %s", [job]).fetchone()
        assert row == ("completed", "late")
        assert child.log().count("the database is away") == 1


def test_worker_dismissed_while_it_retries_a_settlement_exits_after_recording_it(gate: Gate):
    with bench_of_its_own() as (own, bench):
        child = bench.start()
        job = bench.enqueue("act:gated", name="a")
        child.nudge()
        arrival = gate.wait_arrival("a")
        bench.connection.close()
        own.stop("immediate")
        arrival.open("late")
        wait_for_line(child, "the database is away")
        child.close_wake()
        own.start()
        assert child.wait() == EXIT_REQUESTED
        with psycopg.connect(bench.dsn) as connection:
            row = connection.execute("SELECT state, result FROM jobherd.jobs WHERE id = %s", [job]).fetchone()
        assert row == ("completed", "late")


def test_worker_without_a_job_exits_at_once_if_it_is_dismissed_during_an_outage(bench: Bench):
    child = bench.fork(dsn="host=/nowhere dbname=x", db_retry_initial=30.0)
    child.close_wake()
    assert child.wait() == EXIT_REQUESTED
    assert "password" not in child.log()


def test_wake_ends_the_pause_before_the_next_connection_attempt(bench: Bench, tmp_path):
    """The supervisor wakes all workers when its own probe succeeds."""
    tmp_path.chmod(0o755)
    given = psycopg.conninfo.conninfo_to_dict(bench.dsn)
    link = tmp_path / ".s.PGSQL.5432"
    child = bench.fork(
        dsn=psycopg.conninfo.make_conninfo(bench.dsn, host=str(tmp_path), port=5432),
        db_retry_initial=600.0,
        db_retry_max=600.0,
    )
    wait_for_line(child, "the database is away")
    link.symlink_to(f"{given['host']}/.s.PGSQL.{given['port']}")
    child.nudge()
    child.wait_report(Ready)


@pytest.mark.parametrize(
    ("problem", "away"),
    [
        (psycopg.OperationalError("server closed the connection"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.ReadOnlySqlTransaction(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.errors.InvalidPassword(), True),
        (psycopg.errors.DeadlockDetected(), True),
        (psycopg.errors.UndefinedTable(), True),
        (psycopg.errors.DataError("cannot contain NUL"), False),
        (psycopg.errors.CheckViolation(), False),
        (psycopg.errors.UndefinedColumn(), False),
        (psycopg.errors.InvalidTextRepresentation(), False),
    ],
)
def test_temporary_database_errors_are_retryable_and_rejections_are_not(problem: psycopg.Error, away: bool):
    assert is_retryable(problem) is away


def test_time_limits_of_the_dsn_override_the_defaults():
    found = session_parameters("host=db connect_timeout=3 application_name=mine", "jobherd:worker:1:2")
    assert (found["connect_timeout"], found["tcp_user_timeout"], found["application_name"]) == (
        "3",
        "15000",
        "jobherd:worker:1:2",
    )
    assert found["target_session_attrs"] == "read-write"


@pytest.mark.parametrize(("hosts", "seconds"), [("a", "10"), ("a,b", "5"), ("a,b,c,d,e,f,g,h", "2")])
def test_several_hosts_share_the_time_to_connect(hosts: str, seconds: str):
    assert session_parameters(f"host={hosts}", "x")["connect_timeout"] == seconds


@pytest.mark.promise("C33")
def test_pauses_double_up_to_the_maximum_and_start_again_after_a_success():
    spec = SimpleNamespace(settings=SimpleNamespace(db_retry_initial=0.5, db_retry_max=30.0))
    pauses = Session(spec, SimpleNamespace(dismissed=False)).waiting.backoff
    for plain in (0.5, 1, 2, 4, 8, 16, 30, 30):
        assert 0.75 * plain <= pauses.next() <= min(30, 1.25 * plain)
    pauses.reset()
    assert pauses.next() <= 0.625


def test_session_socket_that_a_job_made_blocking_becomes_nonblocking_at_the_check(database):
    """With a blocking socket, the read of an answer that exactly fills the buffer would wait for more indefinitely."""
    with psycopg.connect(database) as connection:
        session = SimpleNamespace(_connection=connection, _socket=socket_identity(connection))
        for waits in (False, True):
            os.set_blocking(connection.fileno(), waits)
            assert Session.is_whole(session)
            assert not os.get_blocking(connection.fileno())


def test_session_is_opened_again_if_the_start_time_of_the_process_cannot_be_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    asked: list[int] = []

    def born(pid: int) -> int | None:
        asked.append(pid)
        if len(asked) == 1:
            raise OSError(errno.ENFILE, "the system has none left")
        return started(pid)

    monkeypatch.setattr("jobherd.workers.database.registration.started", born)
    child = bench.start()
    assert "the system has none left" in child.log()
    assert child.dismiss() == EXIT_REQUESTED


def test_code_names_the_client_encoding_exactly_as_the_server_does():
    """With another spelling, pgbouncer sets the encoding again before each transaction, which costs a round trip."""
    names = Counter(
        name
        for package in ("supervisor", "workers", "handlers", "sql")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r'client_encoding"?\]?\s*[:=]\s*"([^"]*)"', path.read_text())
    )
    assert set(names) == {"UTF8"}
    assert names.total() >= 9
