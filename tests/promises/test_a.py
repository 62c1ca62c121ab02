"""Promises of the forge's worker that no other test shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobherd.sql import CHANNEL

if TYPE_CHECKING:
    from tests.support.fleet import Stage

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'jobherd:%%'"
)


@pytest.mark.promise("A7", "A8", "A49", "A50")
def test_supervisor_uses_two_more_sessions_than_workers_and_leaves_none(stage: Stage):
    """One session listens and one belongs to maintenance. A drain ends all sessions, also the one that listens."""
    assert CHANNEL == "jobherd_jobs"
    fleet = stage.run_fleet(workers=3, http="127.0.0.1:0", poll="300s")
    stage.wait_all([stage.enqueue("t:noop") for _ in range(5)], "completed")
    stage.wait(lambda: stage.call(SESSIONS) == 3 + 2, "workers + 2 sessions")
    assert fleet.stop() == 0
    stage.wait(lambda: stage.call(SESSIONS) == 0, "no session")
