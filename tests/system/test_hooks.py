"""Hooks that end their process or fail at the start, under a real supervisor: no job is lost, and the log says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workers.test_hooks import HOOKED

if TYPE_CHECKING:
    from tests.support.fleet import Stage


@pytest.mark.promise("B8")
def test_a_hook_that_ends_the_process_is_a_crash_of_its_job_and_a_start_that_fails_is_tried_again(stage: Stage, monkeypatch, tmp_path):
    (tmp_path / "said").touch()
    monkeypatch.setenv("HOOKED", str(tmp_path / "said"))
    monkeypatch.setenv("HOOKED_FAILS_ONCE", str(tmp_path / "failed"))
    fleet = stage.run_fleet("--hooks", HOOKED, "--handlers", HOOKED, workers=1, poll="300s")
    fleet.wait_log(lambda event: "the model is away" in event.get("message", ""))
    row = stage.wait_state(stage.enqueue("hook:exits"), "completed")
    assert (row["result"], row["attempts"], row["crashes"]) == (2, 2, 1)
    assert row["history"][0]["error_code"] == "WORKER_CRASHED"
