"""An outcome that the database rejects must still end its job."""

from __future__ import annotations

import select

import psycopg
import pytest

from jobherd.handlers._values.outcome import Outcome
from jobherd.workers.ipc.pipes import EXIT_REQUESTED
from jobherd.workers.job.finished import RELEASED, Finished, least_of, settlement
from tests.support.seats import Bench


def refuse(bench: Bench, condition: str) -> None:
    """Make the database reject some outcomes."""
    bench.ask(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {condition} THEN RAISE EXCEPTION 'no' USING ERRCODE = 'check_violation'; END IF; RETURN NEW; END $$"
    )
    bench.ask("CREATE TRIGGER refuse BEFORE INSERT ON jobherd.history FOR EACH ROW EXECUTE FUNCTION public.refuse()")


def test_claim_with_one_rejected_outcome_is_recorded_job_by_job(bench: Bench):
    refuse(bench, "NEW.result::text = '\"bad\"'")
    jobs = [bench.enqueue("act:returns", value=value) for value in ("good", "bad", "good too")]
    child = bench.start(most_claimed=3)
    rows = [bench.wait(job, "completed", "failed") for job in jobs]
    assert [(row["state"], row["result"], row["error_code"]) for row in rows] == [
        ("completed", "good", None),
        ("failed", None, "WORKER_SERIALIZATION_ERROR"),
        ("completed", "good too", None),
    ]
    assert child.dismiss() == EXIT_REQUESTED


def test_rejected_failure_is_recorded_with_a_fixed_error_text(bench: Bench):
    refuse(bench, "NEW.error LIKE '%a value%'")
    job = bench.enqueue("act:raises", options={"max_attempts": 1}, what="value")
    child = bench.start()
    row = bench.wait(job, "failed")
    assert row["error_code"] == "UNHANDLED_ERROR"
    assert "rejected" in row["error"]
    assert "CheckViolation" in child.log()


def test_worker_exits_and_leaves_the_job_to_its_supervisor_if_every_outcome_is_rejected(bench: Bench):
    refuse(bench, "true")
    job = bench.enqueue("act:nothing")
    child = bench.start()
    assert child.wait() == 70
    assert bench.job(job)["state"] == "running"
    now = child.board.now()
    assert (now.job, now.phase.name) == (job, "SETTLING")


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_many_jobs_are_settled_once_each(bench: Bench, batch: int):
    bench.ask(
        "INSERT INTO jobherd.ready (kind, payload) SELECT 'act:returns', json_build_object('value', n) FROM generate_series(1, 500) AS n"
    )
    child = bench.start(most_claimed=batch)
    bench.wait_until(lambda: bench.ask("SELECT count(*) AS n FROM jobherd.history")[0]["n"] == 500, "the end of it")
    row = bench.ask(
        "SELECT count(DISTINCT id) AS n, min(attempts), max(attempts), bool_and(result::text = payload ->> 'value') AS right FROM jobherd.history"
    )[0]
    assert (row["n"], row["min"], row["max"], row["right"]) == (500, 1, 1, True)
    assert bench.ask("SELECT 1 FROM jobherd.running") == []
    assert child.dismiss() == EXIT_REQUESTED
    assert sum(sum(counts.outcomes) for counts in child.board.tally.kind_counts()) == 500


@pytest.mark.promise("D31")
def test_outcome_of_a_finished_job_does_not_wait_for_a_long_job_of_the_claim(bench: Bench, gate):
    first, then = bench.enqueue("act:nothing"), bench.enqueue("act:gated", name="a")
    bench.start(most_claimed=2)
    arrival = gate.wait_arrival("a")
    bench.wait(first, "completed")
    arrival.open()
    bench.wait(then, "completed")


@pytest.mark.parametrize(
    ("label", "state", "delay"),
    [("retry", "scheduled", 7.0), ("failed", "failed", 0.0), ("poison", "failed", 0.0), ("ok", "completed", 0.0)],
)
def test_minimal_outcome_contains_nothing_from_the_handler(label: str, state: str, delay: float):
    least = least_of(
        Finished(
            1,
            Outcome(label, delay=delay, result='"r"', error="e", code="C", traceback="t"),
            usage="{}",
            progress="{}",
        )
    )
    assert (least.outcome.result, least.outcome.traceback, least.usage, least.progress) == (None, None, None, None)
    assert least.outcome.error not in {None, "e"}
    assert (least.outcome.state, least.outcome.delay) == ("failed" if label == "ok" else state, delay)


def test_minimal_outcome_and_settlement_contain_no_impossible_times():
    """A job may have changed the clock.

    The database would reject such times with any outcome, and the job would be claimed again indefinitely.
    """
    least = least_of(Finished(1, Outcome("ok"), ran=-5.0, ended=1e300))
    assert (least.ran, least.ended) == (0.0, 0.0)
    assert settlement(1, 1, [Finished(1, Outcome("ok"), ran=1.0, ended=9.0)], ran_on="x", now=2.0)["ago"] == [0.0]


def test_minimal_outcome_of_a_released_job_is_still_released():
    assert least_of(Finished(1, RELEASED)).outcome == RELEASED


@pytest.mark.parametrize("code", ["deadlock_detected", "serialization_failure"])
def test_settlement_is_repeated_at_once_after_a_rolled_back_transaction(bench: Bench, code: str):
    bench.ask("CREATE SEQUENCE public.tries")
    bench.ask(
        "CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF nextval('public.tries') <= 3 THEN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$"
    )
    bench.ask("CREATE TRIGGER fail BEFORE INSERT ON jobherd.history FOR EACH ROW EXECUTE FUNCTION public.fail()")
    job = bench.enqueue("act:returns", value=1)
    child = bench.start(db_retry_initial=60.0)
    row = bench.wait(job, "completed")
    assert (row["result"], len(row["history"])) == (1, 1)
    assert child.log() == ""


def test_worker_tries_to_claim_a_locked_job_until_the_lock_is_released(bench: Bench):
    child = bench.start()
    child.wait_idle()
    job = bench.enqueue("act:nothing")
    with psycopg.connect(bench.dsn) as somebody:
        somebody.execute("SELECT 1 FROM jobherd.ready FOR UPDATE")
        before = child.board.claims[0]
        child.nudge()
        while child.board.claims[0] < before + 5:
            select.select([], [], [], 0.002)
        assert bench.job(job)["state"] == "ready"
    bench.wait(job, "completed")


def test_no_outcome_is_committed_without_waiting_for_its_fsync(bench: Bench):
    """A claim without a settlement does not wait for the fsync.

    Its setting must not apply to a settlement in the same transaction as the next claim.
    """
    bench.ask("CREATE TABLE public.commits (job bigint, waits text)")
    bench.ask(
        "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.commits VALUES (NEW.id, current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    bench.ask(
        "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON jobherd.history DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.note()"
    )
    jobs = [bench.enqueue("act:nothing") for _ in range(20)]
    child = bench.start()
    bench.wait(jobs[-1], "completed")
    assert child.dismiss() == EXIT_REQUESTED
    noted = bench.ask("SELECT waits, count(*) AS n FROM public.commits GROUP BY waits")
    assert [(row["waits"], row["n"]) for row in noted] == [("on", 20)]


def test_no_further_job_of_a_claim_starts_once_a_settlement_finds_the_claim_lost(bench: Bench, gate):
    jobs = [bench.enqueue("act:gated", name="a"), bench.enqueue("act:nothing"), bench.enqueue("act:nothing")]
    child = bench.start(most_claimed=3)
    arrival = gate.wait_arrival("a")
    bench.ask("UPDATE jobherd.running SET token = token + 1000000")  # As if another worker had the claim now.
    arrival.open()
    child.wait_idle()
    assert child.board.jobs_started == 1
    assert [bench.job(job)["state"] for job in jobs] == ["running"] * 3
    assert "was lost" in child.log()
