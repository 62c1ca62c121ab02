"""trending:compute: one chain of jobs however often it is started, and snapshots that are only appended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from jobherd import configure
from jobherd.handlers.forge import _database
from jobherd.handlers.forge.trending import plan_next, trending_compute
from jobherd.testing import Ran, run_payload
from tests.handlers.forge.conftest import Forge
from tests.support.repositories import bare, commit, push

PLANNED = "SELECT id, payload, extract(epoch FROM run_at - now())::double precision AS due FROM jobherd.scheduled WHERE kind = 'trending:compute' ORDER BY id"
SNAPSHOTS = "SELECT job, place, name, commits, authors, lines FROM jobherd.forge_trending ORDER BY id"


def compute(job: int = 100, **payload: int) -> Ran:
    return run_payload(trending_compute, payload, id=job)


def begin(forge: Forge, job: int) -> None:
    """Remove the planned job from its table, as a worker that starts it does."""
    forge.rows("DELETE FROM jobherd.scheduled WHERE id = %s", job)


def with_pushes(forge: Forge) -> None:
    source = bare(forge.folder / "source.git")
    for name, authors in (("small", 1), ("large", 3)):
        tip = ""
        for number in range(3):
            who = {"GIT_AUTHOR_EMAIL": f"author-{number % authors}@example.org"}
            tip = commit(
                source,
                f"refs/heads/{name}",
                {"a.py": str(number).encode() * (number + 1)},
                parents=(tip,) if tip else (),
                **who,
            )
        push(source, forge.repository(f"{name}.git"), f"{name}:refs/heads/main")
    forge.run_waiting()


def test_more_authors_rank_above_more_commits(forge: Forge) -> None:
    with_pushes(forge)
    ran = compute()
    assert [one["name"] for one in ran.result["best"]] == ["large", "small"]  # type: ignore[index]
    assert [(row["place"], row["name"], row["commits"], row["authors"]) for row in forge.rows(SNAPSHOTS)] == [
        (1, "large", 3, 3),
        (2, "small", 3, 1),
    ]


def test_commits_before_the_window_do_not_count(forge: Forge) -> None:
    with_pushes(forge)
    forge.rows("UPDATE jobherd.forge_commits SET recorded_at = recorded_at - interval '8 days'")
    compute(days=7)
    assert [(row["place"], row["name"]) for row in forge.rows(SNAPSHOTS)] == [(0, None)]


@pytest.mark.promise("A17", "A19")
def test_job_plans_exactly_one_next_job_with_the_same_arguments(forge: Forge) -> None:
    ran = compute(every=600, days=3)
    (planned,) = forge.rows(PLANNED)
    assert planned["id"] == ran.result["next_job"]  # type: ignore[index]
    assert planned["payload"] == {"every": 600, "days": 3}
    assert 0 < planned["due"] <= 660


def test_jobs_started_by_hand_do_not_create_further_chains(forge: Forge) -> None:
    first = compute(job=100).result["next_job"]  # type: ignore[index]
    assert [compute(job=job).result["next_job"] for job in (101, 102, 103)] == [first] * 3  # type: ignore[index]
    begin(forge, first)
    second = compute(job=first).result["next_job"]  # type: ignore[index]
    assert second != first
    assert [row["id"] for row in forge.rows(PLANNED)] == [second]


def test_retry_of_a_job_plans_and_appends_nothing_more(forge: Forge) -> None:
    with_pushes(forge)
    first = compute(job=100).result["next_job"]  # type: ignore[index]
    before = forge.rows(SNAPSHOTS)
    again = compute(job=100)
    assert again.result == {"skipped": "this job has appended its snapshot before", "next_job": first}
    assert forge.rows(SNAPSHOTS) == before
    assert len(forge.rows(PLANNED)) == 1


@pytest.mark.promise("A17")
def test_snapshots_are_only_appended(forge: Forge) -> None:
    with_pushes(forge)
    compute(job=100)
    before = forge.rows(SNAPSHOTS)
    compute(job=101)
    after = forge.rows(SNAPSHOTS)
    assert after[: len(before)] == before
    assert len(after) == 2 * len(before)


def test_failing_job_has_already_planned_the_next_one(forge: Forge) -> None:
    forge.rows("ALTER TABLE jobherd.forge_trending ADD CONSTRAINT nothing_more CHECK (false) NOT VALID")
    assert compute().outcome.label == "retry"
    assert len(forge.rows(PLANNED)) == 1


def test_canceled_chain_restarts_with_a_job_started_by_hand(forge: Forge) -> None:
    first = compute(job=100).result["next_job"]  # type: ignore[index]
    assert forge.one("SELECT jobherd.cancel(%s)", first) == "cancelled"
    second = compute(job=101).result["next_job"]  # type: ignore[index]
    assert second != first
    assert [row["id"] for row in forge.rows(PLANNED)] == [second]


def test_every_zero_plans_no_next_job(forge: Forge) -> None:
    assert compute(every=0).result["next_job"] is None  # type: ignore[index]
    assert forge.rows(PLANNED) == []


@pytest.mark.parametrize("payload", [{"every": -1}, {"days": 0}, {"every": 10**9}])
def test_invalid_durations_are_poison(forge: Forge, payload: dict[str, int]) -> None:
    assert compute(**payload).outcome.label == "poison"


def test_concurrent_jobs_plan_one_next_job(forge: Forge) -> None:
    configure(forge.dsn)

    def plan(_: int) -> Any:
        with psycopg.connect(forge.dsn, autocommit=True) as own, own.transaction():
            return plan_next(_database.Database(own, "jobherd"))

    with psycopg.connect(forge.dsn) as gate, ThreadPoolExecutor(6) as people:
        gate.execute("SELECT FROM jobherd.forge_trending_plan FOR UPDATE")
        plans = [people.submit(plan, number) for number in range(6)]
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        while forge.one(waiting) < 6:
            pass  # until all six wait for the lock; the time limit of the test ends the loop
        gate.rollback()
        found = {one.result() for one in plans}
    assert len(found) == 1
    assert [row["id"] for row in forge.rows(PLANNED)] == list(found)
