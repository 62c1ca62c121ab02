"""Smoke test of the cost of remote workers in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.bench.gateway import clients
from tests.gateway.conftest import QUEUE, serve

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.postgres import Cluster

JOBS = 2000


@pytest.mark.promise("E22")
def test_2000_jobs_of_8_remote_workers_need_at_most_400_commits_and_no_rollback(stage: Stage, cluster: Cluster):
    served = serve(stage)
    counts = "SELECT xact_commit, xact_rollback FROM pg_stat_database WHERE datname = %s"
    name = psycopg.conninfo.conninfo_to_dict(stage.dsn)["dbname"]
    with psycopg.connect(cluster.dsn(), autocommit=True) as outside:

        def read() -> tuple[int, int]:
            """Return PostgreSQL's counts. Each session adds to them when it is idle, at most once a second."""
            stage.run("SELECT pg_stat_force_next_flush()")
            return outside.execute(counts, [name]).fetchone()

        commits, rollbacks = read()
        with clients(1, "tests.bench.gateway_calls", served.where, 8, 100):
            jobs = stage.enqueue_many("e22:job", JOBS, queue=QUEUE)
            stage.wait(
                lambda: stage.call("SELECT count(*) FROM jobherd.history WHERE kind = 'e22:job'") == JOBS,
                lambda: f"the end of {stage.census(jobs)}",
            )
        # Its sessions have ended, so their counts are complete.
        assert served.fleet.stop() == 0
        committed, rolled_back = read()
    assert rolled_back - rollbacks == 0
    assert committed - commits <= 0.2 * JOBS
    assert stage.call("SELECT max(attempts) FROM jobherd.history") == 1
