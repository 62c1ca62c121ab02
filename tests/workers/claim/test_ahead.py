"""The jobs of the next claim run while the settlement of the previous claim is on its way.

Outcomes are recorded even if that settlement is late, rejected, lost or never sent.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from jobherd import sql
from jobherd.supervisor.crash.unrecorded_outcomes import finished_of
from jobherd.workers import worker
from jobherd.workers.claim import claimer
from jobherd.workers.claim.scan_start import ScanStart
from jobherd.workers.database.connection import Session
from jobherd.workers.ipc.current_work import Phase
from jobherd.workers.ipc.pipes import EXIT_REQUESTED
from jobherd.workers.job.finished import settlement
from jobherd.workers.job.row import JobRow
from jobherd.workers.run.durations import Durations
from jobherd.workers.settle.in_flight import InFlightClaim
from jobherd.workers.settle.settler import Settler
from tests.support.gate import Arrival, Gate
from tests.support.patience import LIMIT
from tests.support.queue import Child as Seat
from tests.support.queue import Queue
from tests.support.seats import Bench, Child

HOLD = """
CREATE TABLE public.held ();
CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOCK TABLE public.held IN SHARE MODE; RETURN NULL; END $$;
CREATE TRIGGER hold BEFORE DELETE ON jobherd.running FOR EACH STATEMENT EXECUTE FUNCTION public.hold();
"""
REFUSER = """
CREATE SEQUENCE public.tries;
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF nextval('public.tries') = TG_ARGV[0]::bigint THEN RAISE check_violation; END IF; RETURN NULL; END $$;
"""
REFUSE = f"{REFUSER} CREATE TRIGGER refuse BEFORE DELETE ON jobherd.running FOR EACH STATEMENT EXECUTE FUNCTION public.refuse(1)"
"""The database rejects only the first settlement."""
_LATE = "INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.refuse"
REFUSE_LATE = f"{REFUSER} CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON jobherd.running {_LATE}(1)"
"""The database answers the first settlement, and rejects it at its commit."""
REFUSE_CLAIM_LATE = f"{REFUSER} CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON jobherd.running {_LATE}(2)"
"""The database rejects the second claim at its commit."""
WAITS = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'public.held'::regclass"


@contextmanager
def settlements_wait(bench: Bench) -> Iterator[Callable[[], None]]:
    """Block all settlements until the returned function is called."""
    bench.ask(HOLD)
    with psycopg.connect(bench.dsn) as holder:
        holder.execute("LOCK TABLE public.held")
        yield holder.rollback


def end_who_waits(bench: Bench) -> None:
    """End the session whose settlement is blocked."""
    (waiting,) = bench.wait_until(lambda: bench.ask(WAITS))
    assert bench.ask("SELECT pg_terminate_backend(%(pid)s, 10000) AS gone", pid=waiting["pid"])[0]["gone"]


def wait_for_settling(child: Child) -> None:
    """Wait until the status board shows that the worker settles.

    Otherwise the supervisor would interrupt it at its last job's deadline. The board is memory and
    sends no event, so this function polls it.
    """
    until = time.monotonic() + LIMIT
    while (now := child.board.now()) is None or now.phase is not Phase.SETTLING:
        assert time.monotonic() < until, f"the status board still shows {now}"
        select.select([], [], [], 0.002)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind counts as short in the workers that are forked here, even if they are delayed between two jobs."""
    monkeypatch.setattr(Durations, "expected", lambda _self, _kind: 0.0)
    monkeypatch.setattr(worker, "MAX_UNSETTLED", 600.0)
    monkeypatch.setattr(claimer, "AHEAD", 0.0)
    # Otherwise a slow claim is followed by a query for its cause.
    monkeypatch.setattr(ScanStart, "note_claim", lambda *_args, **_how: None)


@pytest.fixture
def only_in_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker dies if it sends a claim together with the settlement of a claim that was made in another session.

    A crash of the server may have lost the older claim and its fencing token, and the new claim may
    get the same token.
    """
    claimed: dict[int, int] = {}

    def take(in_flight: InFlightClaim, batch: list[JobRow], real: Callable[..., None] = InFlightClaim.take) -> None:
        claimed[in_flight.token] = in_flight._session.sessions
        real(in_flight, batch)

    monkeypatch.setattr(InFlightClaim, "take", take)
    for name in ("settle_and_claim", "claim_ahead"):

        def guarded(settler: Settler, token: int, *args: Any, real: Any = getattr(Settler, name), **how: Any) -> object:
            if claimed[token] != settler._session.sessions:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(settler, token, *args, **how)

        monkeypatch.setattr(Settler, name, guarded)


def load(bench: Bench) -> tuple[list[int], int]:
    """Enqueue a job that finishes at once, and one for the next claim.

    The first claim of a worker has one job.
    """
    with bench.connection.transaction():
        return [bench.enqueue("act:nothing")], bench.enqueue("act:gated", name="c")


def half_lost(bench: Bench, gate: Gate) -> tuple[Child, list[int], int, Arrival]:
    """Return a worker that runs a job of its second claim, while the settlement of its first claim is lost.

    Also return the jobs of the first claim, that of the second, and the arrival of the latter at the gate.
    """
    with settlements_wait(bench) as go_on:
        done, last = load(bench)
        child = bench.start(most_claimed=2, claim_window=60.0)
        arrival = gate.wait_arrival("c")
        end_who_waits(bench)
        go_on()
    return child, done, last, arrival


def once(bench: Bench, jobs: list[int]) -> None:
    rows = [bench.wait(job, "completed") for job in jobs]
    assert [(row["attempts"], len(row["history"])) for row in rows] == [(1, 1)] * len(jobs)


def states(bench: Bench, jobs: list[int]) -> list[str]:
    return [bench.job(job)["state"] for job in jobs]


@pytest.mark.usefixtures("short")
def test_job_of_the_next_claim_runs_while_the_settlement_waits(bench: Bench, gate: Gate):
    with settlements_wait(bench) as go_on:
        done, last = load(bench)
        child = bench.start(most_claimed=2, claim_window=60.0)
        arrival = gate.wait_arrival("c")
        assert states(bench, [*done, last]) == ["running"] * 2
        first, second = sorted(child.board.outcomes.claims())
        assert [one.job for one in finished_of(child.board, first)] == done
        assert finished_of(child.board, second) == []
        assert (child.board.held, child.board.outcomes.is_doubled) == (0, True), (
            "otherwise the supervisor would not offload the previous claim"
        )
        go_on()
        once(bench, done)
        assert bench.job(last)["state"] == "running"
        arrival.open()
        once(bench, [last])
        assert child.dismiss() == EXIT_REQUESTED
        assert child.log() == ""


def test_job_that_may_be_long_starts_after_the_outcomes_of_the_previous_claim_are_recorded(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "MAX_UNSETTLED", 600.0)
    monkeypatch.setattr(claimer, "AHEAD", 0.0)
    monkeypatch.setattr(ScanStart, "note_claim", lambda *_args, **_how: None)
    child = bench.start(most_claimed=2, claim_window=60.0)
    known = bench.enqueue("act:nothing")
    child.nudge()
    once(bench, [known])
    child.wait_idle()
    with settlements_wait(bench) as go_on:
        done, last = load(bench)
        child.nudge()
        bench.wait_until(lambda: bench.ask(WAITS))
        assert bench.job(last)["state"] == "running", "the job is claimed"
        wait_for_settling(child)
        assert bench.job(last)["state"] == "running"
        assert child.board.jobs_started == 1 + len(done), "the job must not start, although it had a round trip's time"
        go_on()
        arrival = gate.wait_arrival("c")
        assert states(bench, done) == ["completed"]
        arrival.open()
        once(bench, [last])


@pytest.mark.usefixtures("short", "only_in_its_session")
def test_lost_settlement_is_recorded_by_the_next_session_and_no_job_runs_again(bench: Bench, gate: Gate):
    child, done, last, arrival = half_lost(bench, gate)
    arrival.open()
    once(bench, [*done, last])
    assert "released" not in child.log(), "the worker knew both claims"
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("refusal", [REFUSE, REFUSE_LATE], ids=["at once", "at its commit"])
def test_settlement_that_is_rejected_next_to_a_claim_is_recorded_job_by_job(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch, refusal: str, ahead: bool
):
    monkeypatch.setattr(claimer, "AHEAD", 0.0 if ahead else 600.0)
    bench.ask(refusal)
    done, last = load(bench)
    child = bench.start(most_claimed=2, claim_window=60.0)
    gate.wait_arrival("c").open()
    once(bench, [*done, last])
    assert "the database rejected the outcomes of a claim, writing them job by job" in child.log()
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("ahead", [True, False])
def test_no_job_runs_under_a_claim_that_is_rejected_at_its_commit(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch, ahead: bool
):
    monkeypatch.setattr(claimer, "AHEAD", 0.0 if ahead else 600.0)
    bench.ask(REFUSE_CLAIM_LATE)
    done, last = load(bench)
    child = bench.start(most_claimed=2, claim_window=60.0)
    arrival = gate.wait_arrival("c")
    assert bench.ask("SELECT last_value FROM public.tries") == [{"last_value": 3}], "a third claim was made"
    assert bench.job(last)["state"] == "running"
    arrival.open()
    once(bench, [*done, last])
    assert child.dismiss() == EXIT_REQUESTED
    assert "was lost" not in child.log()


@pytest.mark.usefixtures("short")
def test_dismissed_worker_records_all_outcomes_before_it_exits(bench: Bench, gate: Gate):
    bench.ask(REFUSE)
    with settlements_wait(bench) as go_on:
        done, last = load(bench)
        child = bench.start(most_claimed=2, claim_window=60.0)
        arrival = gate.wait_arrival("c")
        child.board.dismiss()
        child.close_wake()
        arrival.open()
        wait_for_settling(child)
        go_on()
        assert child.wait() == EXIT_REQUESTED
        assert states(bench, [*done, last]) == ["completed"] * 2


@pytest.mark.usefixtures("short")
def test_worker_shows_no_running_job_while_it_waits_for_a_settlement(bench: Bench, gate: Gate):
    with settlements_wait(bench) as go_on:
        done, last = load(bench)
        child = bench.start(most_claimed=2, claim_window=60.0)
        gate.wait_arrival("c").open()
        bench.wait_until(lambda: bench.ask(WAITS))
        wait_for_settling(child)
        go_on()
        once(bench, [*done, last])


@pytest.mark.usefixtures("short")
def test_outcomes_of_the_previous_claim_are_recorded_if_a_transaction_settles_the_current(bench: Bench):
    bench.ask(REFUSE)
    with bench.connection.transaction():
        jobs = [bench.enqueue("act:nothing"), bench.enqueue("act:transactional")]
    child = bench.start(most_claimed=2, claim_window=60.0)
    once(bench, jobs)
    child.wait_idle()
    assert child.board.outcomes.claims() == []


@pytest.mark.usefixtures("short")
def test_no_session_is_opened_while_a_settlement_is_sent_together_with_a_claim(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    real, cut = Session.run_both, []

    def run_both(session: Session, *letters: Any) -> object:
        if not cut:
            cut.append(session._connection.close())
        before = session.sessions
        try:
            return real(session, *letters)
        finally:
            if session.sessions != before:
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Session, "run_both", run_both)
    jobs = [bench.enqueue("act:says", what="poison"), bench.enqueue("act:nothing")]
    child = bench.start(most_claimed=2, claim_window=60.0)
    for job in jobs:
        bench.wait(job, "failed", "completed")
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "why",
    [
        "jobs of microseconds",
        "batches of one",
        "no supervisor looks after it",
        "a cap",
        "what failed",
        "what does not fit on the board",
    ],
)
def test_worker_makes_no_claim_ahead_of_a_settlement_if_the_conditions_are_not_met(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, why: str
):
    monkeypatch.setattr(Settler, "claim_ahead", lambda *_args, **_how: os.kill(os.getpid(), signal.SIGKILL))
    kind, given, batch, hold = "act:nothing", {}, 2, 60.0
    if why == "jobs of microseconds":
        monkeypatch.setattr(claimer, "AHEAD", 600.0)
    elif why == "batches of one":
        batch = 1
    elif why == "no supervisor looks after it":
        hold = 0.0
    elif why == "a cap":
        bench.ask("SELECT jobherd.set_limit('default', 5)")
    elif why == "what failed":
        kind, given = "act:says", {"what": "poison"}
    else:
        kind, given = "act:returns", {"value": "x" * 140_000}
    jobs = [bench.enqueue(kind, **given) for _ in range(5)]
    child = bench.start(most_claimed=batch, claim_window=hold)
    for job in jobs:
        bench.wait(job, "completed", "failed")
    assert child.dismiss() == EXIT_REQUESTED


def two_in_hand(bench: Bench, gate: Gate) -> tuple[Child, list[int], Arrival]:
    """Return a worker that has finished one job and runs the next job of the same claim."""
    bench.enqueue("act:nothing")
    with bench.connection.transaction():
        jobs = [bench.enqueue("act:nothing"), bench.enqueue("act:gated", name="a")]
    child = bench.start(
        most_claimed=3, claim_window=0.0
    )  # With a claim window, kinds that the worker has not run yet are claimed alone.
    return child, jobs, gate.wait_arrival("a")


@pytest.mark.usefixtures("short")
def test_status_board_shows_since_when_an_outcome_waits_until_it_is_recorded(bench: Bench, gate: Gate):
    before = time.monotonic()
    child, jobs, arrival = two_in_hand(bench, gate)
    assert before < child.board.unwritten < time.monotonic()
    last = bench.enqueue("act:gated", name="b")
    arrival.open()
    arrival = gate.wait_arrival("b")
    assert child.board.unwritten == 0.0, "the claim of the outcome is settled"
    arrival.open()
    once(bench, [*jobs, last])


def test_no_outcome_waits_behind_a_job_that_may_be_long(bench: Bench, gate: Gate):
    child, jobs, arrival = two_in_hand(bench, gate)
    assert child.board.held == 2
    assert child.board.unwritten == 0.0, "the outcome was recorded before the job started"
    assert states(bench, jobs) == ["completed", "running"]
    arrival.open()
    once(bench, jobs)


def help_it(bench: Bench, child: Child) -> None:
    """Record the outcomes of the worker's finished jobs, as its supervisor does for a straggler."""
    assert (now := child.board.now()) is not None
    child.board.announce_flush(now.token)
    for token in child.board.outcomes.claims():
        if finished := finished_of(child.board, token):
            bench.ask(
                sql.load("settle/settle_jobs"),
                **settlement(now.child, token, finished, ran_on="test/1", now=time.monotonic()),
            )


@pytest.fixture
def other(bench: Bench) -> Iterator[Seat]:
    """A worker of another supervisor."""
    with Queue(bench.dsn) as queue:
        yield queue.child()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("stands", [True, False])
def test_worker_finds_a_claim_with_offloaded_outcomes_lost_only_if_it_is_lost(
    bench: Bench, gate: Gate, other: Seat, stands: bool
):
    """The worker finds the loss when it settles. Until then, it runs further short jobs of the claim.

    PostgreSQL rejects their outcomes, so only the worker that holds the claim now records one for each job.
    """
    with bench.connection.transaction():
        jobs = [
            bench.enqueue("act:nothing"),
            bench.enqueue("act:gated", name="a"),
            bench.enqueue("act:gated", name="b"),
        ]
    child = bench.start(most_claimed=3, claim_window=0.0)
    arrival = gate.wait_arrival("a")
    help_it(bench, child)
    assert states(bench, jobs) == ["completed", "running", "running"]
    if not stands:
        (moved,) = bench.ask(
            "UPDATE jobherd.running SET child = %(child)s, token = token + 1000000 RETURNING token", child=other.id
        )
    arrival.open()
    gate.wait_arrival("b").open()
    assert child.dismiss() == EXIT_REQUESTED
    assert ("was lost" in child.log()) is not stands
    if not stands:
        assert states(bench, jobs) == ["completed", "running", "running"]
        assert other.settle(moved["token"], jobs[1:], "ok") == jobs[1:]
    once(bench, jobs)


@pytest.mark.usefixtures("short")
def test_worker_does_not_find_its_previous_claim_lost_after_an_offload(bench: Bench, gate: Gate):
    child, done, last, arrival = half_lost(bench, gate)
    help_it(bench, child)
    once(bench, done)
    arrival.open()
    once(bench, [last])
    assert child.dismiss() == EXIT_REQUESTED
    assert "was lost" not in child.log()


@pytest.mark.usefixtures("short")
def test_worker_does_not_find_its_claim_lost_if_a_transaction_begins_after_an_offload(bench: Bench, gate: Gate):
    with bench.connection.transaction():
        jobs = [bench.enqueue("act:nothing"), bench.enqueue("act:transactional_late", name="a")]
    child = bench.start(most_claimed=2, claim_window=0.0)
    arrival = gate.wait_arrival("a")
    help_it(bench, child)
    assert states(bench, jobs) == ["completed", "running"]
    arrival.open()
    once(bench, jobs)
    assert child.dismiss() == EXIT_REQUESTED
    assert "was lost" not in child.log()
