"""Handlers that damage their own process.

Each job has the right outcome, the next job gets a process like new, and no other process is affected.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import is_running
from tests.system import hostile
from tests.system.hostile import ACTS, LATE
from tests.system.test_hygiene import files

if TYPE_CHECKING:
    from tests.support.fleet import Stage

LIMIT = 120.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "codes", [(None,), ("UNHANDLED_ERROR", "WORKER_CRASHED", "WORKER_SERIALIZATION_ERROR"), ("JOB_TIMEOUT",)], ids=str
)
def test_hostile_handler_has_the_right_outcome_and_the_next_job_gets_a_clean_process(
    stage: Stage, codes: tuple[str | None, ...]
):
    fleet = stage.run_fleet(
        workers=1, claim_size=1, handlers=hostile.HERE, grace="0.2s", respawn_initial="0.01s", respawn_max="0.1s"
    )
    maintenance = fleet.maintenance()
    expected = stage.wait_state(stage.enqueue("h:probe"), "completed", limit=LIMIT)["result"]
    before = sorted(files(fleet.pid).values())
    pairs = {}
    for what in (name for name, act in ACTS.items() if act.code in codes):
        kind = "h:late" if what in LATE else "h:does"
        pairs[what] = (stage.enqueue(kind, f'{{"what": "{what}"}}'), stage.enqueue("h:probe"))
    wrong: dict[str, object] = {}
    for what, (job, after) in pairs.items():
        row = stage.wait_state(job, "completed", "failed", limit=LIMIT)
        said = (row["state"], row["error_code"], row["crashes"])
        if said != (ACTS[what].state, ACTS[what].code, ACTS[what].crashes):
            wrong[what] = (said, row["error"])
        wrong |= differences(stage, after, expected, what)
    assert wrong == {}
    assert is_running(maintenance), "no other process dies"
    assert fleet.said("an error of Jobherd's own") == []
    until = time.monotonic() + LIMIT
    while len(files(fleet.pid)) != len(before):  # the last worker may still be exiting
        assert time.monotonic() < until, (before, sorted(files(fleet.pid).values()))
        select.select([], [], [], 0.01)
    assert stage.completed_twice() == []
    assert fleet.stop() == 0


CHEAP = (
    "moves_away", "opens_the_umask", "changes_the_environment", "replaces_the_environment", "raises_the_recursion_limit", "collects_no_garbage",
    "reckons_with_three_digits", "binds_a_context_variable", "reckons_with_small_numbers", "reads_no_long_numbers", "writes_ascii", "traces",
    "takes_the_streams", "gives_sockets_no_time", "hooks_generators", "loses_the_streams", "loses_the_environment",
    "configures_logging", "configures_a_logger", "runs_a_loop", "makes_warnings_errors", "silences_logging",
)  # fmt: skip


@pytest.mark.timeout(300)
def test_next_job_of_the_same_claim_also_gets_a_clean_process(stage: Stage):
    first = stage.enqueue("h:probe")
    with stage.connection.transaction():
        pairs = {what: (stage.enqueue("h:does", f'{{"what": "{what}"}}'), stage.enqueue("h:probe")) for what in CHEAP}
    fleet = stage.run_fleet(workers=1, claim_size=50, claim_window="0s", handlers=hostile.HERE)
    expected = stage.wait_state(first, "completed", limit=LIMIT)["result"]
    wrong: dict[str, object] = {}
    for what, (_, after) in pairs.items():
        wrong |= differences(stage, after, expected, what)
    assert wrong == {}
    assert stage.call("SELECT count(DISTINCT token) FROM jobherd.history") == 1, "one claim"
    assert fleet.stop() == 0


def test_job_fails_when_inspecting_its_payloads_exception_raises_system_exit(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=hostile.HERE)
    row = stage.wait_state(stage.enqueue("h:bound", '{"what": "x"}'), "completed", "failed", limit=LIMIT)
    assert (row["state"], row["error_code"], row["crashes"]) == ("failed", "UNHANDLED_ERROR", 0), (
        "the exception cannot be inspected, so the error code is not PAYLOAD_INVALID"
    )
    assert fleet.stop() == 0


@pytest.mark.parametrize("batch", [1, 50])
def test_watchdog_that_a_job_sets_does_not_end_the_next_job(stage: Stage, batch: int):
    with stage.connection.transaction():
        jobs = [stage.enqueue("h:does", '{"what": "sets_a_watchdog"}'), stage.enqueue("h:alone")]
    fleet = stage.run_fleet(workers=1, claim_size=batch, claim_window="0s", handlers=hostile.HERE)
    stage.wait_all(jobs, "completed")
    assert fleet.stop() == 0


def differences(stage: Stage, probe: int, expected: dict[str, Any], what: str) -> dict[str, object]:
    """Return what a probe finds that differs from a fresh process."""
    row = stage.wait_state(probe, "completed", "failed", limit=LIMIT)
    found = row["result"] or {"error": row["error"]}
    names = found.keys() | expected.keys()
    other = {name: (found.get(name), expected.get(name)) for name in names if found.get(name) != expected.get(name)}
    return {f"after {what}": other} if other else {}
