"""Batch handlers under a supervisor.

A worker's death counts as a crash of every job of the call. After that, each of these jobs is called alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


@pytest.mark.promise("D30")
def test_batch_jobs_run_alone_after_a_crash_and_a_cancel_does_not_stop_their_call(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, poll="300s")
    with stage.connection.transaction():
        ids = [stage.enqueue("b:together", f'"{label}"') for label in ("one", "deadly", "two")]
    # The process dies. This is a crash of all three, since Jobherd cannot tell which job caused it;
    # from now on each is called alone.
    gate.wait_arrival("3 together").open()
    stage.wait_all(ids, "completed", "failed", "retrying", "running")
    answers = 0
    while answers < 3:
        gate.wait_arrival("1 together").open("alone")
        answers += 1
    stage.wait_all([ids[0], ids[2]], "completed")
    deadly = stage.wait_state(ids[1], "failed")
    assert (deadly["attempts"], deadly["crashes"], deadly["error_code"]) == (2, 2, "WORKER_CRASHED")
    for job, label in ((ids[0], "one"), (ids[2], "two")):
        row = stage.job(job)
        assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, f"alone {label}")
        assert row["history"][0]["error_code"] == "WORKER_CRASHED"
        assert f"b:together #{ids[0]} and 2 more in the same call" in row["history"][0]["error"]

    with stage.connection.transaction():
        ids = [stage.enqueue("b:together", f'"{label}"') for label in ("first", "second")]
    arrival = gate.wait_arrival("2 together")
    assert stage.call("SELECT jobherd.cancel(%s)", ids[0]) == "cancelling"
    fleet.wait_log("gets a request to stop job")  # the job is not stopped: its call continues
    arrival.open("went on")
    assert [stage.wait_state(job, "completed", "cancelled")["result"] for job in ids] == [
        "went on first",
        "went on second",
    ]
    assert stage.completed_twice() == []
