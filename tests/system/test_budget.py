"""A budget under a real supervisor.

Jobs that exceed the budget together never run at once, and no job waits for a poll.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.workers.claim.test_budget import WEIGHTY

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


@pytest.mark.promise("B7", "B9")
def test_jobs_that_exceed_the_budget_together_run_one_at_a_time_and_all_complete(
    stage: Stage, gate: Gate, monkeypatch, tmp_path
):
    noted = tmp_path / "noted"
    monkeypatch.setenv("WEIGHED", str(noted))
    fleet = stage.run_fleet("--handlers", WEIGHTY, "--budget", "memory_mb=1000", workers=3, poll="300s", claim_size=2)
    with stage.connection.transaction():
        jobs = [stage.enqueue("weigh:noted") for _ in range(30)]
        free = stage.enqueue("weigh:free", '{"name": "free"}')
    arrival = gate.wait_arrival("free")
    for job in jobs:
        stage.wait_state(job, "completed")
    assert noted.read_text() == "+-" * 30
    arrival.open()
    stage.wait_state(free, "completed")

    # A killed worker's job releases its part of the budget.
    first, second = (stage.enqueue("weigh:gate", f'{{"name": "{name}"}}') for name in ("first", "second"))
    arrival = gate.wait_arrival("first")
    os.kill(arrival.pid, signal.SIGKILL)
    gate.wait_arrival("first").open()
    gate.wait_arrival("second").open()
    assert [stage.wait_state(job, "completed")["crashes"] for job in (first, second)] == [1, 0]
    assert fleet.stop() == 0
