"""`SELECT jobherd.cancel(id)` ends a job in any unfinished state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.processes import is_running, wait_for_exit

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


@pytest.mark.promise("B51", "B52")
def test_cancel_interrupts_a_running_job_at_once(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1)
    job = stage.enqueue("t:gate", '{"label": "runs"}')
    arrival = gate.wait_arrival("runs")
    assert stage.cancel(job) == "cancelling"
    arrival.wait_gone()
    row = stage.wait_state(job, "cancelled")
    assert row["error_code"] == "JOB_CANCELLED"
    assert row["crashes"] == 0
    assert "post_mortem" not in row["history"][-1], "the process was not killed"
    following = stage.enqueue("t:noop")
    stage.wait_state(following, "completed")
    assert stage.cancel(job) == "cancelled"
    assert stage.cancel(following) == "completed"
    assert stage.runs(job) == 1
    fleet.wait_ready(2)  # a worker whose job was interrupted is replaced


@pytest.mark.promise("B51")
def test_cancel_request_without_a_notification_is_found(stage: Stage, gate: Gate):
    # Renewals, which also look for requests, are far apart, and so are polls: only the check of each second finds it.
    stage.run_fleet(workers=1, lease="600s", poll="300s")
    job = stage.enqueue("t:gate", '{"label": "runs"}')
    arrival = gate.wait_arrival("runs")
    stage.run("INSERT INTO jobherd.cancels (job) VALUES (%s)", job)  # what the function does, without its notification
    arrival.wait_gone()
    assert stage.wait_state(job, "cancelled")["error_code"] == "JOB_CANCELLED"


def test_uncommitted_cancel_does_not_block_the_fleet_and_takes_effect_after_its_commit(stage: Stage, gate: Gate):
    """A request in an open transaction is invisible.

    If it is committed after the outcome, it cancels the job, which is scheduled by then.
    """
    stage.run_fleet(workers=1, claim_size=2, claim_window="0s")
    with stage.connection.transaction():
        first, second = stage.enqueue("t:gate", '{"label": "first"}'), stage.enqueue("d:snooze")
    arrival = gate.wait_arrival("first")
    with psycopg.connect(stage.dsn) as caller:
        answers = caller.execute(
            "SELECT jobherd.cancel(id) FROM unnest(%s::bigint[]) AS id", [[first, second]]
        ).fetchall()
        assert answers == [("cancelling",), ("cancelling",)]
        arrival.open()
        stage.wait_state(first, "completed")
        stage.wait_state(second, "scheduled")
        stage.wait_state(stage.enqueue("t:noop"), "completed")
    stage.wait_state(second, "cancelled")
    stage.wait(lambda: stage.run("SELECT count(*) FROM jobherd.cancels") == [(0,)], "the requests are answered")


def test_cancel_kills_a_job_stuck_in_c_with_its_child_processes_and_no_other_job(stage: Stage, gate: Gate):
    stage.run_fleet(workers=2, grace="0.2s")
    other = stage.enqueue("t:gate", '{"label": "other"}')
    bystander = gate.wait_arrival("other")
    job = stage.enqueue("x:stuck-long", '{"label": "stuck"}')
    arrivals = [gate.wait_arrival(label) for label in ("stuck", "stuck-grandchild", "stuck-daemon")]
    arrivals[0].open()
    assert stage.cancel(job) == "cancelling"
    row = stage.wait_state(job, "cancelled")
    assert (row["error_code"], row["crashes"], stage.runs(job)) == ("JOB_CANCELLED", 0, 1)
    for arrival in arrivals:
        wait_for_exit(arrival.pid)
    assert is_running(bystander.pid)
    bystander.open()
    stage.wait_state(other, "completed")


def test_cancelled_job_that_is_claimed_and_unstarted_never_starts(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, claim_size=3, claim_window="0s")
    with stage.connection.transaction():
        first, second, third = (
            stage.enqueue("t:gate", f'{{"label": "{name}"}}') for name in ("first", "second", "third")
        )
    arrival = gate.wait_arrival("first")
    assert stage.cancel(second) == "cancelling"
    assert stage.cancel(second) == "cancelling", "a second request changes nothing"
    fleet.wait_log(f"worker 0 gets a request to stop job {second}: cancel")
    arrival.open("undisturbed")
    gate.wait_arrival("third").open()
    assert stage.wait_state(first, "completed")["result"] == "undisturbed"
    row = stage.wait_state(second, "cancelled")
    assert row["started_at"] is None
    stage.wait_state(third, "completed")


@pytest.mark.promise("B51", "B52")
def test_scheduled_and_ready_jobs_are_cancelled_at_once(stage: Stage):
    later = stage.call("""SELECT jobherd.enqueue('t:noop', '{}', '{"delay": "1 hour"}')""")
    ready = stage.enqueue("t:noop")
    assert (stage.cancel(later), stage.cancel(ready)) == ("cancelled", "cancelled")
    fleet = stage.start("--until-empty", workers=1)
    assert fleet.wait_exit() == 0
    assert stage.states([later, ready]) == ["cancelled", "cancelled"]
