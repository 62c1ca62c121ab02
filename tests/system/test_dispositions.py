"""Every disposition of a handler, from a folder of handlers to the rows, in one run of a real supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

ENDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # kind: (payload, state, expected columns of its row). First the rows that later change again.
    "d:backoff": ("{}", "retrying", {"error": "ValueError: later", "attempts": 1}),
    "d:nobody-knows": ("{}", "scheduled", {"attempts": 0}),
    "t:noop": ("{}", "completed", {"result": None, "attempts": 1, "error": None}),
    "d:returns": ("{}", "completed", {"result": {"pages": [1, 2]}, "attempts": 1}),
    "d:completed": ("{}", "completed", {"result": {"by": "name"}}),
    "d:completed-raised": ("{}", "completed", {"result": "from the depth"}),
    "d:failed": ("{}", "failed", {"error": "the mail server said 550", "error_code": "MAIL_REFUSED", "attempts": 1}),
    "d:nack": ("{}", "retrying", {"error": "rate limit", "attempts": 1}),
    "d:nack-last": ("{}", "failed", {"error": "rate limit", "attempts": 1}),
    "d:retry": ("{}", "completed", {"result": "attempt 3", "attempts": 3}),
    "d:snooze": ("{}", "scheduled", {"attempts": 0, "error": None}),
    "d:poison": ("{}", "failed", {"error": "order 7 does not exist", "error_code": "NO_ORDER", "attempts": 1}),
    "d:poison-on": ("{}", "failed", {"error_code": "POISON", "attempts": 1}),
    "d:raises": ("{}", "failed", {"error": "ValueError: nope", "error_code": "UNHANDLED_ERROR", "attempts": 2}),
    "d:exit": ("{}", "failed", {"error_code": "UNHANDLED_ERROR", "attempts": 1, "crashes": 0}),
    "d:interrupt": ("{}", "failed", {"error_code": "UNHANDLED_ERROR", "attempts": 1, "crashes": 0}),
    "d:group": ("{}", "failed", {"error_code": "UNHANDLED_ERROR", "attempts": 1}),
    "d:unspeakable": ("{}", "failed", {"error_code": "UNHANDLED_ERROR", "attempts": 1}),
    "d:nul": ("{}", "failed", {"error_code": "UNHANDLED_ERROR", "attempts": 1}),
    "d:no-json": ("{}", "failed", {"error_code": "WORKER_SERIALIZATION_ERROR", "attempts": 1}),
    "d:async": ('{"n": 41}', "completed", {"result": 42}),
    "d:typed": ('{"n": "seven"}', "failed", {"error_code": "PAYLOAD_INVALID", "attempts": 1}),
}


@pytest.mark.promise("A5", "A22", "A26", "C3", "C15", "C34", "C35", "C36", "D12", "D18", "D19", "D20", "D21")
def test_every_disposition_leads_to_the_row_in_the_table(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2)
    jobs = {kind: stage.enqueue(kind, payload) for kind, (payload, _, _) in ENDS.items()}
    due = """SELECT extract(epoch FROM s.run_at - t.at)::float FROM jobherd.scheduled s
                JOIN t_trans t ON t.job = s.id AND t.place = 'scheduled' AND t.op = 'INSERT' WHERE s.id = %s"""
    rests = {}
    for kind, (_, state, expected) in ENDS.items():
        row = stage.wait_state(jobs[kind], state)
        assert {name: row[name] for name in expected} == expected, kind
        if state in {"retrying", "scheduled"}:
            rests[kind] = stage.call(due, jobs[kind])
    assert "ExceptionGroup" in stage.job(jobs["d:group"])["error"]
    assert "one" in stage.job(jobs["d:group"])["history"][-1]["traceback"]
    assert "SystemExit" in stage.job(jobs["d:exit"])["error"]
    assert "KeyboardInterrupt" in stage.job(jobs["d:interrupt"])["error"]
    assert "Unspeakable" in stage.job(jobs["d:unspeakable"])["error"]
    assert "n" in stage.job(jobs["d:typed"])["error"]
    assert "object" in stage.job(jobs["d:no-json"])["error"]
    assert [attempt["outcome"] for attempt in stage.attempts(jobs["d:raises"])] == ["retry", "failed"]
    assert [attempt["outcome"] for attempt in stage.attempts(jobs["d:retry"])] == ["retry", "retry", "completed"]
    for attempt in stage.attempts(jobs["d:raises"]):
        assert "ValueError: nope" in attempt["traceback"]
        assert attempt["started_at"] <= attempt["finished_at"]
        assert attempt["ran_on"]
    # Between the disposition and the end of the statement that records it, a busy machine may pause.
    assert 20 < rests["d:backoff"] <= 36, "30 s, plus or minus a fifth"
    assert 3590 < rests["d:nack"] <= 3600
    assert 3590 < rests["d:snooze"] <= 3600
    assert 40 < rests["d:nobody-knows"] <= 80
    assert not fleet.said(lambda event: event.get("level") == "warning" and " died " in event["message"]), (
        "no worker died of it"
    )
    assert sorted(fleet.workers()) == [0, 1]
    assert len(fleet.said(lambda event: event.get("message", "").endswith("is ready"))) == 3, (
        "no worker was replaced for it"
    )


@pytest.mark.promise("D22")
def test_snooze_and_abandon_do_not_count_an_attempt(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1)
    snoozed = stage.enqueue("d:snooze-short", '{"label": "snoozer"}')
    for _ in range(3):
        gate.wait_arrival("snoozer").open("snooze")
    gate.wait_arrival("snoozer").open("up")
    assert stage.wait_state(snoozed, "completed", "failed")["attempts"] == 1
    abandoned = stage.enqueue("d:abandon", '{"label": "abandoner"}')
    for _ in range(3):
        gate.wait_arrival("abandoner").open("abandon")
    gate.wait_arrival("abandoner").open("take")
    row = stage.wait_state(abandoned, "completed", "failed")
    assert (row["attempts"], row["result"]) == (1, "taken")
    assert [attempt["outcome"] for attempt in row["history"]] == ["abandoned"] * 3 + ["completed"]


@pytest.mark.promise("C12", "C13")
def test_job_past_its_expires_at_expires_and_never_starts(stage: Stage, gate: Gate):
    stage.run_fleet(workers=1, claim_size=2, claim_window="0s")
    late = stage.call(
        """SELECT jobherd.enqueue('t:noop', '{}', jsonb_build_object('expires_at', now() - interval '1 s'))"""
    )
    assert stage.wait_state(late, "expired")["attempts"] == 0
    # One claim gets this job and one that runs beyond its `expires_at`: the worker checks again just before
    # the call.
    for seconds in (0.2, 2.0, 20.0):  # a busy machine may need longer for the claim
        with stage.connection.transaction():
            first = stage.enqueue("t:gate", '{"label": "first"}')
            second = stage.call(
                """SELECT jobherd.enqueue('t:gate', '{"label": "second"}',
                    jsonb_build_object('expires_at', now() + make_interval(secs => %s)))""",
                seconds,
            )
        arrival = gate.wait_arrival("first")
        if stage.state(second) == "running":
            break
        arrival.open()
        stage.wait_state(first, "completed")
    assert stage.state(second) == "running"
    # The worker counts from the answer to its claim, which has arrived: after this, no time is left.
    stage.run("SELECT pg_sleep(%s)", seconds + 0.1)
    arrival.open()
    stage.wait_state(first, "completed")
    row = stage.wait_state(second, "expired")
    assert [attempt["outcome"] for attempt in row["history"]] == ["expired"]
