"""A child dies: its job runs again at once, what it had not started is untouched, and the history explains the death."""

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
def test_a_killed_childs_job_runs_again_at_once_and_fails_at_the_third_death(stage: Stage, gate: Gate):
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
    assert len({attempt["ran_on"] for attempt in row["history"]}) == 3, "three processes"
    fleet.wait_ready(5)  # the two, and a successor for each that died

    job = stage.enqueue("t:gate", '{"label": "victim"}')
    arrival = gate.wait_arrival("victim")
    os.kill(arrival.pid, signal.SIGKILL)
    again = gate.wait_arrival("victim")
    assert again.pid != arrival.pid
    assert "scheduled" not in dict(stage.moves(job)), "without a back-off"
    again.open("lived")
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "lived")
    assert stage.moves(job)[-1] == ("history", "completed")
    assert stage.completed_twice() == []


@pytest.mark.promise("E14")
def test_what_a_dead_child_had_claimed_and_not_started_is_given_back_without_an_attempt(stage: Stage, gate: Gate):
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
def test_a_child_that_dies_idle_is_replaced_and_no_job_is_touched(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2)
    busy = stage.enqueue("t:gate", '{"label": "busy"}')
    arrival = gate.wait_arrival("busy")
    idle = next(pid for pid in fleet.workers().values() if pid != arrival.pid)
    os.kill(idle, signal.SIGKILL)
    fleet.wait_ready(3)
    assert re.search(r"while it was (idle|claiming)\.$", fleet.wait_log("died of SIGKILL")["message"])
    arrival.open()
    assert stage.wait_state(busy, "completed")["attempts"] == 1


def test_a_killed_maintenance_process_is_replaced_and_goes_on_keeping_house(stage: Stage):
    fleet = stage.run_fleet(workers=1, poll="300s")
    maintenance = fleet.maintenance()
    os.kill(maintenance, signal.SIGKILL)
    wait_for_exit(maintenance)
    job = stage.call("""SELECT jobherd.enqueue('t:noop', '{}', '{"delay": 0.05}')""")
    stage.wait_state(job, "completed")
    stage.wait(
        lambda: fleet.maintenance() != maintenance,
        "the word of the new one, which the parent says after it has woken a worker for the job",
    )


@pytest.mark.promise("C6", "C28")
def test_a_process_that_ends_under_its_handler_is_a_crash_whatever_its_exit_status_says(stage: Stage):
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
    assert (report["exit_code"], report.get("signal")) == (0, None), "leaving by os._exit(0) is no success"
    for kind, name, function in (("c:abort", "SIGABRT", "abort"), ("c:segfault", "SIGSEGV", "string_at")):
        report = last[kind]["post_mortem"]
        assert (report.get("exit_code"), report["signal"]) == (None, name)
        assert f"in {function}" in report["stack"], "the stack of the crash"
        assert "jobs.py" in report["stack"]
        assert f"in {function} at" in last[kind]["error"], "the sentence says where"


def test_a_child_that_was_stopped_is_killed_past_its_timeout(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, grace="0.2s")
    job = stage.enqueue("x:patient", '{"label": "frozen"}')
    arrival = gate.wait_arrival("frozen")
    with suppress(ProcessLookupError):  # on a busy machine it may have been killed already
        os.kill(arrival.pid, signal.SIGSTOP)
    row = stage.wait_state(job, "failed")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert row["crashes"] == 0, "a timeout is no crash"
    assert row["history"][-1]["post_mortem"]["signal"] == "SIGKILL"
    wait_for_exit(arrival.pid)


def test_an_idle_child_that_was_stopped_for_good_is_replaced(stage: Stage):
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


def test_one_that_goes_on_in_time_stays_and_takes_what_came_meanwhile(stage: Stage):
    fleet = stage.run_fleet(workers=1, poll="1m")
    [worker] = fleet.workers().values()
    os.kill(worker, signal.SIGSTOP)
    fleet.wait_log(f"process {worker}, was stopped by SIGSTOP")
    job = stage.enqueue("t:noop")
    os.kill(worker, signal.SIGCONT)
    [attempt] = stage.wait_state(job, "completed")["history"]
    assert attempt["ran_on"].endswith(f"/{worker}")


def test_a_daemon_whose_parent_dies_with_the_childs_group_is_ended_too(stage: Stage, gate: Gate):
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


def test_a_neighbours_death_ends_no_daemon_of_a_job_that_still_runs(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2)
    stage.enqueue("x:stuck-long", '{"label": "stuck"}')
    stuck, _, daemon = (gate.wait_arrival(label) for label in ("stuck", "stuck-grandchild", "stuck-daemon"))
    neighbour = next(pid for pid in fleet.workers().values() if pid != stuck.pid)
    os.kill(neighbour, signal.SIGKILL)
    fleet.wait_ready(3)
    assert is_running(daemon.pid)
    os.kill(stuck.pid, signal.SIGKILL)
    wait_for_exit(daemon.pid)
