"""Workers are replaced by number of jobs, age and memory.

There is no gap without a ready worker, and no job is lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.support.fleet import is_foreign, is_ready
from tests.support.patience import LIMIT
from tests.system.test_reload import least_ready

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

HUNGRY = """
from jobherd import handler
from tests.support.gate import at_gate
kept = []

@handler("r:eats", timeout="5m")
def eats(label: str) -> None:
    kept.append(b"x" * 60_000_000)
    at_gate(label)
"""


def test_worker_is_replaced_after_max_jobs_without_a_gap_and_without_a_lost_job(stage: Stage):
    fleet = stage.run_fleet(workers=2, max_jobs=40, jitter=0.2, poll="300s")
    until = time.monotonic() + LIMIT
    # How many workers are replaced during these jobs depends on how fast the machine starts a new one.
    while len(fleet.said(is_ready)) < 5:
        assert time.monotonic() < until, fleet.text()
        jobs = stage.run("""SELECT jobherd.enqueue('t:spin', '{"seconds": 0.004}') FROM generate_series(1, 500)""")
        stage.wait_all([row[0] for row in jobs], "completed")
    assert least_ready(fleet, 2) == 2
    assert fleet.stop() == 0
    assert stage.completed_twice() == []
    # A job that is claimed just when its worker is told to exit is claimed again, without counting an
    # attempt.
    assert stage.call("SELECT max(attempts) FROM jobherd.history") == 1
    assert stage.count("attempts") == 0, "no started job was returned to the queue"
    assert not fleet.said(lambda event: event.get("level") in {"warning", "error"} and not is_foreign(event)), (
        fleet.text()
    )


def test_worker_is_replaced_at_max_age_between_two_jobs_and_not_during_one(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, max_age="1s", jitter=0)
    job = stage.enqueue("t:gate", '{"label": "old"}')
    arrival = gate.wait_arrival("old")
    fleet.wait_ready(2)  # its replacement is ready while the old worker still runs its job
    assert stage.state(job) == "running"
    arrival.open()
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["history"][-1]["ran_on"].split("/")[1]) == (1, str(arrival.pid))
    fleet.wait_log("worker 0 exited")
    assert least_ready(fleet, 1) == 1
    assert fleet.stop() == 0


def test_worker_that_exceeds_max_rss_is_replaced_after_its_job(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, max_rss="80MB", jitter=0, handlers=stage.write("hungry.py", HUNGRY))
    job = stage.enqueue("r:eats", '{"label": "full"}')
    arrival = gate.wait_arrival("full")
    fleet.wait_ready(2)
    assert stage.state(job) == "running", "the job may finish first"
    arrival.open()
    assert stage.wait_state(job, "completed")["attempts"] == 1
    fleet.wait_log("worker 0 exited")
    assert len(fleet.said(is_ready)) == 2
    assert fleet.stop() == 0


LEAVES_A_THREAD = """
import threading
from jobherd import handler

@handler("r:thread")
def leaves_a_thread() -> None:
    threading.Thread(target=threading.Event().wait, name="forgotten").start()
"""


def test_log_names_a_kind_whose_jobs_make_their_worker_be_replaced_each_time(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=stage.write("thread.py", LEAVES_A_THREAD))
    for _ in range(3):
        stage.wait_state(stage.enqueue("r:thread", "{}"), "completed")
    event = fleet.wait_log(lambda said: "worker is replaced" in said["message"] and said["level"] == "warning")
    assert (event["kind"], event["replaced_for_kind"]) == ("r:thread", 3)
    assert "forgotten" in event["message"]
    assert fleet.stop() == 0
