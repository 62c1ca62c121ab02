"""A job kills its worker before the worker starts it.

Each death counts as a crash, so that no job kills workers without limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.points import Points

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet, Stage


@pytest.fixture
def points(tmp_path: Path) -> Points:
    return Points(tmp_path / "points")


def fleet_with(stage: Stage, points: Points, **settings: Any) -> Fleet:
    given = {"workers": 1, "poll": "300s", "respawn_initial": "10ms", "respawn_max": "100ms", **settings}
    return stage.run_fleet(environment=points.environment, **given)


@pytest.mark.parametrize("point", ["claim_jobs.done", "job.announced"])
def test_job_that_kills_each_worker_before_it_starts_fails_at_the_third_death(stage: Stage, points: Points, point: str):
    fleet = fleet_with(stage, points)
    tokens = [points.arm(point, "kill") for _ in range(20)]  # claims that find no job may use some of them
    deadly = stage.enqueue("t:noop")
    if point == "job.announced":
        stage.wait(
            lambda: stage.run("SELECT crashes FROM jobherd.scheduled WHERE id = %s", deadly) == [(2,)], "two crashes"
        )
        assert stage.call("SELECT jobherd.retry(%s)", deadly) == "ready"  # its backoff is 30 s
    row = stage.wait_state(deadly, "failed")
    for token in tokens:
        token.unlink(missing_ok=True)
    assert (row["attempts"], row["crashes"], row["error_code"]) == (0, 3, "WORKER_CRASHED")
    deaths = [(one["outcome"], one["attempt"], one["error_code"]) for one in row["history"]]
    assert deaths == [("abandoned", 1, "WORKER_CRASHED")] * 2 + [("failed", 0, "WORKER_CRASHED")], (
        "each death is explained, and the job never started"
    )
    assert "SIGKILL" in row["error"]
    if point == "job.announced":
        assert f"before it started t:noop #{deadly}" in row["error"]
    fleet.wait_ready(4)
    stage.wait_state(stage.enqueue("t:noop"), "completed")


def test_worker_death_after_a_claim_of_several_jobs_counts_as_a_crash_of_none(stage: Stage, points: Points):
    fleet_with(stage, points, claim_window="0s", claim_size=5)
    points.arm("claim_jobs.done", "kill")
    with stage.connection.transaction():
        jobs = [stage.enqueue("t:noop") for _ in range(3)]
    stage.wait_all(jobs, "completed")
    assert [(stage.job(job)["attempts"], stage.job(job)["crashes"]) for job in jobs] == [(1, 0)] * 3


JOBS = """
from jobherd import Job, handler

@handler("one:noop")
def noop(n: int) -> None: ...

@handler("several:noop", batch=10)
def several(jobs: list[Job], numbers: list[int]) -> None: ...
"""


@pytest.mark.parametrize(("kind", "payload"), [("one:noop", '{"n": 1}'), ("several:noop", "1")])
def test_error_before_a_job_starts_fails_the_job_and_ends_no_worker(stage: Stage, kind: str, payload: str):
    """Only the owner of the tables can create such a row, and only after dropping the constraint on ids."""
    fleet = stage.run_fleet(workers=1, poll="300s", handlers=stage.write("jobs.py", JOBS))
    before = fleet.workers()
    stage.run("ALTER TABLE jobherd.ready DROP CONSTRAINT ready_counts_are_counts")
    with stage.connection.transaction():
        good = [stage.enqueue(kind, payload) for _ in range(2)]
        stage.run("INSERT INTO jobherd.ready (id, kind, payload) VALUES (-7, %s, %s)", kind, payload)
    row = stage.wait_state(-7, "failed")
    assert (row["attempts"], row["crashes"], row["error_code"]) == (0, 0, "JOB_INVALID")
    assert row["error"].startswith("the job could not be started: ")
    stage.wait_all(good, "completed")
    assert fleet.workers() == before
