"""`attempts_per_step`: an attempt that has recorded a step counts as the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.seats import count_of
from tests.workers.run.test_steps import bank, records, run, start

if TYPE_CHECKING:
    from tests.support.gate import Gate
    from tests.support.seats import Bench

__all__ = ["bank"]


def attempts(row):
    return [(one["attempt"], one["outcome"]) for one in row["history"]]


@pytest.mark.parametrize("how", ["step", "transaction", "wait", "spawn"])
def test_max_attempts_limits_attempts_without_progress(bank: Bench, how: str):
    child = start(bank)
    for _ in range(3):
        bank.ask("SELECT jobherd.signal('progress', '1')")
    row = run(bank, child, "step:progress", how=how)
    assert attempts(row) == [(1, "retry"), (1, "retry"), (1, "retry"), (2, "failed")]
    assert (row["state"], row["attempts"], row["error"]) == ("failed", 2, "ValueError: no step is left")
    assert [attempt for _, attempt, _ in records(bank, row["id"]).values()] == [1, 1, 1]


def test_attempt_whose_step_was_not_recorded_counts_toward_max_attempts(bank: Bench):
    row = run(bank, start(bank), "step:progress", how="broken")
    assert attempts(row) == [(1, "retry"), (2, "failed")]
    assert records(bank, row["id"]) == {}


def test_attempt_that_sleeps_counts_as_the_first_one(bank: Bench):
    child = start(bank)
    job = bank.enqueue("step:progress", how="sleep")
    child.nudge()
    bank.wait_until(lambda: count_of(child, "step:progress", "suspended") == 1, "the sleep")
    assert bank.wait(job, "scheduled")["attempts"] == 0
    assert records(bank, job)["sleep:1"][1] == 1


def test_status_board_and_job_row_show_the_reset_attempt_count(bank: Bench, gate: Gate):
    child = start(bank)
    job = bank.enqueue("step:progress", how="gate")
    child.nudge()
    arrival = gate.wait_arrival("gate")
    now = child.board.now()
    assert now is not None
    assert (now.job, now.attempts, now.max_attempts) == (job, 1, 2), "the second attempt has recorded a step"
    assert bank.job(job)["attempts"] == 1
    arrival.open()
