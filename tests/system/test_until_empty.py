"""`run --until-empty`: run the ready jobs and exit with 0, or with 1 if a job failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


def test_until_empty_exits_although_jobs_have_failed_are_paused_or_are_due_later(stage: Stage):
    jobs = stage.enqueue_many("t:noop", 200)
    failing = stage.enqueue("d:raises")
    crashing = stage.enqueue("c:exit")
    later = stage.call("""SELECT jobherd.enqueue('t:noop', '{}', '{"delay": "1 day"}')""")
    backed_off = stage.enqueue("d:backoff")
    stage.run("SELECT jobherd.pause('closed')")
    paused = stage.enqueue("t:noop", queue="closed")
    fleet = stage.start("--until-empty", "--ignore-failures", workers=2)
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    assert stage.census(jobs) == {"completed": 200}
    assert stage.states([failing, crashing, later, backed_off, paused]) == [
        "failed",
        "failed",
        "scheduled",
        "retrying",
        "ready",
    ]
    assert stage.completed_twice() == []


def test_until_empty_waits_for_running_jobs_and_for_jobs_enqueued_meanwhile(stage: Stage, gate: Gate):
    job = stage.enqueue("t:gate", '{"label": "slow"}')
    fleet = stage.start("--until-empty", workers=2)
    arrival = gate.wait_arrival("slow")
    other = stage.enqueue("t:noop")
    stage.wait_state(other, "completed")
    assert not fleet.note_exit()
    following = stage.enqueue("t:gate", '{"label": "following"}')
    arrival.open()
    gate.wait_arrival("following").open()
    assert fleet.wait_exit() == 0
    assert stage.states([job, following]) == ["completed"] * 2


def test_until_empty_exits_at_once_if_the_queue_is_empty(stage: Stage):
    fleet = stage.start("--until-empty", workers=1)
    assert fleet.wait_exit() == 0


def test_until_empty_waits_for_a_job_that_another_supervisor_runs(stage: Stage, gate: Gate):
    other = stage.run_fleet(workers=1)
    stage.enqueue("t:gate", '{"label": "elsewhere"}')
    arrival = gate.wait_arrival("elsewhere")
    fleet = stage.start("--until-empty", workers=1)
    fleet.wait_ready(1)
    before = len(fleet.log)
    arrival.open()
    assert fleet.wait_exit() == 0
    assert before < len(fleet.log)
    assert other.stop() == 0


def test_until_empty_logs_jobs_that_wait_for_a_key_or_a_handler(stage: Stage):
    """Without this line, a CI job that drains the queue would take the exit code 0 for completion."""
    unknown = [stage.enqueue("no:such") for _ in range(2)]
    keyless = stage.call("""SELECT jobherd.enqueue('t:noop', '{}', '{"delay": "1 minute"}')""")
    stage.run("""UPDATE jobherd.scheduled SET last_error = '{"code": "KEY_MISSING"}'""")
    stage.enqueue("no:such", queue="elsewhere")
    fleet = stage.start("--until-empty", "--queues", "default", workers=1)
    fleet.wait_log(
        f"jobs remain that wait for what this supervisor does not have: 1 for a key of JOBHERD_KEYS (job {keyless}) and "
        f"2 for a handler of their kind (job {unknown[0]})"
    )
    assert fleet.wait_exit() == 0


@pytest.mark.parametrize("kind", ["d:raises", "d:poison", "c:exit"])
def test_until_empty_exits_with_1_if_a_job_failed(stage: Stage, kind: str):
    """Otherwise a CI job that drains the queue would pass although jobs failed."""
    failing = stage.enqueue(kind)
    retrying = stage.enqueue("d:backoff")
    fleet = stage.start("--until-empty", workers=1)
    assert fleet.wait_exit() == 1
    assert stage.states([failing, retrying]) == ["failed", "retrying"]
    fleet.wait_log("1 job failed, so the exit code is 1; --ignore-failures makes it 0")


def test_until_empty_does_not_count_a_retrying_job_as_failed(stage: Stage):
    retrying = stage.enqueue("d:backoff")
    fleet = stage.start("--until-empty", workers=1)
    assert fleet.wait_exit() == 0
    assert stage.states([retrying]) == ["retrying"]
