"""The stop sequence: the timer in the handler, SIGTERM, SIGKILL.

It ends every handler, whatever the handler does, and the job's row is correct.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import is_running, wait_for_exit

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


def test_handler_stuck_in_c_with_signals_blocked_is_killed_with_its_child_processes(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, grace="0.3s")
    other = stage.enqueue("t:gate", '{"label": "other"}')
    bystander = gate.wait_arrival("other")
    for seconds in (0.5, 4, 32):  # a busy machine may not have started all three in time
        label = f"stuck-{seconds}"
        job = stage.enqueue("x:stuck", f'{{"label": "{label}"}}', timeout=seconds)
        started = []
        with suppress(TimeoutError):
            for name in ("", "-grandchild", "-daemon"):
                started.append(gate.wait_arrival(label + name, timeout=seconds + 1))
            break
    stuck = started[0]
    with suppress(OSError):
        stuck.open()
    row = stage.wait_state(job, "failed")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert f"its timeout of {seconds} s" in row["error"]
    assert row["crashes"] == 0
    assert len(started) == 3
    for arrival in started:
        wait_for_exit(arrival.pid)
    took = "SELECT extract(epoch FROM finished_at - started_at) FROM jobherd.jobs WHERE id = %s"
    assert float(stage.call(took, job)) >= seconds + 2 * 0.3 - 0.05, "its timeout and two steps of the stop sequence"
    assert is_running(bystander.pid)
    bystander.open("never noticed")
    row = stage.wait_state(other, "completed")
    assert (row["attempts"], row["result"], row["history"][-1]["ran_on"].split("/")[1]) == (
        1,
        "never noticed",
        str(bystander.pid),
    )
    stage.wait(lambda: len(fleet.workers()) == 2, "the replacement worker")


@pytest.mark.promise("A48")
def test_handler_has_the_grace_period_to_clean_up_after_its_timeout(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, grace="60s")
    job = stage.enqueue("x:cleans-up", '{"label": "cleaning"}')
    arrival = gate.wait_arrival("cleaning")
    assert stage.state(job) == "running"
    arrival.open()
    row = stage.wait_state(job, "failed")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert "post_mortem" not in row["history"][-1], "the process was not killed"
    assert "cleans_up" in row["history"][-1]["traceback"]
    fleet.wait_ready(2)
    assert fleet.said("interrupted by JobTimeout"), "a process whose job was interrupted is not used again"


def test_handler_that_returns_a_result_after_its_timeout_completes_the_job(stage: Stage):
    stage.run_fleet(workers=1)
    job = stage.enqueue("x:finishes-late")
    assert stage.wait_state(job, "completed", "failed")["result"] == "what there was"


def test_handler_that_suppresses_every_exception_is_killed_after_its_timeout(stage: Stage):
    fleet = stage.run_fleet(workers=1, grace="0.3s")
    job = stage.enqueue("x:swallows")
    row = stage.wait_state(job, "failed")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert row["history"][-1]["post_mortem"]["signal"] == "SIGKILL"
    fleet.wait_ready(2)
    following = stage.enqueue("t:noop")
    stage.wait_state(following, "completed")


def test_jobs_timeout_overrides_its_kinds_and_never_interrupts_the_next_job(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1)
    late = stage.call("""SELECT jobherd.enqueue('t:once', '{"label": "late"}', '{"timeout": 0.2}')""")
    assert stage.wait_state(late, "failed")["error_code"] == "JOB_TIMEOUT"
    in_time = stage.call("""SELECT jobherd.enqueue('t:once', '{"label": "in time"}', '{"timeout": 10}')""")
    following = stage.enqueue("t:once", '{"label": "following"}')
    gate.wait_arrival("in time").open()
    arrival = gate.wait_arrival("following")
    # The timer of the previous job would expire while this job runs: wait until that time is past.
    ring = stage.call("SELECT clock_timestamp() + interval '10.1 s'")
    stage.run("SELECT pg_sleep_until(%s)", ring)
    arrival.open("undisturbed")
    assert stage.wait_state(in_time, "completed")
    assert stage.wait_state(following, "completed")["result"] == "undisturbed"
    assert (
        len(fleet.said(lambda event: "is ready" in event.get("message", "") and event["message"].startswith("worker")))
        == 2
    )


def test_a_handler_that_moves_to_another_process_group_is_killed(stage: Stage):
    place = stage.write(
        "moves.py",
        """
import os, time
from jobherd import handler

@handler("x:moves", timeout=0.2, max_attempts=1)
def moves():
    os.setpgid(0, os.getpgid(os.getppid()))
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
""",
    )
    stage.run_fleet(workers=1, grace="0.3s", handlers=place)
    assert stage.wait_state(stage.enqueue("x:moves"), "failed")["error_code"] == "JOB_TIMEOUT"
