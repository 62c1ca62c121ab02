"""Exchanges over libpq: the answers that they return, and that no rejection is missed."""

from __future__ import annotations

import sys
import threading

import psycopg
import pytest

from jobherd import sql
from jobherd.workers.database.wire import Wire
from tests.support.queue import Queue
from tests.support.seats import Bench


@pytest.fixture
def connection(database: str):
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def wanted(queue: str, reason: str | None = None) -> dict[str, object]:
    """Return parameters that pause or resume a queue."""
    return {"queue": queue, "reason": reason, "kind": None, "resume_at": None, "delay": None, "actor": None}


@pytest.mark.parametrize("prepared", [True, False])
def test_exchange_runs_two_statements_in_one_transaction(connection, prepared):
    wire = Wire(connection, "jobherd", prepared=prepared)
    connection.execute("CREATE TABLE public.seen (n bigint)")
    connection.execute(
        "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.seen SELECT txid_current(); RETURN NULL; END $$"
    )
    connection.execute(
        "CREATE TRIGGER note AFTER INSERT OR DELETE ON jobherd.gates FOR EACH STATEMENT EXECUTE FUNCTION public.note()"
    )
    queue = wanted("a", reason='a "quoted" \\ reason')
    assert wire.exchange(("control/pause_claims", queue), ("control/resume_claims", queue)) == [[(True,)], [(True,)]]
    assert connection.execute("SELECT count(*), count(DISTINCT n) FROM public.seen").fetchone() == (2, 1)


@pytest.mark.parametrize("prepared", [True, False])
def test_exchange_each_executes_one_statement_if_the_server_rejects_the_other(connection, prepared):
    wire = Wire(connection, "jobherd", prepared=prepared)
    good, bad = wanted("a"), wanted("no name")
    for first, second in ((good, bad), (bad, good)):
        said = wire.exchange_each(("control/pause_claims", first), ("control/pause_claims", second))
        assert [type(one) for one in said] == [
            list if one is good else psycopg.errors.InvalidParameterValue for one in (first, second)
        ]
        assert wire.exchange(("control/resume_claims", wanted("a"))) == [[(True,)]], (
            "the accepted statement is executed, and the connection can be used"
        )


@pytest.mark.parametrize("prepared", [True, False])
def test_exchange_ahead_leaves_the_second_answer_to_be_read_later(connection, prepared):
    wire = Wire(connection, "jobherd", prepared=prepared)
    good, bad = wanted("a"), wanted("no name")
    for first, behind in ((good, bad), (bad, good)):
        said = [
            wire.exchange_ahead(("control/pause_claims", first), ("control/pause_claims", behind)),
            wire.receive_pending(),
        ]
        assert [type(one) for one in said] == [
            list if one is good else psycopg.errors.InvalidParameterValue for one in (first, behind)
        ]
        assert wire.exchange(("control/resume_claims", wanted("a"))) == [[(True,)]], (
            "the accepted statement is executed, and the connection can be used"
        )


def refuse_late(connection, how: str) -> None:
    """From now on, the server answers a statement that pauses the queue "late", and then rejects its commit."""
    connection.execute(
        f"CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {how}; RETURN NULL; END $$"
    )
    connection.execute(
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON jobherd.gates DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW WHEN (NEW.name = 'late') EXECUTE FUNCTION public.refuse()"
    )


LATE, FINE, FREE = (
    ("control/pause_claims", wanted("late")),
    ("control/pause_claims", wanted("a")),
    ("control/resume_claims", wanted("a")),
)


@pytest.mark.parametrize("prepared", [True, False])
def test_statement_that_is_answered_and_rejected_at_its_commit_counts_as_rejected(connection, prepared):
    """If answers were matched by their order, they would be off by one.

    A settlement that was rolled back would count as done, and its jobs would stay claimed.
    """
    refuse_late(connection, "RAISE EXCEPTION 'too late'")
    wire = Wire(connection, "jobherd", prepared=prepared)
    for first, second in ((LATE, FINE), (FINE, LATE)):
        said = wire.exchange_each(first, second)
        assert [type(one) for one in said] == [
            list if one is FINE else psycopg.errors.RaiseException for one in (first, second)
        ]
        assert wire.exchange(FREE) == [[(True,)]]
        said = [wire.exchange_ahead(first, second), wire.receive_pending()]
        assert [type(one) for one in said] == [
            list if one is FINE else psycopg.errors.RaiseException for one in (first, second)
        ]
        assert wire.exchange(FREE) == [[(True,)]]
    for ask in (
        lambda: wire.exchange(LATE),
        lambda: wire.exchange(LATE, FINE),
        lambda: wire.exchange(FINE, LATE),
        lambda: wire.exchange_urgent(*LATE),
    ):
        with pytest.raises(psycopg.errors.RaiseException, match="too late"):
            ask()
    assert connection.execute("SELECT count(*) FROM jobherd.gates").fetchone() == (0,)
    assert wire.exchange(FINE) == [[(True,)]]


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize(
    "ask",
    [
        lambda wire: wire.exchange(LATE),
        lambda wire: wire.exchange(FINE, LATE),
        lambda wire: wire.exchange_urgent(*LATE),
        lambda wire: wire.exchange_each(LATE, FINE),
        lambda wire: wire.exchange_each(FINE, LATE),
    ],
)
def test_session_that_ends_between_an_answer_and_its_commit_raises_an_error(connection, prepared, ask):
    refuse_late(connection, "PERFORM pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(psycopg.OperationalError):
        ask(Wire(connection, "jobherd", prepared=prepared))
    assert connection.broken


def test_reading_the_second_answer_raises_if_the_session_ended_at_its_commit(connection):
    refuse_late(connection, "PERFORM pg_terminate_backend(pg_backend_pid())")
    wire = Wire(connection, "jobherd", prepared=True)
    assert wire.exchange_ahead(FINE, LATE) == [(True,)]
    with pytest.raises(psycopg.OperationalError):
        wire.receive_pending()
    assert connection.broken


def test_session_that_is_terminated_during_an_exchange_raises_an_error(connection, database):
    wire = Wire(connection, "jobherd", prepared=False)
    connection.execute("CREATE TABLE public.held ()")
    connection.execute(
        "CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOCK TABLE public.held; RETURN NULL; END $$"
    )
    connection.execute(
        "CREATE TRIGGER wait AFTER INSERT ON jobherd.gates FOR EACH STATEMENT EXECUTE FUNCTION public.wait()"
    )
    with psycopg.connect(database) as holder:
        holder.execute("LOCK TABLE public.held")
        backend = connection.info.backend_pid
        killer = threading.Thread(target=_end_once_it_waits, args=(database, backend))
        killer.start()
        queue = wanted("a")
        with pytest.raises(psycopg.OperationalError):
            wire.exchange_each(("control/pause_claims", queue), ("control/resume_claims", queue))
        killer.join()
    assert connection.broken


def _end_once_it_waits(database, backend):
    with psycopg.connect(database, autocommit=True) as connection:
        while not connection.execute("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", [backend]).fetchall():
            pass
        connection.execute("SELECT pg_terminate_backend(%s)", [backend])


def test_statement_that_cannot_be_prepared_raises_the_error_of_the_server(connection):
    connection.execute("DROP TABLE jobherd.progress CASCADE")
    with pytest.raises(psycopg.errors.UndefinedTable):
        Wire(connection, "jobherd", prepared=True).exchange(("maintenance/delete_progress", {}))


def test_prepared_statement_of_the_same_name_from_another_client_raises_an_error(connection):
    """This happens behind a pooler, where two schemas may share a server session."""
    connection.execute('PREPARE "maintenance/delete_progress" AS SELECT 1')
    with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
        Wire(connection, "jobherd", prepared=True).exchange(("maintenance/delete_progress", {}))


def test_parameter_with_a_nul_is_rejected_and_not_sent(connection):
    with pytest.raises(ValueError, match="NUL"):
        Wire(connection, "jobherd", prepared=True).exchange(("control/pause_claims", wanted("a", reason="a\0b")))
    assert connection.execute("SELECT count(*) FROM jobherd.gates").fetchone() == (0,)


def test_worker_starts_no_further_job_of_a_revoked_claim_and_releases_the_rest(bench: Bench, gate):
    jobs = [bench.enqueue("act:gated", name="a"), bench.enqueue("act:nothing"), bench.enqueue("act:nothing")]
    child = bench.start(most_claimed=3)
    arrival = gate.wait_arrival("a")
    token = bench.ask("SELECT token FROM jobherd.running")[0]["token"]
    child.board.revoke(token)
    arrival.open()
    rows = [bench.wait(job, "completed") for job in jobs]
    assert [row["token"] == token for row in rows] == [True, False, False], "the others ran under another claim"
    assert [row["attempts"] for row in rows] == [1, 1, 1]


def test_job_whose_claim_is_revoked_while_it_is_announced_does_not_start(bench: Bench, gate, monkeypatch):
    """The supervisor revokes and then reads the announcement; the worker announces and then reads the revocation.

    At least one of them sees the write of the other.
    """
    jobs = [bench.enqueue("act:gated", name="a"), bench.enqueue("act:gated", name="b"), bench.enqueue("act:nothing")]

    def revoke(point: str) -> None:
        announcing = sys._getframe(1).f_locals  # The worker is a fork of this process.
        if (
            point == "job.announced"
            and announcing["row"].id == jobs[1]
            and announcing["row"].attempts == 1
            and not announcing["board"].revoked
        ):
            announcing["board"].revoke(announcing["row"].token)

    monkeypatch.setattr("jobherd.workers.run.executor.armed", True)
    monkeypatch.setattr("jobherd.workers.run.executor.reach", revoke)
    bench.start(most_claimed=3)
    gate.wait_arrival("a").open()
    arrival = gate.wait_arrival("b")
    first = bench.wait(jobs[0], "completed")
    assert bench.ask("SELECT token FROM jobherd.running")[0]["token"] > first["token"], (
        "the job was released and runs under another claim"
    )
    arrival.open()
    assert [bench.wait(job, "completed")["attempts"] for job in jobs] == [1, 1, 1]


def test_statement_parameters_are_numbered_without_a_gap():
    for name in ("claim/claim_job", "claim/claim_jobs", "settle/settle_jobs", "recover/requeue_rest"):
        text, names = sql.numbered(name)
        assert all(f"${place}" in text for place in range(1, len(names) + 1))
        assert "%(" not in text


@pytest.mark.parametrize(("unsent", "looks"), [([0, 0], 2), ([900, 500, 100, 0, 0], 5), ([900, 900], 2)])
def test_connection_without_progress_raises_an_error_and_a_slow_one_is_waited_for(database, monkeypatch, unsent, looks):
    class Silent:
        asked = []

        def poll(self, milliseconds):
            self.asked.append(milliseconds)
            return []

    with psycopg.connect(database, autocommit=True) as connection:
        wire = Wire(connection, "jobherd", prepared=True, patience=3.0)
        left = iter(unsent)
        monkeypatch.setattr("jobherd.workers.database.receiver._unsent", lambda _fd: next(left))
        silent = Silent()
        silent.asked = []
        with pytest.raises(psycopg.OperationalError, match="no message from the server for 3 s"):
            wire.receiver._wait(silent)
        assert silent.asked == [1500] * looks


@pytest.mark.parametrize("by", ["claim/claim_job", "claim/claim_jobs"])
@pytest.mark.parametrize(("size", "again"), [(10, True), (5000, False)])
def test_only_an_answer_with_a_small_job_is_kept_to_be_read_again_during_the_next_claim(database, by, size, again):
    with Queue(database) as queue:
        queue.enqueue("a:b", f'"{"x" * size}"')
        child = queue.child()
        wire = Wire(child.connection, "jobherd", prepared=True)
        rows = wire.exchange_urgent(by, child.parameters(1))
        assert f'"{"x" * size}"' in rows[-1]
        assert (wire._urgent[by].response is not None) is again
