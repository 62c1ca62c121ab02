"""How a supervisor drains.

Running jobs finish. Jobs that do not end in time return to the queue, and their attempt is not counted.
"""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.processes import children_of, is_running

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


@pytest.mark.promise("A47", "C25", "D22")
def test_drain_finishes_running_jobs_and_releases_unstarted_ones(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, claim_size=3, claim_window="0s")
    with stage.connection.transaction():
        jobs = [stage.enqueue("t:gate", f'{{"label": "{number}"}}') for number in range(6)]
    arrivals = [gate.wait_arrival(), gate.wait_arrival()]
    running = [jobs[int(arrival.label)] for arrival in arrivals]
    fleet.signal(signal.SIGTERM)
    draining = fleet.wait_log("draining: nothing more is claimed, 2 running")
    assert "waits up to 5m for them, a second Ctrl-C or SIGTERM returns them to their queues" in draining["message"]
    for arrival in arrivals:
        arrival.open("finished")
    assert fleet.wait_exit() == 0
    assert fleet.processes() == {}
    for job in jobs:
        row = stage.job(job)
        if job in running:
            assert (row["state"], row["attempts"], row["result"]) == ("completed", 1, "finished")
        else:
            assert (row["state"], row["attempts"], row["history"]) == ("ready", 0, []), (
                "as if it had never been claimed"
            )
    assert stage.call("SELECT count(*) FROM jobherd.supervisors") == 0, "the supervisor deleted its registration"


@pytest.mark.parametrize("first", ["parent", "children"])
def test_sigterm_to_every_process_drains_like_sigterm_to_the_supervisor(stage: Stage, gate: Gate, first: str):
    """By default, systemd sends SIGTERM to every process of a service (KillMode=control-group).

    A worker that gets SIGTERM during a job must not interrupt that job.
    """
    fleet = stage.run_fleet(workers=1, claim_size=3, claim_window="10s")
    with stage.connection.transaction():
        running, *behind = (stage.enqueue("t:gate", f'{{"label": "{number}"}}') for number in range(3))
    arrival = gate.wait_arrival("0")
    everybody = [fleet.pid, *children_of(fleet.pid)]
    for pid in everybody if first == "parent" else reversed(everybody):
        os.kill(pid, signal.SIGTERM)
    fleet.wait_log("draining: nothing more is claimed, 1 running")
    arrival.open("finished")
    assert fleet.wait_exit() == 0
    assert fleet.processes() == {}
    row = stage.job(running)
    assert (row["state"], row["attempts"], row["result"]) == ("completed", 1, "finished")
    for job in behind:
        row = stage.job(job)
        assert (row["state"], row["attempts"], row["history"]) == ("ready", 0, []), "as if it had never been claimed"


def test_sigterm_at_any_moment_under_load_fails_no_job_and_leaves_none_running(stage: Stage):
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    print(f"seed {seed}")
    rounds, load, most = 15, 0, 1000
    done = "SELECT count(*) FROM t_trans WHERE place = 'history' AND op = 'INSERT'"
    for number in range(rounds):
        # If this process is slower than the workers, a round may finish every job that it finds.
        more = most - stage.count("ready")
        stage.run("""SELECT jobherd.enqueue('t:spin', '{"seconds": 0.002}') FROM generate_series(1, %s)""", more)
        load, before = load + more, stage.call(done)
        fleet = stage.start(workers=2, claim_size=dice.choice([1, 1, 3, 10]))
        if number % 5:
            wanted = dice.randrange(1, 150)
            stage.wait(lambda: stage.call(done) >= before + wanted, "some jobs to be done")  # noqa: B023
        else:  # while the supervisor starts
            fleet.wait_log(dice.choice(["supervisor 0", "the database is there", "registered", "is ready"]))
        fleet.signal(signal.SIGTERM)
        assert fleet.wait_exit() == 0, f"seed {seed}, round {number}\n{fleet.text()}"
        fleet.wait_gone()
        assert stage.count("running") == 0, f"seed {seed}, round {number}: a job is left running\n{fleet.text()}"
        assert stage.run("SELECT DISTINCT outcome FROM jobherd.attempts") in ([], [("abandoned",)])
        assert stage.run("SELECT DISTINCT state FROM jobherd.history") in ([], [("completed",)])
        assert stage.call("SELECT count(*) FROM jobherd.ready WHERE attempts + crashes > 0") == 0
    assert stage.completed_twice() == []
    assert stage.count("history") + stage.count("ready") == load, "no job is lost"


@pytest.mark.promise("A48")
def test_drain_timeout_returns_running_jobs_to_the_queue_without_counting_an_attempt(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, drain_timeout="0.2s", grace="0.3s")
    polite = stage.enqueue("t:gate", '{"label": "polite"}')
    stuck = stage.enqueue("x:stuck-long", '{"label": "stuck"}')
    gate.wait_arrival("polite")
    for label in ("stuck-grandchild", "stuck-daemon"):
        gate.wait_arrival(label)
    gate.wait_arrival("stuck").open()
    fleet.signal(signal.SIGTERM)
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    for job in (polite, stuck):
        row = stage.job(job)
        assert (row["state"], row["attempts"], row["crashes"]) == ("ready", 0, 0)
        assert [attempt["outcome"] for attempt in row["history"]] == ["abandoned"]


def test_second_stop_signal_returns_running_jobs_to_the_queue_and_exits_fast(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, drain_timeout="300s")
    polite = stage.enqueue("t:gate", '{"label": "polite"}')
    stuck = stage.enqueue("x:swallows", timeout=300)
    gate.wait_arrival("polite")
    stage.wait_running(stuck)
    fleet.signal(signal.SIGINT)
    fleet.wait_log("draining")
    # Two signals within 0.5 s count as one: Ctrl-C and the service manager may both send one.
    stage.run("SELECT pg_sleep(0.6)")
    assert fleet.note_exit() is False, "the first signal waits for running jobs"
    fleet.signal(signal.SIGTERM)
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    assert [(stage.job(job)["state"], stage.job(job)["attempts"]) for job in (polite, stuck)] == [
        ("ready", 0),
        ("ready", 0),
    ]


def test_sigquit_kills_at_once_and_the_next_supervisor_runs_the_jobs(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, lease="600s")
    job = stage.enqueue("t:gate", '{"label": "cut"}')
    gate.wait_arrival("cut")
    fleet.signal(signal.SIGQUIT)
    fleet.wait_exit()
    fleet.wait_gone()
    stage.run_fleet(workers=1, lease="600s")
    gate.wait_arrival("cut").open("again")
    row = stage.wait_state(job, "completed")
    assert row["crashes"] == 0


def test_ctrl_c_reaches_only_the_supervisor(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2)
    job = stage.enqueue("t:gate", '{"label": "undisturbed"}')
    arrival = gate.wait_arrival("undisturbed")
    groups = {pid: os.getpgid(pid) for pid in children_of(fleet.pid)}
    assert all(group == pid for pid, group in groups.items()), "each child process leads its own process group"
    os.killpg(os.getpgid(fleet.pid), signal.SIGINT)  # what a terminal does
    fleet.wait_log("got SIGINT")
    assert is_running(arrival.pid)
    os.kill(arrival.pid, signal.SIGINT)  # a direct SIGINT does not interrupt the job either
    arrival.open("done")
    assert stage.wait_state(job, "completed")["attempts"] == 1
    assert fleet.wait_exit() == 0


def test_drain_ends_although_another_session_keeps_a_table_locked(stage: Stage, gate: Gate):
    """Neither the worker nor the supervisor can record the outcome.

    Once the lock is released, the outcome is recorded after all, or the next supervisor reclaims the job.
    """
    # `spawn_timeout` also limits how long a maintenance process takes to exit.
    fleet = stage.run_fleet(workers=1, drain_timeout="0.2s", grace="0.3s", spawn_timeout="5s")
    job = stage.enqueue("t:gate", '{"label": "cut"}')
    arrival = gate.wait_arrival("cut")
    with psycopg.connect(stage.dsn) as outsider:
        outsider.execute("LOCK TABLE jobherd.running")
        fleet.signal(signal.SIGTERM)
        fleet.wait_log("draining", limit=60)
        arrival.open()
        assert fleet.wait_exit(300) == 0, fleet.text()  # several statements time out one after the other
        fleet.wait_gone(60)
    ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'jobherd:%%'"
    stage.wait(lambda: not stage.call(ours), "the end of their sessions: one may still execute an earlier statement")
    again = stage.run_fleet(workers=1)
    if stage.state(job) != "completed":  # the outcome may have been recorded as soon as the lock was released
        gate.wait_arrival("cut").open("again")
    assert stage.wait_state(job, "completed", limit=60)["crashes"] == 0
    assert stage.completed_twice() == []
    assert again.stop() == 0
