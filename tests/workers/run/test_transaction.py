"""A job's writes, the jobs it enqueues and its completion are one.

All of it is there, or nothing.
"""

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


def test_what_goes_well_is_committed_whole_and_what_does_not_leaves_no_trace(bank: Bench):
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
    assert child.dismiss() == EXIT_REQUESTED, "nothing of this wears a child out"
    assert count_of(child, "bank:declared", "ok") == 3


def test_a_handler_that_commits_by_itself_is_found_out(bank: Bench):
    child = start(bank)
    for how, left in (("COMMIT", 1), ("COMMIT and raise", 1), ("COMMIT and no more", 1)):
        row, notes, enqueued = run(bank, child, "bank:declared", how=how)
        assert (row["state"], row["error_code"], notes, enqueued) == ("failed", "TRANSACTION_ENDED", [how], left)
        assert "may be committed although the job failed" in row["error"]
    row, notes, _ = run(bank, child, "bank:declared", how="ROLLBACK")
    assert (row["state"], row["error_code"], notes) == ("failed", "TRANSACTION_ENDED", [])
    row, notes, _ = run(bank, child, "bank:declared", how="well")
    assert (row["state"], notes) == ("completed", ["well"])


def test_one_job_leaves_nothing_in_the_session_of_the_next(bank: Bench):
    child = start(bank)
    run(bank, child, "bank:declared", how="leaves its mark")
    row, _, _ = run(bank, child, "bank:declared", how="looks for marks")
    assert row["result"] == [f"jobherd:worker:{bank.supervisor}:{child.spec.incarnation}:transaction", None]


HELD = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND granted"


@pytest.mark.parametrize(("how", "state"), [("well", "completed"), ("raises", "retrying"), ("COMMIT", "failed")])
def test_a_lock_that_a_handler_took_for_its_session_is_let_go_when_its_transaction_has_ended(
    bank: Bench, how: str, state: str
):
    child = start(bank)
    row, _, _ = run(bank, child, "bank:locks", how=how)
    assert row["state"] == state
    bank.wait_until(lambda: not bank.ask(HELD) or bank.ask("NOTIFY seen"))
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.parametrize("how", ["part", "part raises"])
def test_and_not_only_when_its_job_has(bank: Bench, gate: Gate, how: str):
    child = start(bank)
    job = bank.enqueue("bank:locks", how=how)
    child.nudge()
    arrival = gate.wait_arrival(how)
    assert not bank.ask(HELD)
    arrival.open()
    assert bank.wait(job, *OVER)["state"] == "completed"


def test_coroutines_have_transactions_too(bank: Bench):
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


def test_a_part_of_a_handler_completes_its_job(bank: Bench):
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
def test_a_job_past_its_time_is_torn_out_of_its_statement_and_undone(bank: Bench, kind: str, payload: dict[str, str]):
    child = start(bank)
    job = bank.enqueue(kind, options={"timeout": "200ms", "max_attempts": 1}, **payload)
    child.nudge()
    row = bank.wait(job, "failed")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert bank.ask("SELECT * FROM public.ledger") == []
    assert child.wait() == EXIT_RECYCLE


def test_it_is_cancelled_while_its_transaction_is_open_and_cancelling_does_not_wait(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("bank:declared", how="gate")
    child.nudge()
    gate.wait_arrival("gate")
    bank.ask("SET statement_timeout = '60s'")
    assert bank.ask("SELECT jobherd.cancel(%(job)s) AS said", job=job)[0]["said"] == "cancelling"
    child.interrupt(Reason.CANCEL)
    assert bank.wait(job, "cancelled")["error_code"] == "JOB_CANCELLED"
    assert bank.ask("SELECT * FROM public.ledger") == []


def test_a_lost_claim_is_noticed_before_anything_is_written(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("bank:part", how="twice")
    bank.ask(
        "CREATE FUNCTION public.rob() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM jobherd.running; RETURN NULL; END $$"
    )
    # The claim is taken away in the moment in which it is made: the child hears of it, and has it
    # no more.
    bank.ask(
        "CREATE CONSTRAINT TRIGGER rob AFTER INSERT ON jobherd.running DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.rob()"
    )
    child.nudge()
    assert child.wait() == EXIT_RECYCLE
    assert bank.ask("SELECT * FROM public.ledger") == []
    assert bank.job(job) is None, "nobody else wrote of it"
    assert "the claim was lost" in child.log()


def test_a_job_that_asks_from_the_middle_of_a_batch_is_made_alone_and_claimed_alone_from_then_on(
    bank: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    # in the child too; of "bank:part" it does not know yet how long it takes
    monkeypatch.setattr("jobherd.workers.worker.HELD", 600.0)
    child = start(bank, most_claimed=100)
    with bank.connection.transaction():
        jobs = [bank.enqueue("bank:short") for _ in range(3)]
        held = bank.enqueue("bank:short", label="gate first")
        asks = bank.enqueue("bank:part", how="gate asks")
        rest = [bank.enqueue("bank:part", how="well") for _ in range(3)]
    child.nudge()
    first = gate.wait_arrival("gate first")
    assert bank.ask("SELECT cardinality(jobs) AS n FROM jobherd.running") == [{"n": 8}], "one claim of all"
    first.open()
    arrival = gate.wait_arrival("gate asks")
    for job in (*jobs, held):
        assert bank.job(job)["state"] == "completed", "what was finished before is written before"
    assert [bank.job(job)["state"] for job in rest] == ["ready"] * 3, "what was behind it is given back"
    arrival.open()
    for job in (asks, *rest):
        assert bank.wait(job, "completed")["attempts"] == 1
    assert len({bank.job(job)["token"] for job in rest}) == 3
    assert child.dismiss() == EXIT_REQUESTED


def test_whole_batches_do_not_hold_jobs_with_transactions(bank: Bench):
    child = bank.fork(handlers=(ACTING, BANKING), served=("default",), most_claimed=100)
    with bank.connection.transaction():
        jobs = [bank.enqueue("bank:declared", how=str(n)) for n in range(3)]
    child.nudge()  # it may have looked already
    for job in jobs:
        bank.wait(job, "completed")
    assert len({bank.job(job)["token"] for job in jobs}) == 3
    assert "released" not in child.log()


def test_a_session_that_ended_in_between_is_replaced_and_one_that_ends_in_the_middle_fails_the_attempt(
    bank: Bench, gate: Gate
):
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
def test_a_commit_whose_answer_was_lost_is_looked_up(bank: Bench, monkeypatch: pytest.MonkeyPatch, committed: bool):
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


def test_the_claim_is_settled_by_the_next_session_exactly_when_the_transaction_did_not(bank: Bench, gate: Gate):
    """A dead child, before and after its commit, as its parent finds it.

    Both sessions ended, then settled under the fence.
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
    assert outcome["gate"][0] == {outcome["gate"][1]}, "given back: nothing was committed"
    assert outcome["dies"][0] == set(), "nothing to give back: it is completed"
    notes = {row["job"]: row["note"] for row in bank.ask("SELECT job, note FROM public.ledger")}
    assert notes == {outcome["dies"][1]: "dies"}
    assert bank.job(outcome["dies"][1])["state"] == "completed"


def test_a_transaction_that_is_or_was_open_for_long_is_warned_about(bank: Bench, gate: Gate):
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
def test_a_crash_of_the_server_gives_the_transactions_number_to_another_and_that_one_proves_nothing(
    gate: Gate, how: str, monkeypatch
):
    """What was not flushed never was.

    After recovery the same number is handed out again, and its commit is somebody else's.
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


def test_a_session_that_is_swallowed_while_nobody_needed_it_is_given_up(bank: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobherd.workers.run.transaction_session.PATIENCE", 1.0)
    with Network(bank.dsn) as network:
        child = start(bank, dsn=network.dsn)
        assert run(bank, child, "bank:declared", how="well")[0]["state"] == "completed"
        child.wait_idle()  # with the first one behind it to the last
        assert network.stall("*:transaction") == 1
        row, notes, _ = run(bank, child, "bank:declared", how="well")
        assert (row["state"], notes) == ("retrying", [])
        assert "no word from the server" in row["error"]
        assert run(bank, child, "bank:declared", how="well")[0]["state"] == "completed", "in a session of its own"
        assert child.dismiss() == EXIT_REQUESTED


def test_what_one_job_listened_to_is_not_heard_by_the_next(bank: Bench, monkeypatch: pytest.MonkeyPatch):
    """Notified after the commit and before the session is made as good as new."""

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
def test_behind_a_pooler_nothing_is_prepared_in_a_jobs_transaction(
    bank: Bench, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """The backend kept it, for DISCARD ALL reached another one; what the next job there prepared first had that name already."""
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
