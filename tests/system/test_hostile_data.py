"""What means no good comes through a door and is refused in words, or ends as a job.

Some hundred of it; `python -m tests.faults.hostile` has no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.hostile import WORK, Doors, Oddities, harm, put
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from tests.support.fleet import Stage


@pytest.mark.timeout(300)
def test_nothing_is_stuck_nobody_dies_and_the_next_job_is_done_as_if_nothing_had_been(stage: Stage):
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
