"""Promises of the single-process worker that no other test shows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from jobherd import Client
from jobherd.handlers._enqueue import waiting as _waiting
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


@pytest.mark.promise("C16", "D19", "B50", "B52")
def test_wait_many_returns_a_result_an_error_code_and_a_deleted_running_job(
    stage: Stage, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    """One job completes, one fails with a code, and one is deleted from the view while it runs."""
    monkeypatch.setattr(_waiting, "BACKSTOP", (300.0, 300.0))
    stage.run_fleet(workers=2)
    returns, refused, deleted = (
        stage.enqueue("t:gate", '{"label": "returns"}'),
        0,
        stage.enqueue("t:gate", '{"label": "deleted"}'),
    )
    arrival, doomed = gate.wait_arrival("returns"), gate.wait_arrival("deleted")
    refused = stage.enqueue("d:failed")
    answers: list[dict[int, dict[str, object]]] = []
    with Client(stage.dsn) as client:
        waiting = threading.Thread(
            target=lambda: answers.append(client.wait_many([returns, refused, deleted], timeout=LIMIT))
        )
        waiting.start()
        stage.wait(
            lambda: stage.call("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785684585"),
            "a session that waits for the jobs",
        )
        stage.run("DELETE FROM jobherd.jobs WHERE id = %s", deleted)
        doomed.wait_gone()
        arrival.open("the answer")
        waiting.join()
    (rows,) = answers
    assert [rows[job]["state"] for job in (returns, refused, deleted)] == ["completed", "failed", "cancelled"]
    assert rows[returns]["result"] == "the answer"
    assert rows[refused]["error_code"] == "MAIL_REFUSED"
    assert rows[deleted]["error_code"] == "JOB_CANCELLED"
    assert rows[deleted]["crashes"] == 0
