"""Tests the deletion of keys that no live job holds, also after a maintenance process dies during the deletion."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobherd import Client
from jobherd.workers.system import failpoints
from tests.support.points import Points
from tests.support.processes import wait_for_exit
from tests.support.seats import Bench

KEYS = "SELECT count(*) AS n FROM jobherd.keys"


def fill(bench: Bench) -> list[int]:
    """Enqueue 20 unique jobs and cancel all but five, which are returned."""
    client = Client(bench.dsn)
    jobs = client.enqueue_many("act:nothing", ({"n": n} for n in range(20)), unique=("n",))
    for job in jobs[5:]:
        client.cancel(job)
    client.close()
    return list(map(int, jobs[:5]))


def held(bench: Bench) -> list[int]:
    return [row["job"] for row in bench.ask("SELECT job FROM jobherd.keys ORDER BY job")]


def test_keys_of_finished_jobs_are_deleted_and_others_stay(bench: Bench):
    live = fill(bench)
    bench.start("maintenance")
    bench.wait_until(lambda: bench.ask(KEYS)[0]["n"] <= 5, "the end of the dead keys")
    assert held(bench) == live


@pytest.mark.parametrize("point", ["sweep_keys.before", "sweep_keys.sent", "sweep_keys.done"])
def test_next_process_completes_the_deletion_if_one_dies_during_it(
    bench: Bench, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(failpoints.VARIABLE, str(tmp_path / "points"))
    monkeypatch.setattr(failpoints, "armed", True)
    monkeypatch.setattr(failpoints, "reach", failpoints._armed)
    points = Points(tmp_path / "points")
    live = fill(bench)
    token = points.arm(point, "kill")
    first = bench.fork("maintenance")
    assert points.wait_taken(token) == first.pid
    wait_for_exit(first.pid)
    bench.start("maintenance")
    bench.wait_until(lambda: bench.ask(KEYS)[0]["n"] <= 5, "the end of the dead keys")
    assert held(bench) == live
