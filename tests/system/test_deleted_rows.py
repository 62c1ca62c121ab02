"""Rows of a supervisor, a worker or a claim are deleted by hand while a job runs.

Jobs that still have a row are run to a final state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import is_ready

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


@pytest.mark.parametrize("rows", ["supervisors", "children"])
def test_job_of_a_process_whose_registration_is_deleted_runs_again_and_completes_once(
    stage: Stage, gate: Gate, rows: str
):
    fleet = stage.run_fleet(workers=1, lease="3s", sweep="0.2s")
    job = stage.enqueue("t:gate", '{"label": "a"}')
    first = gate.wait_arrival("a")
    stage.run(f"DELETE FROM jobherd.{rows}")
    # Only the first attempt: a second may follow before the test looks, see below.
    stage.wait(lambda: [one["outcome"] for one in stage.attempts(job)][:1] == ["lost"], "the release of the job")
    first.open("late")
    second = gate.wait_arrival("a")
    for _ in range(3):  # orphan checks, each of which would reclaim the job of an unregistered process
        beats = stage.call("SELECT max(beat_at) FROM jobherd.supervisors")
        stage.wait(lambda beats=beats: stage.call("SELECT max(beat_at) FROM jobherd.supervisors") != beats, "a renewal")
    if len(stage.attempts(job)) > 1:  # claimed and started in the same exchange that notified the old process
        second.open("late too")
        second = gate.wait_arrival("a")
    assert stage.state(job) == "running"
    second.open("in time")
    row = stage.wait_state(job, "completed")
    assert (row["result"], row["crashes"]) == ("in time", 0)
    # Jobs that a worker claims in the same exchange that notifies it are lost too, if the orphan check
    # comes before their release.
    assert [attempt["outcome"] for attempt in row["history"]] in (["lost", "completed"], ["lost", "lost", "completed"])
    assert row["attempts"] == len(row["history"])
    assert stage.completed_twice() == []
    after = stage.enqueue("t:noop")
    stage.wait_state(after, "completed")
    assert stage.call("SELECT count(*) FROM jobherd.children WHERE kind = 'worker'") == 1, "the worker has a row again"
    assert fleet.stop() == 0


def test_worker_whose_claim_is_deleted_continues_and_logs_the_lost_claim(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1)
    job = stage.enqueue("t:gate", '{"label": "a"}')
    arrival = gate.wait_arrival("a")
    stage.run("DELETE FROM jobherd.running")
    arrival.open("late")
    fleet.wait_log("the claim of 1 jobs was lost")
    after = stage.enqueue("t:noop")
    stage.wait_state(after, "completed")
    assert stage.state(job) is None, "the deleted job stays deleted"
    assert len(fleet.said(is_ready)) == 1, "the worker was not replaced"
    assert fleet.stop() == 0
