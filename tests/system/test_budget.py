"""A budget under a real supervisor.

Never two at once that do not fit, and nobody waits for a poll.
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
def test_what_does_not_fit_never_runs_at_once_and_all_of_it_runs(stage: Stage, gate: Gate, monkeypatch, tmp_path):
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

    # One that is killed gives its room back with its job.
    first, second = (stage.enqueue("weigh:gate", f'{{"name": "{name}"}}') for name in ("first", "second"))
    arrival = gate.wait_arrival("first")
    os.kill(arrival.pid, signal.SIGKILL)
    gate.wait_arrival("first").open()
    gate.wait_arrival("second").open()
    assert [stage.wait_state(job, "completed")["crashes"] for job in (first, second)] == [1, 0]
    assert fleet.stop() == 0
