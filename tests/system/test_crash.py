"""A worker dies: its job runs again at once, its unstarted jobs are released, and the history explains the death."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import is_running, wait_for_exit

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


@pytest.mark.promise("A38", "C38")
def test_job_of_a_killed_worker_runs_again_at_once_and_fails_at_the_third_death(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, poll="300s")
    deadly = stage.enqueue("c:kill")
    row = stage.wait_state(deadly, "failed")
    assert (row["attempts"], row["crashes"], row["error_code"]) == (3, 3, "WORKER_CRASHED")
    assert [attempt["outcome"] for attempt in row["history"]] == ["retry", "retry", "failed"]
    for attempt in row["history"]:
        assert attempt["error_code"] == "WORKER_CRASHED"
        assert "died of SIGKILL (not sent by the supervisor)" in attempt["error"]
        assert f"c:kill #{row['id']}" in attempt["error"]
        assert attempt["post_mortem"]["signal"] == "SIGKILL"
        assert attempt["post_mortem"]["phase"] == "running"
        assert attempt["post_mortem"]["max_rss"] > 0
    assert len({attempt["ran_on"] for attempt in row["history"]}) == 3, "each attempt ran in another process"
    fleet.wait_ready(5)  # the first two, and a replacement for each that died

    job = stage.enqueue("t:gate", '{"label": "victim"}')
    arrival = gate.wait_arrival("victim")
    os.kill(arrival.pid, signal.SIGKILL)
    again = gate.wait_arrival("victim")
    assert again.pid != arrival.pid
    assert "scheduled" not in dict(stage.moves(job)), "the job runs again without a backoff"
    again.open("lived")
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "lived")
    assert stage.moves(job)[-1] == ("history", "completed")
    assert stage.completed_twice() == []


@pytest.mark.promise("E14")
def test_unstarted_jobs_of_a_dead_worker_are_released_without_counting_an_attempt(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, claim_size=5, claim_window="0s", poll="300s")
    with stage.connection.transaction():
        first, second, third = (
            stage.enqueue("t:gate", f'{{"label": "{name}"}}') for name in ("first", "second", "third")
        )
    arrival = gate.wait_arrival("first")
    assert stage.states([first, second, third]) == ["running"] * 3
    os.kill(arrival.pid, signal.SIGKILL)
    for name in ("first", "second", "third"):
        gate.wait_arrival(name).open()
    stage.wait_all([first, second, third], "completed")
    assert [(stage.job(job)["attempts"], stage.job(job)["crashes"]) for job in (first, second, third)] == [
        (2, 1),
        (1, 0),
        (1, 0),
    ]
    assert [len(stage.attempts(job)) for job in (first, second, third)] == [2, 1, 1]


@pytest.mark.promise("C2")
def test_idle_worker_that_dies_is_replaced_and_running_jobs_are_undisturbed(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2)
    busy = stage.enqueue("t:gate", '{"label": "busy"}')
    arrival = gate.wait_arrival("busy")
    idle = next(pid for pid in fleet.workers().values() if pid != arrival.pid)
    os.kill(idle, signal.SIGKILL)
    fleet.wait_ready(3)
    assert re.search(r"while it was (idle|claiming)\.$", fleet.wait_log("died of SIGKILL")["message"])
    arrival.open()
    assert stage.wait_state(busy, "completed")["attempts"] == 1


def test_killed_maintenance_process_is_replaced_and_due_jobs_still_run(stage: Stage):
    fleet = stage.run_fleet(workers=1, poll="300s")
    maintenance = fleet.maintenance()
    os.kill(maintenance, signal.SIGKILL)
    wait_for_exit(maintenance)
    job = stage.call("""SELECT jobherd.enqueue('t:noop', '{}', '{"delay": 0.05}')""")
    stage.wait_state(job, "completed")
    stage.wait(
        lambda: fleet.maintenance() != maintenance,
        "the log line of the new maintenance process, which follows the wake of a worker for the job",
    )


@pytest.mark.promise("C6", "C28")
def test_process_that_exits_during_a_handler_counts_as_a_crash_even_with_exit_code_0(stage: Stage):
    stage.run_fleet(workers=2)
    jobs = {kind: stage.enqueue(kind) for kind in ("c:abort", "c:segfault", "c:exit")}
    rows = {kind: stage.wait_state(job, "failed") for kind, job in jobs.items()}
    assert {row["error_code"] for row in rows.values()} == {"WORKER_CRASHED"}
    assert {kind: row["crashes"] for kind, row in rows.items()} == {"c:abort": 1, "c:segfault": 1, "c:exit": 3}
    last = {kind: row["history"][-1] for kind, row in rows.items()}
    for kind, sentence in {
        "c:abort": "died of SIGABRT",
        "c:segfault": "died of SIGSEGV",
        "c:exit": "exited with code 0",
    }.items():
        assert sentence in last[kind]["error"]
    report = last["c:exit"]["post_mortem"]
    assert (report["exit_code"], report.get("signal")) == (0, None), "os._exit(0) is not a success"
    for kind, name, function in (("c:abort", "SIGABRT", "abort"), ("c:segfault", "SIGSEGV", "string_at")):
        report = last[kind]["post_mortem"]
        assert (report.get("exit_code"), report["signal"]) == (None, name)
        assert f"in {function}" in report["stack"], "the stack of the crash"
        assert "jobs.py" in report["stack"]
        assert f"in {function} at" in last[kind]["error"], "the error names the place"


def test_worker_stopped_with_sigstop_is_killed_after_its_jobs_timeout(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, grace="0.2s")
    job = stage.enqueue("x:patient", '{"label": "frozen"}')
    arrival = gate.wait_arrival("frozen")
    with suppress(ProcessLookupError):  # on a busy machine it may have been killed already
        os.kill(arrival.pid, signal.SIGSTOP)
    row = stage.wait_state(job, "failed")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert row["crashes"] == 0, "a timeout is not a crash"
    assert row["history"][-1]["post_mortem"]["signal"] == "SIGKILL"
    wait_for_exit(arrival.pid)


def test_idle_child_processes_that_stay_stopped_are_killed_and_replaced(stage: Stage):
    fleet = stage.run_fleet(workers=1, spawn_timeout="3s")
    [worker], maintenance = fleet.workers().values(), fleet.maintenance()
    for pid in (worker, maintenance):
        os.kill(pid, signal.SIGSTOP)
        fleet.wait_log(f"process {pid}, was stopped by SIGSTOP")
    due = stage.call("SELECT jobherd.enqueue('t:noop', '{}', '{\"delay\": \"1 millisecond\"}')")
    assert stage.wait_state(due, "completed")["attempts"] == 1
    for pid in (worker, maintenance):
        fleet.wait_log(
            f"Process {pid} was stopped by a signal and not continued: the supervisor killed it while it was "
        )
        wait_for_exit(pid)


def test_worker_continued_in_time_stays_and_runs_the_job_that_came_meanwhile(stage: Stage):
    fleet = stage.run_fleet(workers=1, poll="1m")
    [worker] = fleet.workers().values()
    os.kill(worker, signal.SIGSTOP)
    fleet.wait_log(f"process {worker}, was stopped by SIGSTOP")
    job = stage.enqueue("t:noop")
    os.kill(worker, signal.SIGCONT)
    [attempt] = stage.wait_state(job, "completed")["history"]
    assert attempt["ran_on"].endswith(f"/{worker}")


def test_daemon_is_ended_when_its_parent_dies_with_the_workers_process_group(stage: Stage, gate: Gate):
    place = stage.write(
        "daemons.py",
        """
import subprocess, sys
from jobherd import handler
from tests.support.gate import at_gate

DAEMON = "import os; os.setsid(); from tests.support.gate import at_gate; at_gate('daemon')"

@handler("x:daemon", max_attempts=1)
def daemon():
    subprocess.Popen(["sh", "-c", f'{sys.executable} -c "{DAEMON}" & wait'])
    at_gate("job")
""",
    )
    stage.run_fleet(workers=1, handlers=place)
    stage.enqueue("x:daemon")
    job, daemon = gate.wait_arrival("job"), gate.wait_arrival("daemon")
    os.kill(job.pid, signal.SIGKILL)
    wait_for_exit(daemon.pid)


def test_death_of_another_worker_does_not_end_the_daemon_of_a_running_job(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2)
    stage.enqueue("x:stuck-long", '{"label": "stuck"}')
    stuck, _, daemon = (gate.wait_arrival(label) for label in ("stuck", "stuck-grandchild", "stuck-daemon"))
    neighbour = next(pid for pid in fleet.workers().values() if pid != stuck.pid)
    os.kill(neighbour, signal.SIGKILL)
    fleet.wait_ready(3)
    assert is_running(daemon.pid)
    os.kill(stuck.pid, signal.SIGKILL)
    wait_for_exit(daemon.pid)
