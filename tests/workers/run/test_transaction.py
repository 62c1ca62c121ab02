"""A job's writes, the jobs that it enqueues and its completion commit together or not at all."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd import sql
from jobherd.workers.ipc.current_work import Reason
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED
from tests.support.gate import at_gate
from tests.support.network import Network
from tests.support.patience import LIMIT
from tests.support.pooler import PROGRAM, Pooler
from tests.support.seats import ACTING, Bench, count_of, wait_for_line
from tests.workers.database.test_connection import bench_of_its_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.gate import Gate
    from tests.support.seats import Child

BANKING = str(Path(__file__).parents[1] / "banking.py")
OVER = ("completed", "failed", "retrying", "scheduled", "cancelled")


@pytest.fixture
def bank(bench: Bench) -> Iterator[Bench]:
    bench.ask("CREATE TABLE public.ledger (job bigint, token bigint, note text)")
    bench.ask("CREATE TABLE public.unique_in_the_end (n int, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")
    return bench


def start(bank: Bench, **settings: object) -> Child:
    child = bank.start(handlers=(ACTING, BANKING), served=("default",), **settings)
    child.wait_idle()
    return child


def run(bank: Bench, child: Child, kind: str, **payload: object):
    """Run one job and return its row, the notes it left, and how many jobs it enqueued."""
    before = bank.ask("SELECT count(*) AS n FROM jobherd.jobs WHERE kind = 'bank:nothing'")[0]["n"]
    job = bank.enqueue(kind, options={"max_attempts": 2}, **payload)
    child.nudge()
    row = bank.wait(job, *OVER)
    notes = [each["note"] for each in bank.ask("SELECT note FROM public.ledger WHERE job = %(job)s", job=job)]
    return row, notes, bank.ask("SELECT count(*) AS n FROM jobherd.jobs WHERE kind = 'bank:nothing'")[0]["n"] - before


def test_successful_job_transaction_commits_everything_and_a_failed_one_nothing(bank: Bench):
    child = start(bank)
    row, notes, enqueued = run(bank, child, "bank:declared", how="well")
    assert (row["state"], row["result"], notes, enqueued) == ("completed", {"how": "well"}, ["well"], 1)
    row, notes, enqueued = run(bank, child, "bank:declared", how="completed")
    assert (row["state"], row["result"], notes) == ("completed", {"paid": 7}, ["completed"])
    row, notes, enqueued = run(bank, child, "bank:declared", how="part")
    assert (row["state"], notes, enqueued) == ("completed", ["part"], 1)
    for how, state, code, says in (
        ("raises", "retrying", "UNHANDLED_ERROR", "ValueError: no"),
        ("nack", "retrying", "NACK", "later"),
        ("unstorable", "failed", "WORKER_SERIALIZATION_ERROR", ""),
        ("commit", "retrying", "UNHANDLED_ERROR", "commit() is not for handlers here"),
        ("swallows", "retrying", "UNHANDLED_ERROR", "cannot commit the transaction any more"),
        ("closes", "retrying", "UNHANDLED_ERROR", "closed"),
        ("late", "retrying", "UNHANDLED_ERROR", "unique_in_the_end"),
    ):
        row, notes, enqueued = run(bank, child, "bank:declared", how=how)
        assert (row["state"], row["error_code"], notes, enqueued) == (state, code, [], 0), how
        assert says in row["error"], how
    assert child.dismiss() == EXIT_REQUESTED, "none of these jobs makes the worker due for replacement"
    assert count_of(child, "bank:declared", "ok") == 3


def test_job_fails_if_its_handler_ends_the_transaction_itself(bank: Bench):
    child = start(bank)
    for how, left in (("COMMIT", 1), ("COMMIT and raise", 1), ("COMMIT and no more", 1)):
        row, notes, enqueued = run(bank, child, "bank:declared", how=how)
        assert (row["state"], row["error_code"], notes, enqueued) == ("failed", "TRANSACTION_ENDED", [how], left)
        assert "may be committed although the job failed" in row["error"]
    row, notes, _ = run(bank, child, "bank:declared", how="ROLLBACK")
    assert (row["state"], row["error_code"], notes) == ("failed", "TRANSACTION_ENDED", [])
    row, notes, _ = run(bank, child, "bank:declared", how="well")
    assert (row["state"], notes) == ("completed", ["well"])


def test_session_state_of_one_job_does_not_reach_the_next_job(bank: Bench):
    child = start(bank)
    run(bank, child, "bank:declared", how="leaves its mark")
    row, _, _ = run(bank, child, "bank:declared", how="looks for marks")
    assert row["result"] == [f"jobherd:worker:{bank.supervisor}:{child.spec.incarnation}:transaction", None]


HELD = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND granted"


@pytest.mark.parametrize(("how", "state"), [("well", "completed"), ("raises", "retrying"), ("COMMIT", "failed")])
def test_session_lock_of_a_handler_is_released_after_the_transaction_of_its_job(bank: Bench, how: str, state: str):
    child = start(bank)
    row, _, _ = run(bank, child, "bank:locks", how=how)
    assert row["state"] == state
    bank.wait_until(lambda: not bank.ask(HELD) or bank.ask("NOTIFY seen"))
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.parametrize("how", ["part", "part raises"])
def test_session_lock_of_a_handler_is_released_before_its_job_ends(bank: Bench, gate: Gate, how: str):
    child = start(bank)
    job = bank.enqueue("bank:locks", how=how)
    child.nudge()
    arrival = gate.wait_arrival(how)
    assert not bank.ask(HELD)
    arrival.open()
    assert bank.wait(job, *OVER)["state"] == "completed"


def test_coroutine_handlers_have_transactions(bank: Bench):
    child = start(bank)
    row, notes, enqueued = run(bank, child, "bank:async", how="well")
    assert (row["state"], row["result"], notes, enqueued) == ("completed", "well", ["well"], 1)
    row, notes, enqueued = run(bank, child, "bank:async", how="raises")
    assert (row["state"], notes, enqueued) == ("retrying", [], 0)
    row, notes, enqueued = run(bank, child, "bank:async", how="enqueues")
    assert (row["state"], notes, enqueued) == ("retrying", [], 0)
    assert "await aenqueue" in row["error"]
    row, notes, _ = run(bank, child, "bank:apart", how="apart")
    assert (row["state"], notes) == ("completed", ["apart"])


def test_transaction_within_a_handler_completes_its_job(bank: Bench):
    child = start(bank)
    row, notes, enqueued = run(bank, child, "bank:part", how="well")
    assert (row["state"], row["result"], notes, enqueued) == ("completed", {"how": "well"}, ["well"], 1)
    row, notes, enqueued = run(bank, child, "bank:part", how="twice")
    assert (row["state"], notes, enqueued) == ("completed", ["twice"], 1)
    row, notes, enqueued = run(bank, child, "bank:part", how="raises")
    assert (row["state"], notes, enqueued) == ("retrying", [], 0)
    row, notes, enqueued = run(bank, child, "bank:part", how="nested")
    assert (row["state"], notes, enqueued) == ("retrying", [], 0)
    assert "in a transaction already" in row["error"]
    for how, says in (
        ("again", "completed already, by its transaction"),
        ("goes on", "set `result` of the transaction"),
    ):
        row, notes, _ = run(bank, child, "bank:part", how=how)
        assert (row["state"], row["result"], notes) == ("completed", {"how": how}, [how])
        child.wait_idle()
        assert says in child.log()
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.parametrize(("kind", "payload"), [("bank:sleeps", {}), ("bank:async", {"how": "sleeps"})])
def test_timeout_interrupts_the_statement_of_a_job_and_rolls_back_its_transaction(
    bank: Bench, kind: str, payload: dict[str, str]
):
    child = start(bank)
    job = bank.enqueue(kind, options={"timeout": "200ms", "max_attempts": 1}, **payload)
    child.nudge()
    row = bank.wait(job, "failed")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert bank.ask("SELECT * FROM public.ledger") == []
    assert child.wait() == EXIT_RECYCLE


def test_cancel_does_not_wait_for_the_open_transaction_of_the_job(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("bank:declared", how="gate")
    child.nudge()
    gate.wait_arrival("gate")
    bank.ask("SET statement_timeout = '60s'")
    assert bank.ask("SELECT jobherd.cancel(%(job)s) AS said", job=job)[0]["said"] == "cancelling"
    child.interrupt(Reason.CANCEL)
    assert bank.wait(job, "cancelled")["error_code"] == "JOB_CANCELLED"
    assert bank.ask("SELECT * FROM public.ledger") == []


def test_lost_claim_is_detected_before_the_handler_writes(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("bank:part", how="twice")
    bank.ask(
        "CREATE FUNCTION public.rob() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM jobherd.running; RETURN NULL; END $$"
    )
    # The claim is deleted at the end of the transaction that makes it: the worker receives the answer
    # but does not have the claim.
    bank.ask(
        "CREATE CONSTRAINT TRIGGER rob AFTER INSERT ON jobherd.running DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.rob()"
    )
    child.nudge()
    assert child.wait() == EXIT_RECYCLE
    assert bank.ask("SELECT * FROM public.ledger") == []
    assert bank.job(job) is None, "no outcome was recorded"
    assert "the claim was lost" in child.log()


def test_transaction_releases_the_rest_of_its_claim_and_its_kind_is_then_claimed_alone(
    bank: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    # This also applies to the worker, a fork of this process. It has no duration of "bank:part" yet.
    monkeypatch.setattr("jobherd.workers.worker.MAX_UNSETTLED", 600.0)
    child = start(bank, most_claimed=100)
    with bank.connection.transaction():
        jobs = [bank.enqueue("bank:short") for _ in range(3)]
        held = bank.enqueue("bank:short", label="gate first")
        asks = bank.enqueue("bank:part", how="gate asks")
        rest = [bank.enqueue("bank:part", how="well") for _ in range(3)]
    child.nudge()
    first = gate.wait_arrival("gate first")
    assert bank.ask("SELECT cardinality(jobs) AS n FROM jobherd.running") == [{"n": 8}], "one claim has all jobs"
    first.open()
    arrival = gate.wait_arrival("gate asks")
    for job in (*jobs, held):
        assert bank.job(job)["state"] == "completed", "outcomes of earlier jobs are recorded first"
    assert [bank.job(job)["state"] for job in rest] == ["ready"] * 3, "later jobs of the claim are released"
    arrival.open()
    for job in (asks, *rest):
        assert bank.wait(job, "completed")["attempts"] == 1
    assert len({bank.job(job)["token"] for job in rest}) == 3
    assert child.dismiss() == EXIT_REQUESTED


def test_jobs_declared_transactional_are_claimed_alone(bank: Bench):
    child = bank.fork(handlers=(ACTING, BANKING), served=("default",), most_claimed=100)
    with bank.connection.transaction():
        jobs = [bank.enqueue("bank:declared", how=str(n)) for n in range(3)]
    child.nudge()  # The worker may have tried to claim before this commit.
    for job in jobs:
        bank.wait(job, "completed")
    assert len({bank.job(job)["token"] for job in jobs}) == 3
    assert "released" not in child.log()


def test_lost_transaction_session_is_replaced_between_jobs_and_fails_an_attempt_during_a_job(bank: Bench, gate: Gate):
    child = start(bank)
    run(bank, child, "bank:declared", how="well")
    ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE '%%:transaction'"
    assert len(bank.ask(ended)) == 1
    row, notes, _ = run(bank, child, "bank:declared", how="again")
    assert (row["state"], notes) == ("completed", ["again"])
    job = bank.enqueue("bank:declared", how="gate")
    child.nudge()
    arrival = gate.wait_arrival("gate")
    assert len(bank.ask(ended)) == 1
    arrival.open()
    assert bank.wait(job, "retrying")["attempts"] == 1
    assert bank.ask("SELECT * FROM public.ledger WHERE job = %(job)s", job=job) == []


@pytest.mark.parametrize("committed", [True, False])
def test_worker_finds_out_whether_a_commit_with_a_lost_answer_took_effect(
    bank: Bench, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    commit = psycopg.Connection.commit

    def lose(self: psycopg.Connection[object]) -> None:
        if committed:
            commit(self)
        self.pgconn.finish()
        raise psycopg.OperationalError("the answer was lost")

    monkeypatch.setattr(psycopg.Connection, "commit", lose)
    child = start(bank)
    row, notes, enqueued = run(bank, child, "bank:declared", how="well")
    if committed:
        assert (row["state"], row["result"], row["attempts"], notes, enqueued) == (
            "completed",
            {"how": "well"},
            1,
            ["well"],
            1,
        )
    else:
        assert (row["state"], row["attempts"], notes, enqueued) == ("retrying", 1, [], 0)
        assert "the answer was lost" in row["error"]
    assert child.dismiss() == EXIT_REQUESTED
    assert count_of(child, "bank:declared", "ok") == committed


def test_job_of_a_dead_worker_is_released_only_if_its_transaction_did_not_commit(bank: Bench, gate: Gate):
    """The worker dies before or after its commit.

    As a supervisor does, the test ends both of its sessions and then releases its jobs under the fencing token.
    """
    outcome = {}
    for how in ("dies", "gate"):
        child = start(bank)
        job = bank.enqueue("bank:part", how=how)
        child.nudge()
        if how == "gate":
            arrival = gate.wait_arrival("gate")
            os.kill(arrival.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        me = {"supervisor": bank.supervisor, "incarnation": child.spec.incarnation}
        bank.wait_until(
            lambda me=me: (
                bank.ask(sql.load("recover/terminate_child_sessions"), **me)[0]["alive"] == 0 or bank.ask("NOTIFY seen")
            )
        )
        outcome[how] = (
            {row["id"] for row in bank.ask(sql.load("recover/requeue_child"), cleared=None, error="", **me)},
            job,
        )
    assert outcome["gate"][0] == {outcome["gate"][1]}, "released: nothing was committed"
    assert outcome["dies"][0] == set(), "not released: the job is completed"
    notes = {row["job"]: row["note"] for row in bank.ask("SELECT job, note FROM public.ledger")}
    assert notes == {outcome["dies"][1]: "dies"}
    assert bank.job(outcome["dies"][1])["state"] == "completed"


def test_worker_and_maintenance_process_warn_about_a_long_transaction(bank: Bench, gate: Gate):
    child = start(bank, long_transaction=0.0)
    job = bank.enqueue("bank:declared", how="gate")
    child.nudge()
    arrival = gate.wait_arrival("gate")
    maintenance = bank.start("maintenance", long_transaction=0.0)
    wait_for_line(maintenance, f"the transaction of bank:declared #{job} has been open for")
    arrival.open()
    bank.wait(job, "completed")
    wait_for_line(child, "the job's transaction was open for")


@pytest.mark.parametrize("how", ["gate", "well"])
def test_reused_transaction_id_after_a_server_crash_does_not_count_as_a_commit(gate: Gate, how: str, monkeypatch):
    """A crash loses a transaction id that was not flushed.

    After recovery, the server assigns the same id again, and the commit of that id belongs to another session.
    """
    with bench_of_its_own(wal_writer_delay="10s") as (own, bench):
        bench.ask("CREATE TABLE public.ledger (job bigint, token bigint, note text)")
        commit = psycopg.Connection.commit

        def lose(self: psycopg.Connection[object]) -> None:
            if ":transaction" not in self.info.get_parameters().get("application_name", ""):
                return commit(self)
            at_gate("commit")
            return commit(self)

        monkeypatch.setattr(psycopg.Connection, "commit", lose)
        child = start(bench)
        job = bench.enqueue("bank:declared", options={"max_attempts": 2}, how=how)
        child.nudge()
        arrival = gate.wait_arrival("gate" if how == "gate" else "commit")
        bench.connection.close()
        own.stop("immediate")
        own.start()
        with psycopg.connect(bench.dsn, autocommit=True) as connection:
            for _ in range(50):
                connection.execute("INSERT INTO public.ledger VALUES (0, 0, 'somebody else')")
            arrival.open()
            wait_for_line(child, "the database is back")
            child.close_wake()
            assert child.wait() == EXIT_REQUESTED
            row = connection.execute(
                "SELECT state, attempts, error_code FROM jobherd.jobs WHERE id = %s", [job]
            ).fetchone()
            assert row == ("retrying", 1, "UNHANDLED_ERROR")
            assert connection.execute("SELECT count(*) FROM public.ledger WHERE job > 0").fetchone() == (0,)


def test_transaction_session_that_went_silent_fails_one_attempt_and_is_replaced(
    bank: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jobherd.workers.run.transaction_session.PATIENCE", 1.0)
    with Network(bank.dsn) as network:
        child = start(bank, dsn=network.dsn)
        assert run(bank, child, "bank:declared", how="well")[0]["state"] == "completed"
        child.wait_idle()  # All work for the first job is done.
        assert network.stall("*:transaction") == 1
        row, notes, _ = run(bank, child, "bank:declared", how="well")
        assert (row["state"], notes) == ("retrying", [])
        assert "no message from the server" in row["error"]
        assert run(bank, child, "bank:declared", how="well")[0]["state"] == "completed", "in a new session"
        assert child.dismiss() == EXIT_REQUESTED


def test_notifications_for_one_job_do_not_reach_the_next_job(bank: Bench, monkeypatch: pytest.MonkeyPatch):
    """The notification arrives after the commit and before the session is reset."""

    def notify(point: str) -> None:
        if point == "transaction.committed":
            with psycopg.connect(bank.dsn, autocommit=True) as stranger:
                stranger.execute("LISTEN bank")
                stranger.execute("NOTIFY bank, 'for the first'")
                assert [note.payload for note in stranger.notifies(timeout=LIMIT, stop_after=1)] == ["for the first"]

    monkeypatch.setattr("jobherd.workers.run.transaction.reach", notify)
    child = start(bank)
    assert run(bank, child, "bank:listens")[0]["state"] == "completed"
    row, _, _ = run(bank, child, "bank:hears")
    assert (row["state"], row["result"]) == ("completed", [])
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.skipif(not os.path.exists(PROGRAM), reason="Debian's pgbouncer is not installed: make pgbouncer")
@pytest.mark.parametrize("kind", ["bank:repeats", "bank:arepeats"])
def test_no_statement_is_prepared_in_a_job_transaction_behind_a_pooler(
    bank: Bench, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """The backend kept prepared statements, because DISCARD ALL reached another backend.

    The first PREPARE of the next job on that backend then failed, because the name was in use.
    """
    with Pooler(bank.dsn, "transaction") as pooler:
        monkeypatch.setattr(
            "jobherd.workers.run.transaction.reach",
            lambda point: pooler.turn() if point == "transaction.committed" else None,
        )
        child = start(bank, dsn=pooler.dsn)
        for _ in range(4):
            row, _, _ = run(bank, child, kind)
            assert (row["state"], row["attempts"], row["error"]) == ("completed", 1, None)
            child.wait_idle()
            pooler.turn()
        assert child.dismiss() == EXIT_REQUESTED
