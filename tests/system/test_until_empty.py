"""`run --until-empty`: drain what is there, and exit with 0, or with 1 if a job failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


def test_it_leaves_when_nothing_is_left_even_if_jobs_have_failed_and_others_are_due_later(stage: Stage):
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


def test_it_waits_for_what_runs_and_for_what_that_enqueues(stage: Stage, gate: Gate):
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


def test_on_an_empty_queue_it_leaves_at_once(stage: Stage):
    fleet = stage.start("--until-empty", workers=1)
    assert fleet.wait_exit() == 0


def test_it_waits_for_a_job_that_another_supervisor_runs(stage: Stage, gate: Gate):
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


def test_it_says_what_is_left_that_waits_for_a_key_or_a_handler(stage: Stage):
    """It left with 0 and said that nothing is left to do: a CI job that drains took it for done."""
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
def test_it_exits_with_1_if_a_job_failed(stage: Stage, kind: str):
    """A CI job that drained the queue was green whatever had failed."""
    failing = stage.enqueue(kind)
    retrying = stage.enqueue("d:backoff")
    fleet = stage.start("--until-empty", workers=1)
    assert fleet.wait_exit() == 1
    assert stage.states([failing, retrying]) == ["failed", "retrying"]
    fleet.wait_log("1 job failed, so the exit code is 1; --ignore-failures makes it 0")


def test_a_job_that_retries_is_not_a_failed_one(stage: Stage):
    retrying = stage.enqueue("d:backoff")
    fleet = stage.start("--until-empty", workers=1)
    assert fleet.wait_exit() == 0
    assert stage.states([retrying]) == ["retrying"]
