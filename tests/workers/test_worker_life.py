"""A worker's life as its supervisor sees it: start, READY, wakes, claims, signals, dismissal."""

from __future__ import annotations

import os
import signal
import sys
import time

import psycopg
import pytest

from jobherd import sql
from jobherd.supervisor.crash.unrecorded_outcomes import finished_of
from jobherd.workers.claim import claimer
from jobherd.workers.database.waiting import StopWaiting
from jobherd.workers.database.wire import Wire
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.current_work import Phase, Reason
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_RECYCLE, EXIT_REQUESTED, MoreWork, Problem, Ready, WentIdle
from jobherd.workers.maintenance.maintenance import Maintenance
from jobherd.workers.process.state_guard import StateGuard
from tests.support.gate import Gate
from tests.support.patience import LIMIT
from tests.support.pooler import PROGRAM, Pooler
from tests.support.processes import wait_for_exit
from tests.support.seats import Bench, count_of


def test_worker_reports_ready_with_its_child_id_and_backend_pid(bench: Bench):
    child = bench.fork()
    ready = child.wait_report(Ready)
    row = bench.ask("SELECT id, backend_pid, pid FROM jobherd.children")[0]
    assert (row["id"], row["backend_pid"], row["pid"]) == (ready.child, ready.backend, child.pid)
    assert child.board.database
    assert child.dismiss() == EXIT_REQUESTED


def test_new_worker_runs_a_job_enqueued_before_it_started(bench: Bench):
    job = bench.enqueue("act:returns", value={"n": 1})
    child = bench.start()
    row = bench.wait(job, "completed")
    assert (row["result"], row["attempts"], row["ran_on"]) == ({"n": 1}, 1, f"test/{child.pid}")
    assert row["started_at"] <= row["finished_at"]


@pytest.mark.promise("C9")
def test_wake_makes_an_idle_worker_claim(bench: Bench):
    child = bench.start()
    first = bench.enqueue("act:nothing")
    child.nudge()
    bench.wait(first, "completed")
    second = bench.enqueue("act:nothing")
    child.nudge()
    bench.wait(second, "completed")


def test_status_board_shows_the_outcome_if_the_worker_dies_while_it_restores_its_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(StateGuard, "restore", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    jobs = [bench.enqueue("act:returns", value={"n": number}) for number in range(2)]
    child = bench.fork(most_claimed=2)
    assert child.wait() == -signal.SIGKILL
    now = child.board.now()
    assert now is not None
    assert [one.job for one in finished_of(child.board, now.token)] == jobs[:1], (
        "the outcome was not on the status board yet"
    )


@pytest.mark.promise("A11", "C9", "C27")
def test_worker_polls_and_finds_a_job_without_a_wake(bench: Bench):
    bench.start(poll=0.05)
    bench.wait(bench.enqueue("act:nothing"), "completed")


def test_woken_worker_reports_more_work_if_its_claim_is_full(bench: Bench, gate: Gate):
    child = bench.start()
    child.wait_idle()
    for name in "abc":
        bench.enqueue("act:gated", name=name)
    child.nudge()
    arrival = gate.wait_arrival("a")
    child.wait_report(MoreWork)
    arrival.open()
    gate.wait_arrival("b").open()
    gate.wait_arrival("c").open()


def test_worker_releases_and_runs_a_job_claimed_in_its_name_whose_answer_was_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(claimer, "CHECK", 0.0)
    child = bench.start()
    child.wait_idle()
    job = bench.enqueue("act:returns", value=1)
    claim_unheard(bench, job)
    child.nudge()
    assert bench.wait(job, "completed")["attempts"] == 1, "the job did not start under the lost claim"


def test_busy_worker_also_releases_a_job_claimed_in_its_name_whose_answer_was_lost(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(claimer, "CHECK", 0.0)
    bench.enqueue("act:gated", name="a")
    bench.start()
    arrival = gate.wait_arrival("a")
    job = bench.enqueue("act:returns", options={"priority": -1}, value=1)
    claim_unheard(bench, job)
    bench.enqueue("act:gated", name="b")
    arrival.open()
    last = gate.wait_arrival("b")
    assert bench.job(job)["state"] == "completed"
    last.open()


@pytest.mark.skipif(not os.path.exists(PROGRAM), reason="Debian's pgbouncer is not installed: make pgbouncer")
def test_worker_behind_a_pooler_checks_for_lost_claims_without_a_wake(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claimer, "CHECK", 0.2)
    with Pooler(bench.dsn, "transaction") as pooler:
        child = bench.start(dsn=pooler.dsn)
        child.wait_idle()
        claim = claim_of(bench)
        with psycopg.connect(bench.dsn) as other:  # No worker can see the job before it is claimed.
            (job,) = other.execute("SELECT jobherd.enqueue('act:returns', '{\"value\": 1}')").fetchone()
            assert other.execute(sql.load("claim/claim_job"), claim).fetchone()[1] == job
        assert bench.wait(job, "completed")["attempts"] == 1


@pytest.mark.skipif(not os.path.exists(PROGRAM), reason="Debian's pgbouncer is not installed: make pgbouncer")
def test_worker_behind_a_pooler_rejects_the_answer_of_another_clients_prepared_statement(bench: Bench):
    """If all clients share one backend, no PREPARE fails, so the worker prepares its statements.

    Another client can prepare a different statement under the same name.
    """
    with Pooler(bench.dsn, "transaction", size=1) as pooler:
        child = bench.start(dsn=pooler.dsn)
        child.wait_idle()
        job = bench.enqueue("act:returns", value=1)
        child.nudge()
        bench.wait(job, "completed")
        child.wait_idle()
        with psycopg.connect(pooler.dsn, autocommit=True) as other:
            for name, types in other.execute(
                "SELECT name, parameter_types::text[] FROM pg_prepared_statements WHERE name ~ 'claim'"
            ).fetchall():
                other.execute(f'DEALLOCATE "{name}"')
                other.execute(f"""PREPARE "{name}" ({", ".join(types)}) AS SELECT 'somebody' AS "else" WHERE false""")
        job = bench.enqueue("act:returns", value=1)
        child.nudge()
        bench.wait(job, "completed")
        assert "a pooler has mixed them up" in child.log()


def claim_of(bench: Bench) -> dict[str, object]:
    """Return the parameters of a claim by the only worker."""
    (child,) = bench.ask("SELECT id FROM jobherd.children")
    return {
        "supervisor": bench.supervisor,
        "child": child["id"],
        "served": None,
        "turns": None,
        "avoided": None,
        "short": None,
    }


def claim_unheard(bench: Bench, job: int) -> None:
    """Claim the job in the name of the only worker, which does not receive the answer."""
    with psycopg.connect(bench.dsn, autocommit=True) as other:
        [[row]] = Wire(other, "jobherd", prepared=False).exchange(("claim/claim_job", claim_of(bench)))
    assert row[1] == job  # The claim is committed. By now the worker may have released the job.


def test_maintenance_process_that_is_dismissed_during_its_work_closes_its_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    def leave(*_: object) -> None:
        raise StopWaiting("there is no more use in waiting")

    monkeypatch.setattr(Maintenance, "_do_what_is_due", leave)
    # psycopg warns if an open connection is garbage-collected. The warning must fail this test.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: os._exit(77))
    assert bench.fork("maintenance").wait() == EXIT_REQUESTED


def test_worker_reports_that_it_is_idle_only_while_its_supervisor_gets_no_notifications(bench: Bench):
    child = bench.start()
    child.wait_report(WentIdle)
    assert (child.board.idle, child.board.times_idle) == (True, 1)
    bench.control.notified = True
    job = bench.enqueue("act:nothing")
    child.nudge()
    bench.wait(job, "completed")
    child.wait_idle()
    assert child.dismiss() == EXIT_REQUESTED
    assert child.board.times_idle >= 2
    assert WentIdle not in {type(report) for report in child.inbox.take(os.read(child.report, 65536))}


def test_worker_stores_the_kinds_of_its_handlers(bench: Bench):
    bench.start()
    row = bench.ask("SELECT * FROM jobherd.kinds WHERE name = 'act:raises'")[0]
    assert (row["max_attempts"], row["keep_completed"], row["keep_failed"]) == (3, 7, 30)


def test_worker_reports_a_broken_module_before_ready_and_exits(bench: Bench, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "mail.py").write_text("from jobherd import handler\nimport no_such_thing\n")
    child = bench.fork(handlers=(str(tmp_path),))
    assert child.wait() == EXIT_HANDLERS
    problem = child.wait_report(Problem)
    assert "mail.py:2" in problem.text
    assert "no_such_thing" in problem.text


def test_worker_reports_a_folder_without_handlers_and_exits(bench: Bench, tmp_path):
    child = bench.fork(handlers=(str(tmp_path),))
    assert child.wait() == EXIT_HANDLERS
    assert str(tmp_path) in child.wait_report(Problem).text


def test_worker_reports_missing_hooks_with_the_setting_that_names_them(bench: Bench, tmp_path):
    child = bench.fork(hooks=(str(tmp_path / "nowhere"),))
    assert child.wait() == EXIT_HANDLERS
    assert "check --hooks and JOBHERD_HOOKS" in child.wait_report(Problem).text


def test_worker_survives_a_log_record_factory_that_raises_between_two_jobs(bench: Bench, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "mail.py").write_text(
        "import logging\n"
        "from jobherd import handler\n\n"
        "def make(*_):\n    raise LookupError('no job runs')\n\n"
        "logging.setLogRecordFactory(make)\n\n"
        "@handler('mail:receipt')\ndef receipt() -> None: ...\n"
    )
    child = bench.start(handlers=(str(tmp_path),))
    bench.ask("SELECT pg_terminate_backend(backend_pid, 10000) FROM jobherd.children")
    job = bench.enqueue("mail:receipt")
    child.nudge()
    bench.wait(job, "completed")
    assert child.dismiss() == EXIT_REQUESTED


def test_worker_exits_if_the_row_of_its_supervisor_is_gone(bench: Bench):
    bench.ask("DELETE FROM jobherd.supervisors")
    assert bench.fork().wait() == EXIT_REQUESTED


def test_dismissed_worker_finishes_the_running_job_and_claims_no_other(bench: Bench, gate: Gate):
    child = bench.start()
    job = bench.enqueue("act:gated", name="a")
    later = bench.enqueue("act:gated", name="b")
    child.nudge()
    arrival = gate.wait_arrival("a")
    child.close_wake()
    arrival.open("done")
    assert child.wait() == EXIT_REQUESTED
    assert bench.wait(job, "completed")["result"] == "done"
    assert bench.job(later)["state"] == "ready"


def test_worker_sees_a_dismissal_behind_an_unread_wake_and_claims_nothing(bench: Bench, gate: Gate):
    child = bench.start()
    bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    claims = child.board.claims
    child.nudge()
    child.close_wake()
    arrival.open()
    assert child.wait() == EXIT_REQUESTED
    assert child.board.claims == claims


def test_dismissed_worker_releases_the_jobs_that_it_has_not_started(bench: Bench, gate: Gate):
    jobs = [bench.enqueue("act:gated", name=name) for name in "abc"]
    child = bench.start(most_claimed=3)
    arrival = gate.wait_arrival("a")
    child.close_wake()
    arrival.open()
    assert child.wait() == EXIT_REQUESTED
    assert [bench.job(job)["state"] for job in jobs] == ["completed", "ready", "ready"]
    assert [bench.job(job)["attempts"] for job in jobs] == [1, 0, 0]
    assert bench.ask("SELECT 1 FROM jobherd.attempts") == []
    assert count_of(child, "act:gated", "abandoned") == 2


def test_worker_of_a_draining_supervisor_releases_unstarted_jobs_and_claims_nothing(bench: Bench, gate: Gate):
    jobs = [bench.enqueue("act:gated", name=name) for name in "ab"]
    child = bench.start(most_claimed=2)
    arrival = gate.wait_arrival("a")
    bench.control.draining = True
    arrival.open()
    bench.wait(jobs[0], "completed")
    bench.wait(jobs[1], "ready")
    claims = child.board.claims
    assert child.dismiss() == EXIT_REQUESTED
    assert child.board.claims == claims


def test_worker_claims_nothing_once_its_supervisors_lease_has_expired(bench: Bench):
    child = bench.start()
    child.wait_idle()  # The first claim has checked the lease before the test changes it.
    bench.control.lease_deadline = time.monotonic() - 1
    job = bench.enqueue("act:nothing")
    claims = child.board.claims
    child.nudge()
    child.wait_heard()  # Otherwise the worker may exit before the point where it would have claimed.
    assert child.dismiss() == EXIT_REQUESTED
    assert child.board.claims == claims
    assert bench.job(job)["state"] == "ready"


def test_worker_claims_again_once_the_lease_is_renewed(bench: Bench):
    bench.control.lease_deadline = 0.0
    bench.start()
    job = bench.enqueue("act:nothing")
    bench.control.lease_deadline = time.monotonic() + 600
    bench.wait(job, "completed")


def test_worker_notifies_others_once_of_the_place_that_it_leaves_under_a_concurrency_limit(bench: Bench):
    """If each empty claim sent the notification again, idle workers would wake each other indefinitely."""
    bench.ask("SELECT jobherd.set_limit(kind => 'act:nothing', max_running => 1)")
    job = bench.enqueue("act:nothing")
    with psycopg.connect(bench.dsn, autocommit=True) as parent:
        parent.execute("LISTEN jobherd_jobs")
        parent.execute(sql.load("wake/enable_notify"))
        child = bench.start()
        bench.wait(job, "completed")
        assert [heard.payload for heard in parent.notifies(timeout=LIMIT, stop_after=1)] == ["*"]
        child.wait_idle()
        child.nudge()
        child.wait_heard()
        assert child.dismiss() == EXIT_REQUESTED
        assert list(parent.notifies(timeout=0)) == []


def test_idle_worker_exits_on_sigterm(bench: Bench):
    child = bench.start()
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == EXIT_REQUESTED


def test_busy_worker_finishes_its_job_on_sigterm_and_releases_the_next(bench: Bench, gate: Gate):
    child = bench.start(most_claimed=2)
    jobs = [bench.enqueue("act:gated", name=name) for name in "ab"]
    child.nudge()
    arrival = gate.wait_arrival("a")
    os.kill(child.pid, signal.SIGTERM)
    arrival.open("all of it")
    assert child.wait() == EXIT_REQUESTED
    assert bench.job(jobs[0])["result"] == "all of it"
    assert bench.job(jobs[1])["state"] == "ready"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGALRM, signal.SIGUSR2]
)
def test_worker_continues_its_job_after_signals_without_a_request(bench: Bench, gate: Gate, number: int):
    child = bench.start()
    job = bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    os.kill(child.pid, number)
    arrival.open("on")
    assert bench.wait(job, "completed")["result"] == "on"
    assert child.dismiss() == EXIT_REQUESTED


def test_sigquit_ends_a_busy_worker_at_once(bench: Bench, gate: Gate):
    child = bench.start()
    bench.enqueue("act:gated", name="a")
    child.nudge()
    gate.wait_arrival("a")
    os.kill(child.pid, signal.SIGQUIT)
    assert child.wait() == 128 + signal.SIGQUIT


def test_sigusr1_writes_the_stack_to_the_status_board(bench: Bench, gate: Gate):
    child = bench.start()
    bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    os.kill(child.pid, signal.SIGUSR1)
    arrival.open()
    assert child.dismiss() == EXIT_REQUESTED
    assert b"in at_gate" in child.board.stacks()
    assert child.board.trace() == "", "the stack was written where the trace of a crash belongs"


def test_status_board_shows_the_running_job(bench: Bench, gate: Gate):
    child = bench.start()
    job = bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    now = child.board.now()
    assert (now.phase, now.job, now.attempts, now.max_attempts, child.board.tally.policy(now.kind).name) == (
        Phase.RUNNING,
        job,
        1,
        5,
        "act:gated",
    )
    assert now.deadline == pytest.approx(now.started + 600)
    assert not child.board.idle
    arrival.open()
    bench.wait(job, "completed")
    assert child.board.jobs_started == 1
    assert count_of(child, "act:gated", "ok") == 1


def test_worker_starts_with_a_clean_process_state_and_its_own_title(bench: Bench):
    child = bench.start()
    job = bench.enqueue("act:where")
    child.nudge()
    found = bench.wait(job, "completed")["result"]
    assert found["pid"] == child.pid
    assert found["mark"] == f"{ControlBlock().owner}:{child.spec.incarnation}"
    assert found["title"] == f"jobherd: worker 0 act:where #{job}"
    assert found["blocked"] == 0
    assert found["ignored"] == 0
    assert found["stdin"] == "/dev/null"


def test_orphaned_worker_interrupts_and_releases_its_job_and_exits(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jobherd.workers.process.interrupt._LAST_WORDS", LIMIT)
    job = bench.enqueue("act:gated", name="a")
    parent, pid = bench.start_orphan_to_be()
    gate.wait_arrival("a")
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    os.kill(pid, signal.SIGTERM)  # The kernel sends this signal to a worker that has requested it.
    wait_for_exit(pid)
    assert bench.wait(job, "ready")["attempts"] == 0


def test_orphaned_worker_that_cannot_release_its_job_kills_its_process_group(bench: Bench, gate: Gate):
    bench.enqueue("act:deaf", name="a")
    parent, pid = bench.start_orphan_to_be()
    arrival = gate.wait_arrival()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    os.kill(pid, signal.SIGTERM)
    wait_for_exit(pid)
    wait_for_exit(int(arrival.label.split()[1]))


def test_worker_exits_if_its_supervisor_died_before_the_worker_began(bench: Bench):
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    assert bench.fork(parent=gone).wait() == EXIT_REQUESTED


def test_idle_orphan_exits_when_its_wake_pipe_is_closed(bench: Bench):
    parent, pid = bench.start_orphan_to_be()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_for_exit(pid)


@pytest.mark.parametrize("what", ["thread", "handlers", "mask"])
def test_worker_exits_for_replacement_after_a_job_leaves_a_change_that_cannot_be_restored(bench: Bench, what: str):
    child = bench.start()
    job = bench.enqueue("act:mess", what=what)
    child.nudge()
    assert child.wait() == EXIT_RECYCLE
    assert bench.job(job)["state"] == "completed"


@pytest.mark.parametrize("what", ["daemon", "chdir", "depth", "fork"])
def test_worker_restores_its_process_state_before_the_next_job(bench: Bench, what: str):
    child = bench.start()
    first, then = bench.enqueue("act:mess", what=what), bench.enqueue("act:where")
    child.nudge()
    assert bench.wait(first, "completed")["result"] == "done"
    found = bench.wait(then, "completed")["result"]
    assert (found["cwd"], found["depth"], found["pid"]) == (os.getcwd(), sys.getrecursionlimit(), child.pid)
    assert child.dismiss() == EXIT_REQUESTED


def test_job_that_stops_the_timer_does_not_disable_the_timeout_of_the_next_job(bench: Bench):
    first, then = bench.enqueue("act:mess", what="timer"), bench.enqueue("act:slow")
    child = bench.start()
    bench.wait(first, "completed")
    assert child.wait() == EXIT_RECYCLE
    row = bench.job(then)
    if row["attempts"] == 0:  # The worker exited before this job.
        bench.start()
        row = bench.wait(then, "retrying")
    assert row["error_code"] == "JOB_TIMEOUT"


def test_worker_logs_a_lost_claim_and_records_no_outcome(bench: Bench, gate: Gate):
    child = bench.start()
    job = bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    bench.ask("DELETE FROM jobherd.running")
    next_one = bench.enqueue("act:nothing")
    arrival.open()
    bench.wait(next_one, "completed")
    assert bench.job(job) is None
    assert f"jobs={job}" in child.log()


def test_interruption_for_a_lost_claim_ends_the_job_and_records_nothing(bench: Bench, gate: Gate):
    child = bench.start(most_claimed=2)
    child.wait_idle()  # Otherwise the first claim may find only the first of the two jobs.
    job, other = (bench.enqueue("act:gated", name=name) for name in "ab")
    child.nudge()
    arrival = gate.wait_arrival("a")
    child.interrupt(Reason.LOST)
    arrival.wait_gone()
    assert child.wait() == EXIT_RECYCLE
    # The worker that holds the newer claim records their outcomes.
    assert {bench.job(job)["state"], bench.job(other)["state"]} == {"running"}
