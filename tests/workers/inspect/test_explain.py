"""The sentences that explain a job in each state, and what prevents its start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobherd.workers.inspect import explain as reasons

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
JOB = {
    "asked_at": NOW, "id": 7, "kind": "mail:receipt", "queue": "mail", "priority": 0, "state": "ready", "attempts": 0, "max_attempts": 5, "crashes": 0,
    "error": None, "error_code": None, "run_at": NOW - timedelta(seconds=300), "created_at": NOW - timedelta(seconds=300), "started_at": None,
    "finished_at": None, "progress": None, "gates": None, "declared": True, "alone": False, "ahead": 0, "queue_runs": False, "workers": 2, "idle": 0,
    "host": None, "pid": None, "slot": None, "via": None, "lease_left": None, "claimed_together": None, "cancelled": None,
    "turns": True, "sharing": 0, "ahead_elsewhere": 0, "queues_before": 0, "largest_before": None,
    "schedule": None, "scheduled_for": None, "missed": None,
}  # fmt: skip
GATE = {
    "scope": "queue",
    "name": "mail",
    "paused_at": None,
    "tokens": None,
    "paused_by": None,
    "reason": None,
    "resume_at": None,
    "max_running": None,
    "running": None,
    "each_running": None,
    "partition": None,
    "partition_running": None,
    "partition_waits": None,
    "each_rate": None,
    "partition_opens_at": None,
    "weights": None,
}
STRICT = {"turns": False, "ahead_elsewhere": 20, "queues_before": 1, "largest_before": "news"}
EACH = {"each_running": 2, "partition": "acme", "partition_running": 1}
AT = (NOW - timedelta(seconds=60)).isoformat()


def tell(history=(), **changed):
    return reasons.explain(JOB | changed, history, lambda moment: moment.strftime("%H:%M"))


@pytest.mark.parametrize(
    ("changed", "says", "remedy"),
    [
        ({"workers": 0}, "no supervisor with workers holds a lease", "jobherd run"),
        ({"declared": False}, "no worker has ever declared the kind mail:receipt", "jobherd check"),
        ({"error_code": "WORKER_RESOLUTION_ERROR", "error": "x"}, "the worker that claimed it last has no handler for kind mail:receipt", "jobherd run --handlers"),
        ({"error_code": "WORKER_RESOLUTION_ERROR", "error": "x"}, "last error: WORKER_RESOLUTION_ERROR: x", "jobherd run --handlers"),
        ({"idle": 1}, "no supervisor serves queue mail: the job has been due for 5 min, and 1 worker is idle", "--queues mail"),
        ({"idle": 1, "queue_runs": True}, "it should start now", ""),
        ({"idle": 1, "queue_runs": True, "ahead": 4}, "4 jobs of queue mail are ahead of it", ""),
        ({"ahead": 10_000}, "more than 9,999 jobs of queue mail are ahead of it, and all 2 workers are busy", ""),
        ({}, "it is the first of queue mail; all 2 workers are busy", ""),
        ({"workers": 1}, "it is the first of queue mail; the only worker is busy", ""),
        ({"schedule": "feed", "scheduled_for": NOW, "missed": 0}, "enqueued by schedule feed for 12:00", ""),
        ({"schedule": "feed", "scheduled_for": NOW, "missed": 2}, "for 12:00, also for 2 missed instants", ""),
        ({"ahead": 3, "sharing": 2}, "the workers take turns between 3 queues that hold jobs, mail among them", "jobherd run --queue-weights mail=3"),
        ({"sharing": 1}, "the workers take turns between 2 queues that hold jobs", "jobherd run --queue-weights mail=3"),
        (STRICT, "20 jobs of queue news are ahead of it, and all 2 workers are busy", "jobherd run --queue-order turns"),
        (STRICT | {"ahead": 1}, "a job of queue mail and 20 jobs of queue news are ahead of it", "jobherd run --queue-order turns"),
        (STRICT | {"ahead_elsewhere": 1}, "a job of queue news is ahead of it", "jobherd run --queue-order turns"),
        (STRICT | {"queues_before": 4}, "20 jobs of 4 other queues, most of them of news, are ahead of it", "jobherd run --queue-order turns"),
        (STRICT, "because the order of the queues is strict", "jobherd run --queue-order turns"),
        (STRICT | {"turns": True}, "because they have a lower number in queue_priorities", "jobherd run --queue-priorities"),
        ({"ahead": 9, "gates": [GATE | {"weights": {}}]}, "partitions of queue mail take turns, so jobs of others may start after it", ""),
        ({"gates": [GATE | EACH | {"partition_running": 2}]}, "waiting: it waits for its partition acme: 2 of 2 run", ""),
        ({"gates": [GATE | EACH | {"partition_waits": True}]}, "an earlier job of it waits for a retry or is set aside", ""),
        ({"gates": [GATE | EACH | {"each_rate": "10/s", "partition_opens_at": NOW.isoformat()}]}, "waiting: the rate limit allows 10/s starts of its partition acme, and the next one is at 12:00", ""),
        ({"gates": [GATE | EACH], "idle": 1, "queue_runs": True}, "it should start now", ""),
        ({"ahead": 1, "workers": 1}, "a job of queue mail is ahead of it, and the only worker is busy", ""),
        ({"attempts": 22, "max_attempts": 30, "error": "x"}, "its 22nd of 30 attempts", ""),
        ({"attempts": 111, "max_attempts": 200, "error": "x"}, "its 111th of 200 attempts", ""),
        ({"alone": True}, "claimed alone", ""),
        ({"attempts": 2, "error": "boom\nmore", "error_code": "X"}, "its second of 5 attempts ended without success: X: boom", ""),
        ({"gates": [GATE | {"paused_at": AT, "paused_by": "ann", "reason": "full"}]}, "its queue mail was paused by ann at 11:59, reason: full", "jobherd resume mail"),
        ({"gates": [GATE | {"scope": "kind", "name": "mail:receipt", "paused_at": AT}]}, "its kind mail:receipt was paused by an unknown user", "--kind mail:receipt"),
        ({"gates": [GATE | {"scope": "all", "name": "*", "paused_at": AT, "resume_at": NOW.isoformat()}]}, "everything was paused by an unknown user at 11:59; it resumes at 12:00", "--all"),
        ({"gates": [GATE | {"max_running": 3, "running": 3}]}, "the concurrency limit allows at most 3 jobs of its queue mail at a time, and 3 run", ""),
        ({"gates": [GATE | {"rate": "100/min", "tokens": 0, "opens_at": NOW.isoformat()}]}, "the rate limit allows 100/min starts of its queue mail, and the next one is at 12:00", ""),
        ({"gates": [GATE | {"max_running": 1, "running": 1}]}, "the concurrency limit allows at most 1 job of its queue mail at a time, and 1 runs", ""),
    ],
)  # fmt: skip
def test_explanation_of_a_waiting_job_names_the_reason_and_what_to_do(changed, says, remedy):
    told = tell(**changed)
    assert any(says in sentence for sentence in told.now), told.now
    assert remedy in " ".join(told.remedy)
    assert bool(remedy) == bool(told.remedy)


def test_concurrency_limit_that_is_not_reached_is_not_named_as_a_reason():
    assert "at most" not in " ".join(tell(gates=[GATE | {"max_running": 3, "running": 2}]).now)


def test_explanation_of_a_scheduled_or_retrying_job_names_its_due_time():
    assert tell(state="scheduled", run_at=NOW + timedelta(hours=3)).now == [
        "scheduled: it is not due before 15:00, in 3 h"
    ]
    told = tell(state="retrying", attempts=1, run_at=NOW + timedelta(seconds=30), error="boom", error_code="X")
    assert told.now == [
        "retrying: its first of 5 attempts ended without success, and the next is at 12:00, in 30 s",
        "last error: X: boom",
    ]
    assert told.remedy == ["jobherd retry 7   to run it now"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"declared": False}, "waiting: no worker has ever declared the kind mail:receipt"),
        ({"error_code": "WORKER_RESOLUTION_ERROR"}, "waiting: the worker that claimed it last has no handler for kind mail:receipt"),
    ],
)  # fmt: skip
def test_missing_handler_is_the_first_reason_of_a_scheduled_job(changed, says):
    told = tell(state="scheduled", run_at=NOW + timedelta(seconds=30), error="unknown", **changed)
    assert told.now[:2] == [says, "scheduled: it is not due before 12:00, in 30 s"]
    assert "jobherd run --handlers" in told.remedy[0]
    assert "jobherd retry" not in " ".join(told.remedy), "the job would be scheduled again at once"


RUNS = {
    "state": "running",
    "attempts": 1,
    "started_at": NOW - timedelta(seconds=30),
    "host": "alpha",
    "pid": 77,
    "slot": 1,
    "lease_left": 9.0,
    "claimed_together": 0,
}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, "running since 11:59, for 30 s, on alpha in process 77 (worker 1): attempt 1 of 5"),
        ({"claimed_together": 4}, "claimed together with 4 others"),
        ({"claimed_together": 1}, "claimed together with 1 other,"),
        ({"lease_left": -3.0}, "lease expired 3.0 s ago"),
        ({"cancelled": True}, "cancellation was requested"),
        ({"progress": {"fraction": 0.4, "note": "page 4"}}, "its progress is 40%: page 4"),
        ({"crashes": 1}, "1 process has died with it before"),
        ({"host": None}, "not registered any more"),
        ({"host": None}, "the job's transaction is still open"),
        ({"host": "gpu-1", "via": "alpha"}, "for 30 s, by remote worker gpu-1 via alpha: attempt 1 of 5"),
        ({"via": "alpha", "lease_left": -3.0}, "the lease of its worker expired 3.0 s ago"),
        ({"via": "alpha", "cancelled": True}, "the gateway has requested the stop from its worker"),
    ],
)  # fmt: skip
def test_explanation_of_a_running_job_names_its_worker_and_condition(changed, says):
    told = tell(**(RUNS | changed))
    assert any(says in sentence for sentence in told.now), told.now


def test_stack_command_is_not_offered_for_a_job_on_a_remote_worker():
    assert tell(**RUNS).remedy[0] == "jobherd stack 7   to see where it is"
    assert tell(**RUNS | {"via": "alpha"}).remedy == ["jobherd cancel 7   to end it"]


OVER = {
    "state": "failed",
    "attempts": 5,
    "started_at": NOW - timedelta(seconds=30),
    "finished_at": NOW,
    "error": "boom",
    "error_code": "X",
}
ENDED = {
    "attempt": 5,
    "outcome": "failed",
    "started_at": AT,
    "finished_at": NOW.isoformat(),
    "ran_on": "alpha/77",
    "error": "boom",
}


@pytest.mark.parametrize(
    ("changed", "history", "says"),
    [
        ({"state": "completed"}, [], ["completed at 12:00, after 30 s, in its 5th attempt"]),
        (
            {"state": "completed", "started_at": NOW - timedelta(microseconds=40)}, [],
            ["completed at 12:00, after 40 µs, in its 5th attempt"],
        ),
        ({}, [ENDED], ["failed at 12:00: X: boom", "no attempt was left: that was the 5th of 5"]),
        ({"attempts": 2}, [ENDED | {"outcome": "poison"}], ["failed at 12:00: X: boom", "it was not retried, although 2 of 5 attempts were made"]),
        ({"attempts": 1}, [ENDED | {"outcome": "poison"}], ["it was not retried, although 1 of 5 attempts was made"]),
        (
            {"error_code": "WORKER_CRASHED", "crashes": 3},
            [ENDED | {"post_mortem": {"sentence": "the kernel's OOM killer killed it"}}],
            ["failed at 12:00: the kernel's OOM killer killed it", "3 processes have died with it"],
        ),
        ({"state": "cancelled", "error": None}, [], ["cancelled at 12:00, while it ran"]),
        ({"state": "cancelled", "started_at": None, "error": "no need"}, [], ["cancelled at 12:00, before it started: no need"]),
        ({"state": "expired", "error": None}, [], ["expired at 12:00"]),
    ],
)  # fmt: skip
def test_explanation_of_a_finished_job_names_its_final_state_and_cause(changed, history, says):
    told = tell(history, **(OVER | changed))
    for expected in says:
        assert any(sentence.startswith(expected) for sentence in told.now), told.now
    assert bool(told.remedy) == (changed.get("state") != "completed")


def test_attempts_are_listed_one_per_line_oldest_first():
    told = tell([ENDED | {"attempt": 1, "outcome": "retry"}, ENDED], **OVER)
    assert told.before == [
        "attempt 1 on alpha/77: retry after 1 min, 12:00: boom",
        "attempt 5 on alpha/77: failed after 1 min, 12:00: boom",
    ]


def test_attempt_with_missing_or_invalid_fields_is_still_listed():
    assert tell([{"attempt": 1, "finished_at": "rubbish", "error": "x\ny"}], **OVER).before == [
        "attempt 1: ?, at an unknown time: x"
    ]
