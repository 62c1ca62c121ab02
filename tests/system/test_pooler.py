"""Behind pgbouncer, in both modes: jobs are done once, a dead child's jobs come back, and the log says what stands between."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.pooler import PROGRAM, Pooler

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

LONG = 90.0
pytestmark = pytest.mark.skipif(not os.path.exists(PROGRAM), reason="Debian's pgbouncer is not installed: make pgbouncer")


@pytest.mark.parametrize(("mode", "direct"), [("transaction", False), ("transaction", True), ("session", False)])
def test_jobs_are_done_once_through_a_pooler_that_is_killed_and_a_child_that_is(stage: Stage, gate: Gate, mode: str, direct: bool):
    with Pooler(stage.dsn, mode, size=20) as pooler:
        settings = {"listen_dsn": stage.dsn} if direct else {}
        fleet = stage.run_fleet(dsn=pooler.dsn, workers=2, poll="1s", db_retry_initial="0.1s", **settings)
        if not direct:
            fleet.wait_log("a pooler stands between this supervisor and the server", limit=LONG)
        # One that loses its prepared statements connects anew, and is entered anew.
        own = "SELECT DISTINCT backend_pid FROM jobherd.children"
        stage.wait(lambda: stage.run(own) == [(0,)], "none of its backends to be a child's own", limit=LONG)
        jobs = [row[0] for row in stage.run("""SELECT jobherd.enqueue('t:spin', '{"seconds": 0.002}') FROM generate_series(1, 100)""")]
        stage.wait_all(jobs, "completed", limit=LONG)
        kept, torn = (stage.enqueue("t:gate", f'{{"label": "{label}"}}') for label in ("kept", "torn"))
        first, second = gate.wait_arrival("kept", LONG), gate.wait_arrival("torn", LONG)
        pooler.kill()
        pooler.start()
        first.open("kept")
        os.kill(second.pid, signal.SIGKILL)
        gate.wait_arrival("torn", LONG).open("again")
        assert stage.wait_state(kept, "completed", limit=LONG)["attempts"] == 1
        row = stage.wait_state(torn, "completed", limit=LONG)
        assert (row["attempts"], row["crashes"]) == (2, 1)
        assert stage.completed_twice() == []
        assert fleet.stop() == 0
