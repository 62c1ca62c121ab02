"""Hostile input is rejected with a message, or is enqueued and ends as a job.

This is a few hundred inputs; `python -m tests.faults.hostile` has no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.hostile import WORK, Doors, Oddities, harm, put
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from tests.support.fleet import Stage


@pytest.mark.timeout(300)
def test_hostile_input_blocks_no_job_kills_no_worker_and_the_next_job_completes(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=WORK)
    before = fleet.workers()
    doors = Doors(stage.dsn, Oddities(7))
    try:
        jobs, refused = put(doors, 250, commands=1)
    finally:
        doors.close()
    assert len(jobs) > 50
    assert refused.total() > 50
    assert harm(stage, fleet, jobs, before=before, limit=LIMIT) == {}
    assert fleet.stop() == 0
