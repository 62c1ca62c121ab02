"""From git push and the hook, through a supervisor with its child processes, to the recorded rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.shell import jobherd
from tests.handlers.forge.conftest import Forge
from tests.support.fleet import Stage
from tests.support.repositories import generated, git, story, truth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.gate import Gate

pytestmark = pytest.mark.system

OPEN = "SELECT count(*) FROM jobherd.forge_push_events WHERE processed_at IS NULL"
LEFT = "SELECT count(*) FROM jobherd.jobs WHERE state NOT IN ('completed', 'scheduled')"


@pytest.fixture
def stage(forge: Forge, gate: Gate) -> Iterator[Stage]:
    with Stage(forge.dsn, forge.folder) as standing:
        yield standing


@pytest.mark.promise("A2", "A9")
def test_supervisor_records_200_commits_while_they_are_pushed(forge: Forge, stage: Stage) -> None:
    fleet = stage.run_fleet(handlers="jobherd.handlers.forge", workers=2)
    source = generated(forge.folder / "source.git", 200)
    remote = forge.repository()
    steps = story(source)
    for step in steps:
        forge.push(source, remote, step)
    stage.wait(lambda: forge.one(OPEN) == 0 and forge.one(LEFT) == 0, "the jobs to be done")
    refs = sum(len(step.refs) for step in steps)
    kinds = forge.rows("SELECT kind, count(*) FROM jobherd.history GROUP BY kind ORDER BY kind")
    assert kinds == [{"kind": "push:process", "count": refs}, {"kind": "repo:size_recalc", "count": refs}]
    totals = forge.one(
        "SELECT count(*) AS commits, sum(added)::bigint AS added, sum(deleted)::bigint AS deleted FROM jobherd.forge_commits"
    )
    expected = truth(source)
    assert totals == {"commits": expected.commits, "added": expected.added, "deleted": expected.deleted}
    branches = len(git("for-each-ref", "refs/heads", at=remote).splitlines())
    assert forge.one("SELECT branches, tags FROM jobherd.forge_repos") == {"branches": branches, "tags": 1}
    assert fleet.stop() == 0


def test_demo_pushes_shows_its_jobs_and_exits(forge: Forge, stage: Stage) -> None:
    stage.run_fleet(handlers="jobherd.handlers.forge", workers=2)
    for _ in range(2):  # the second run deletes its branch and pushes it again
        said = jobherd("forge", "demo", "--dir", forge.folder / "demo", dsn=forge.dsn)
        assert said.code == 0, said
        assert said.out.startswith("\npushing ")
        assert "completed" in said.out
        assert "jobs have finished\n" in said.out
        assert "\ntrending: forge (" in said.out
        assert said.out.count("push:process") >= 2
        assert "\nmetrics and health:   http://127.0.0.1:8790/\n" in said.out
    assert forge.one("SELECT count(*) FROM jobherd.forge_commits") > 0
    assert forge.one("SELECT count(*) FROM jobherd.scheduled WHERE kind = 'trending:compute'") == 1
