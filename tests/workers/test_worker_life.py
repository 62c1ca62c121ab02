"""Boot, READY, nudges, dismissal: a worker's life from its parent's side."""

from __future__ import annotations

import os
import signal
import sys
import time

import psycopg
import pytest

from jobherd import sql
from jobherd.supervisor.crash.unwritten import finished_of
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


def test_a_worker_says_ready_with_its_number_and_its_backend(bench: Bench):
    child = bench.fork()
    ready = child.wait_report(Ready)
    row = bench.ask("SELECT id, backend_pid, pid FROM jobherd.children")[0]
    assert (row["id"], row["backend_pid"], row["pid"]) == (ready.child, ready.backend, child.pid)
    assert child.board.database
    assert child.dismiss() == EXIT_REQUESTED


def test_a_job_that_was_there_before_the_worker_is_found(bench: Bench):
    job = bench.enqueue("act:returns", value={"n": 1})
    child = bench.start()
    row = bench.wait(job, "completed")
    assert (row["result"], row["attempts"], row["ran_on"]) == ({"n": 1}, 1, f"test/{child.pid}")
    assert row["started_at"] <= row["finished_at"]


@pytest.mark.promise("C9")
def test_a_nudge_wakes_an_idle_worker(bench: Bench):
    child = bench.start()
    first = bench.enqueue("act:nothing")
    child.nudge()
    bench.wait(first, "completed")
    second = bench.enqueue("act:nothing")
    child.nudge()
    bench.wait(second, "completed")


def test_a_death_while_the_process_is_put_right_repeats_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(StateGuard, "put_back", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    jobs = [bench.enqueue("act:returns", value={"n": number}) for number in range(2)]
    child = bench.fork(most_claimed=2)
    assert child.wait() == -signal.SIGKILL
    now = child.board.now()
    assert now is not None
    assert [one.job for one in finished_of(child.board, now.token)] == jobs[:1], "its outcome was not on the board yet"


@pytest.mark.promise("A11", "C9", "C27")
def test_a_job_is_found_without_a_nudge_after_the_poll(bench: Bench):
    bench.start(poll=0.05)
    bench.wait(bench.enqueue("act:nothing"), "completed")


def test_a_nudged_worker_that_fills_its_batch_says_that_there_is_more(bench: Bench, gate: Gate):
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


def test_a_claim_in_its_name_of_which_it_never_heard_is_given_back_and_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(claimer, "CHECK", 0.0)
    child = bench.start()
    child.wait_idle()
    job = bench.enqueue("act:returns", value=1)
    claim_unheard(bench, job)
    child.nudge()
    assert bench.wait(job, "completed")["attempts"] == 1, "it did not start before"


def test_one_that_is_always_busy_gives_back_what_it_never_heard_of_too(
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
def test_behind_a_pooler_it_asks_for_them_without_being_called(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claimer, "CHECK", 0.2)
    with Pooler(bench.dsn, "transaction") as pooler:
        child = bench.start(dsn=pooler.dsn)
        child.wait_idle()
        claim = claim_of(bench)
        with psycopg.connect(bench.dsn) as other:  # nobody sees the job before it is claimed
            (job,) = other.execute("SELECT jobherd.enqueue('act:returns', '{\"value\": 1}')").fetchone()
            assert other.execute(sql.load("claim/claim_job"), claim).fetchone()[1] == job
        assert bench.wait(job, "completed")["attempts"] == 1


@pytest.mark.skipif(not os.path.exists(PROGRAM), reason="Debian's pgbouncer is not installed: make pgbouncer")
def test_behind_a_pooler_no_answer_of_somebody_else_is_believed_to_a_statement_that_is_prepared(bench: Bench):
    """With one backend for all nothing is refused, so all is prepared.

    Under the names that another client may have given to statements of its own.
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
    """What the one child would ask for."""
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
    """Claim it in the name of the one child, which does not hear of it."""
    with psycopg.connect(bench.dsn, autocommit=True) as other:
        [[row]] = Wire(other, "jobherd", prepared=False).exchange(("claim/claim_job", claim_of(bench)))
    assert row[1] == job  # and committed; by now the child may have given it back


def test_a_maintenance_process_that_leaves_in_the_middle_ends_its_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    def leave(*_: object) -> None:
        raise StopWaiting("there is no more use in waiting")

    monkeypatch.setattr(Maintenance, "_do_what_is_due", leave)
    # who lets go of an open connection is told so by psycopg
    monkeypatch.setattr(sys, "unraisablehook", lambda _: os._exit(77))
    assert bench.fork("maintenance").wait() == EXIT_REQUESTED


def test_one_that_goes_idle_while_the_parent_hears_nothing_says_so(bench: Bench):
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


def test_kinds_that_the_handlers_declare_are_entered(bench: Bench):
    bench.start()
    row = bench.ask("SELECT * FROM jobherd.kinds WHERE name = 'act:raises'")[0]
    assert (row["max_attempts"], row["keep_completed"], row["keep_failed"]) == (3, 7, 30)


def test_a_broken_module_is_reported_before_ready_and_ends_the_child(bench: Bench, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "mail.py").write_text("from jobherd import handler\nimport no_such_thing\n")
    child = bench.fork(handlers=(str(tmp_path),))
    assert child.wait() == EXIT_HANDLERS
    problem = child.wait_report(Problem)
    assert "mail.py:2" in problem.text
    assert "no_such_thing" in problem.text


def test_a_folder_without_handlers_is_a_problem_too(bench: Bench, tmp_path):
    child = bench.fork(handlers=(str(tmp_path),))
    assert child.wait() == EXIT_HANDLERS
    assert str(tmp_path) in child.wait_report(Problem).text


def test_hooks_that_are_not_there_are_told_with_the_setting_that_names_them(bench: Bench, tmp_path):
    child = bench.fork(hooks=(str(tmp_path / "nowhere"),))
    assert child.wait() == EXIT_HANDLERS
    assert "check --hooks and JOBHERD_HOOKS" in child.wait_report(Problem).text


def test_a_record_factory_of_a_module_that_raises_between_two_jobs_ends_no_worker(bench: Bench, tmp_path):
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


def test_a_child_of_a_reclaimed_supervisor_leaves(bench: Bench):
    bench.ask("DELETE FROM jobherd.supervisors")
    assert bench.fork().wait() == EXIT_REQUESTED


def test_dismissal_lets_the_running_job_finish(bench: Bench, gate: Gate):
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


def test_a_nudge_on_its_way_does_not_hide_the_dismissal_behind_it(bench: Bench, gate: Gate):
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


def test_a_dismissed_worker_hands_back_what_it_has_not_started(bench: Bench, gate: Gate):
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


def test_a_draining_supervisor_s_worker_claims_nothing_and_hands_back_the_rest_of_its_batch(bench: Bench, gate: Gate):
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


def test_nothing_is_claimed_past_the_lease(bench: Bench):
    child = bench.start()
    child.wait_idle()  # its first claim is over: it looked at the lease before we change it
    bench.control.lease_deadline = time.monotonic() - 1
    job = bench.enqueue("act:nothing")
    claims = child.board.claims
    child.nudge()
    child.wait_heard()  # or it may leave before it would have claimed
    assert child.dismiss() == EXIT_REQUESTED
    assert child.board.claims == claims
    assert bench.job(job)["state"] == "ready"


def test_claims_go_on_once_the_lease_is_renewed(bench: Bench):
    bench.control.lease_deadline = 0.0
    bench.start()
    job = bench.enqueue("act:nothing")
    bench.control.lease_deadline = time.monotonic() + 600
    bench.wait(job, "completed")


def test_a_place_under_a_cap_that_was_left_is_told_once(bench: Bench):
    """Told again with each empty claim, idle workers would call each other for ever."""
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


def test_sigterm_to_an_idle_worker_makes_it_leave(bench: Bench):
    child = bench.start()
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == EXIT_REQUESTED


def test_sigterm_to_a_busy_worker_lets_the_job_finish(bench: Bench, gate: Gate):
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
def test_signals_that_are_not_meant_for_it_change_nothing(bench: Bench, gate: Gate, number: int):
    child = bench.start()
    job = bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    os.kill(child.pid, number)
    arrival.open("on")
    assert bench.wait(job, "completed")["result"] == "on"
    assert child.dismiss() == EXIT_REQUESTED


def test_sigquit_ends_it_at_once(bench: Bench, gate: Gate):
    child = bench.start()
    bench.enqueue("act:gated", name="a")
    child.nudge()
    gate.wait_arrival("a")
    os.kill(child.pid, signal.SIGQUIT)
    assert child.wait() == 128 + signal.SIGQUIT


def test_sigusr1_writes_the_stack_to_the_board(bench: Bench, gate: Gate):
    child = bench.start()
    bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    os.kill(child.pid, signal.SIGUSR1)
    arrival.open()
    assert child.dismiss() == EXIT_REQUESTED
    assert b"in at_gate" in child.board.stacks()
    assert child.board.trace() == "", "that of a crash has a place of its own"


def test_the_board_says_what_runs(bench: Bench, gate: Gate):
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


def test_a_child_starts_clean(bench: Bench):
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


def test_an_orphan_interrupts_its_job_hands_it_back_and_leaves(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jobherd.workers.process.interrupt._LAST_WORDS", LIMIT)
    job = bench.enqueue("act:gated", name="a")
    parent, pid = bench.start_orphan_to_be()
    gate.wait_arrival("a")
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    os.kill(pid, signal.SIGTERM)  # what the kernel sends when the fork had asked for it
    wait_for_exit(pid)
    assert bench.wait(job, "ready")["attempts"] == 0


def test_an_orphan_that_cannot_hand_its_job_back_ends_itself_and_its_group(bench: Bench, gate: Gate):
    bench.enqueue("act:deaf", name="a")
    parent, pid = bench.start_orphan_to_be()
    arrival = gate.wait_arrival()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    os.kill(pid, signal.SIGTERM)
    wait_for_exit(pid)
    wait_for_exit(int(arrival.label.split()[1]))


def test_a_child_whose_parent_died_before_it_had_begun_just_leaves(bench: Bench):
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    assert bench.fork(parent=gone).wait() == EXIT_REQUESTED


def test_an_idle_orphan_leaves_at_the_end_of_its_pipe(bench: Bench):
    parent, pid = bench.start_orphan_to_be()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_for_exit(pid)


@pytest.mark.parametrize("what", ["thread", "handlers", "mask"])
def test_a_child_whose_job_left_something_behind_is_not_reused(bench: Bench, what: str):
    child = bench.start()
    job = bench.enqueue("act:mess", what=what)
    child.nudge()
    assert child.wait() == EXIT_RECYCLE
    assert bench.job(job)["state"] == "completed"


@pytest.mark.parametrize("what", ["daemon", "chdir", "depth", "fork"])
def test_what_can_be_put_right_is_put_right_before_the_next_job(bench: Bench, what: str):
    child = bench.start()
    first, then = bench.enqueue("act:mess", what=what), bench.enqueue("act:where")
    child.nudge()
    assert bench.wait(first, "completed")["result"] == "done"
    found = bench.wait(then, "completed")["result"]
    assert (found["cwd"], found["depth"], found["pid"]) == (os.getcwd(), sys.getrecursionlimit(), child.pid)
    assert child.dismiss() == EXIT_REQUESTED


def test_a_job_that_stops_the_timer_does_not_free_the_next_one_from_its_own(bench: Bench):
    first, then = bench.enqueue("act:mess", what="timer"), bench.enqueue("act:slow")
    child = bench.start()
    bench.wait(first, "completed")
    assert child.wait() == EXIT_RECYCLE
    row = bench.job(then)
    if row["attempts"] == 0:  # it was replaced before it
        bench.start()
        row = bench.wait(then, "retrying")
    assert row["error_code"] == "JOB_TIMEOUT"


def test_a_lost_claim_is_logged_and_changes_nothing(bench: Bench, gate: Gate):
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


def test_an_order_that_the_claim_is_lost_ends_the_job_and_writes_nothing(bench: Bench, gate: Gate):
    child = bench.start(most_claimed=2)
    child.wait_idle()  # or its first claim finds the first of the two alone
    job, other = (bench.enqueue("act:gated", name=name) for name in "ab")
    child.nudge()
    arrival = gate.wait_arrival("a")
    child.interrupt(Reason.LOST)
    arrival.wait_gone()
    assert child.wait() == EXIT_RECYCLE
    assert {bench.job(job)["state"], bench.job(other)["state"]} == {"running"}  # the worker that has them ends them
