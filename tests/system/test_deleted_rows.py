"""Somebody deletes rows by hand, while a job runs: of its supervisor, of its worker, of its claim.

What is left of it is run to an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import is_ready

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


@pytest.mark.parametrize("rows", ["supervisors", "children"])
def test_a_job_whose_process_is_not_registered_any_more_runs_once_more_and_completes_once(
    stage: Stage, gate: Gate, rows: str
):
    fleet = stage.run_fleet(workers=1, lease="3s", sweep="0.2s")
    job = stage.enqueue("t:gate", '{"label": "a"}')
    first = gate.wait_arrival("a")
    stage.run(f"DELETE FROM jobherd.{rows}")
    # The first of them: a second one may follow before the test looks, see below.
    stage.wait(lambda: [one["outcome"] for one in stage.attempts(job)][:1] == ["lost"], "it to be given back")
    first.open("late")
    second = gate.wait_arrival("a")
    for _ in range(3):  # sweeps, each of which would take it away from a process that is not registered
        beats = stage.call("SELECT max(beat_at) FROM jobherd.supervisors")
        stage.wait(lambda beats=beats: stage.call("SELECT max(beat_at) FROM jobherd.supervisors") != beats, "a beat")
    if len(stage.attempts(job)) > 1:  # it was claimed, and begun, in the very exchange that told the old process
        second.open("late too")
        second = gate.wait_arrival("a")
    assert stage.state(job) == "running"
    second.open("in time")
    row = stage.wait_state(job, "completed")
    assert (row["result"], row["crashes"]) == ("in time", 0)
    # What a worker has claimed in the very exchange that tells it so is lost too, if it is swept up
    # before it could be handed back.
    assert [attempt["outcome"] for attempt in row["history"]] in (["lost", "completed"], ["lost", "lost", "completed"])
    assert row["attempts"] == len(row["history"])
    assert stage.completed_twice() == []
    after = stage.enqueue("t:noop")
    stage.wait_state(after, "completed")
    assert stage.call("SELECT count(*) FROM jobherd.children WHERE kind = 'worker'") == 1, "it has a row again"
    assert fleet.stop() == 0


def test_whose_claim_was_deleted_goes_on_and_says_that_it_was_lost(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1)
    job = stage.enqueue("t:gate", '{"label": "a"}')
    arrival = gate.wait_arrival("a")
    stage.run("DELETE FROM jobherd.running")
    arrival.open("late")
    fleet.wait_log("the claim of 1 jobs was lost")
    after = stage.enqueue("t:noop")
    stage.wait_state(after, "completed")
    assert stage.state(job) is None, "what was deleted by hand stays deleted"
    assert len(fleet.said(is_ready)) == 1, "its worker is the same"
    assert fleet.stop() == 0
