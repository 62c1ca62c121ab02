"""The supervisor dies or freezes: its processes end, its jobs run again, and late outcomes are rejected."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.support.fleet import Stage
from tests.support.processes import is_running, wait_for_exit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gate import Gate
    from tests.support.postgres import Cluster


def test_killed_supervisor_leaves_no_process_and_a_successor_reclaims_its_jobs_at_once(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=3, lease="600s", poll="300s")
    polite = stage.enqueue("t:gate", '{"label": "polite"}')
    stuck = stage.enqueue("x:stuck-long", '{"label": "stuck"}')
    gate.wait_arrival("polite")
    arrivals = [gate.wait_arrival(label) for label in ("stuck", "stuck-grandchild", "stuck-daemon")]
    arrivals[0].open()
    fleet.signal(signal.SIGKILL)
    fleet.wait_gone()
    assert fleet.processes() == {}
    # The worker that could return its job has done so; the other's claim is under a lease that lasts ten
    # more minutes.
    stage.wait_state(polite, "ready")
    assert stage.state(stuck) == "running"
    assert stage.attempts(polite)[-1]["outcome"] == "abandoned"

    successor = stage.run_fleet(workers=2, lease="600s", poll="300s")
    gate.wait_arrival("polite").open("second time")
    gate.wait_arrival("stuck")
    assert stage.wait_state(polite, "completed")["result"] == "second time"
    row = stage.job(stuck)
    assert row["attempts"] == 2, "an attempt that was lost with its supervisor counts"
    assert row["crashes"] == 0
    assert row["history"][0]["outcome"] == "lost"
    assert stage.call("SELECT (jobs[1]).alone FROM jobherd.running"), (
        "the job is claimed alone, in case it killed its host"
    )
    assert successor.wait_log("jobs were reclaimed")["message"].startswith("1 jobs were reclaimed from 1 supervisor")
    assert stage.call("SELECT count(*) FROM jobherd.supervisors") == 1
    # This was its last attempt: if it is killed now, the job fails without another attempt.
    successor.signal(signal.SIGKILL)
    successor.wait_gone()
    third = stage.run_fleet(workers=1, lease="600s", poll="300s")
    row = stage.wait_state(stuck, "failed")
    assert row["error_code"] == "WORKER_LOST"
    assert third.stop() == 0


def test_next_supervisor_ends_processes_of_one_that_died_with_its_maintenance_process(stage: Stage, gate: Gate):
    """The dead supervisor's row is deleted too."""
    fleet = stage.run_fleet(workers=1)
    stage.enqueue("x:stuck-long", '{"label": "left"}')
    left = [gate.wait_arrival(f"left{name}").pid for name in ("", "-grandchild", "-daemon")]
    fleet.signal(signal.SIGSTOP)
    os.kill(fleet.maintenance(), signal.SIGKILL)
    wait_for_exit(fleet.maintenance())
    stage.run("DELETE FROM jobherd.supervisors")
    fleet.signal(signal.SIGKILL)
    fleet.wait_exit()
    assert all(is_running(pid) for pid in left)
    successor = stage.start(workers=1)
    fleet.wait_gone()  # ended by maintenance of this or another new supervisor on this host
    successor.signal(signal.SIGQUIT)  # its worker is stuck in the same job by now
    successor.wait_exit()


def test_two_supervisors_on_one_host_do_not_reclaim_each_others_jobs(stage: Stage, gate: Gate):
    first = stage.run_fleet(workers=1)
    job = stage.enqueue("t:gate", '{"label": "kept"}')
    arrival = gate.wait_arrival("kept")
    second = stage.run_fleet(workers=1)
    assert second.stop() == 0
    assert stage.call("SELECT count(*) FROM jobherd.supervisors") == 1
    arrival.open("mine")
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["result"]) == (1, "mine")
    assert first.stop() == 0


def test_death_of_a_supervisor_ends_no_process_of_another_databases_supervisor(
    stage: Stage, cluster: Cluster, template: str, tmp_path: Path, gate: Gate
):
    with cluster.database(template=template) as elsewhere, Stage(elsewhere, tmp_path) as other:
        dying, living = stage.run_fleet(workers=1), other.run_fleet(workers=1)
        assert stage.run("SELECT id FROM jobherd.supervisors") == other.run("SELECT id FROM jobherd.supervisors"), (
            "both supervisors have the id 1"
        )
        stage.enqueue("x:stuck-long", '{"label": "dying"}')
        kept = other.enqueue("x:stuck-long", '{"label": "living"}')
        names = ("", "-grandchild", "-daemon")
        for name in names:
            gate.wait_arrival(f"dying{name}")
        others = [gate.wait_arrival(f"living{name}") for name in names]
        dying.signal(signal.SIGKILL)
        dying.wait_gone()
        assert all(is_running(arrival.pid) for arrival in others)
        assert other.state(kept) == "running"
        living.signal(signal.SIGQUIT)
        living.wait_exit()


def test_jobs_of_a_frozen_supervisor_are_reclaimed_and_its_late_outcome_is_rejected(stage: Stage, gate: Gate):
    first = stage.run_fleet(workers=1, lease="6s")
    job = stage.enqueue("t:gate", '{"label": "fought over"}')
    late = gate.wait_arrival("fought over")
    number = stage.call("SELECT id FROM jobherd.supervisors")
    second = stage.start(workers=1, lease="6s")
    second.wait_ready(1)
    for pid in (first.pid, late.pid):
        os.kill(pid, signal.SIGSTOP)
    # For one lease after the database server's start, an expired lease has no effect. This server has run
    # longer by now, or the test waits for the rest of that time.
    stage.run("UPDATE jobherd.supervisors SET lease_until = clock_timestamp() - interval '1 s' WHERE id = %s", number)
    successor = gate.wait_arrival("fought over")
    assert successor.pid != late.pid
    assert stage.attempts(job)[0]["outcome"] == "lost"
    late.open("late")
    os.kill(late.pid, signal.SIGCONT)
    first.wait_log("was lost, so their outcome was not written")
    os.kill(first.pid, signal.SIGCONT)
    assert stage.state(job) == "running", "the late completion changed nothing"
    first.wait_log("registered as supervisor", count=2)
    first.wait_ready(2)  # its workers are replaced: they belonged to the lost registration
    successor.open("in time")
    row = stage.wait_state(job, "completed")
    assert (row["result"], row["attempts"]) == ("in time", 2)
    assert second.stop() == 0
    following = stage.enqueue("t:gate", '{"label": "following"}')
    arrival = gate.wait_arrival("following")
    assert arrival.pid in first.workers().values(), "the first supervisor continues to run jobs"
    arrival.open()
    stage.wait_state(following, "completed")
    assert stage.completed_twice() == []
    assert first.stop() == 0


def test_supervisor_whose_row_is_deleted_registers_again_and_continues(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, lease="3s")
    stage.run("DELETE FROM jobherd.supervisors")
    fleet.wait_log("registered as supervisor", count=2)
    fleet.wait_ready(2)
    job = stage.enqueue("t:noop")
    stage.wait_state(job, "completed")
    assert fleet.stop() == 0
