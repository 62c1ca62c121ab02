"""Each failed attempt writes one line to the supervisor's log, however it failed."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.cli.terminal import Terminal

if TYPE_CHECKING:
    from tests.support.fleet import Fleet, Stage

FAILING = """
import os, time
from jobherd import Poison, Snooze, handler

@handler("f:raises", max_attempts=2, backoff="10ms")
def raises() -> None:
    raise ValueError("no such\\norder \\x1b[31m postgresql://app:hunter2@db/jobs")

@handler("f:poison")
def poison() -> None:
    raise Poison("never")

@handler("f:late", max_attempts=1, timeout="200ms")
def late() -> None:
    time.sleep(60)

@handler("f:dies", max_attempts=1)
def dies() -> None:
    os._exit(9)

@handler("f:batch", max_attempts=1, batch=10)
def batch(payloads: list[dict]) -> None:
    raise KeyError("all of them")

@handler("f:card", max_attempts=1, redact=["$.card"])
def card(card: str) -> None:
    raise ValueError(f"card {card} is not valid")

@handler("f:fine")
def fine() -> None: ...
"""


def lines_of(fleet: Fleet, job: int) -> list[dict[str, Any]]:
    return fleet.said(lambda event: event.get("job") == job and "failed" in event.get("message", ""))


def test_each_failed_attempt_writes_one_line(stage: Stage):
    fleet = stage.run_fleet(handlers=stage.write("failing.py", FAILING))
    kinds = ["f:raises", "f:poison", "f:late", "f:dies"]
    jobs = {kind: stage.enqueue(kind) for kind in kinds}
    jobs["f:card"] = stage.enqueue("f:card", '{"card": "4111222233334444"}')
    stage.wait_all(list(jobs.values()), "failed")
    for job in jobs.values():
        fleet.wait_log(lambda event, job=job: event.get("job") == job and event["message"].startswith("job failed"))
    # Different workers may have run the attempts, and a worker writes its lines after the outcome.
    fleet.wait_log(lambda event: event.get("job") == jobs["f:raises"], count=2)
    raised = sorted(lines_of(fleet, jobs["f:raises"]), key=lambda line: line["attempt"])
    assert [(line["level"], line["attempt"], line["max_attempts"]) for line in raised] == [
        ("warning", 1, 2),
        ("error", 2, 2),
    ]
    assert re.match(
        r"attempt failed, runs again in \d+ [µm]s: ValueError: no such\norder \\x1b\[31m postgresql://app:\*\*\*@db",
        raised[0]["message"],
    )
    assert raised[0]["place"].endswith("/failing.py:7")
    counted = {
        kind: Counter(line["level"] for line in lines_of(fleet, job))
        for kind, job in jobs.items()
        if kind != "f:raises"
    }
    assert counted == dict.fromkeys(counted, Counter(error=1)), "exactly one line each"
    (late,) = lines_of(fleet, jobs["f:late"])
    assert "JobTimeout" in late["message"]
    (died,) = lines_of(fleet, jobs["f:dies"])
    assert (died["message"], died["process"]) == ("job failed: WORKER_CRASHED", "supervisor")
    assert not fleet.said(lambda event: "41112222" in str(event))
    attempt = stage.connection.execute("SELECT output FROM jobherd.logs WHERE job = %s", [jobs["f:raises"]]).fetchall()
    assert attempt == [], "the line is the supervisor's, not the attempt's output"


def test_each_failed_job_of_a_batch_writes_one_line(stage: Stage):
    stage.call("SELECT jobherd.pause('default')")
    fleet = stage.run_fleet(workers=1, handlers=stage.write("failing.py", FAILING))
    jobs = [stage.enqueue("f:batch") for _ in range(3)]
    stage.call("SELECT jobherd.resume('default')")
    stage.wait_all(jobs, "failed")
    fleet.wait_log("job failed: KeyError", count=3)
    assert [len(lines_of(fleet, job)) for job in jobs] == [1, 1, 1]


def test_log_jobs_none_logs_no_failed_job(stage: Stage):
    fleet = stage.run_fleet(handlers=stage.write("failing.py", FAILING), log_jobs="none")
    jobs = [stage.enqueue("f:poison"), stage.enqueue("f:dies")]
    stage.wait_all(jobs, "failed")
    fleet.stop()
    assert [lines_of(fleet, job) for job in jobs] == [[], []]


def test_at_a_terminal_every_finished_job_writes_a_line(stage: Stage):
    place = stage.write("failing.py", FAILING)
    with Terminal(
        "run", "--handlers", place, "--workers", 1, dsn=stage.dsn, columns=200, lines=60, JOBHERD_HTTP="off"
    ) as terminal:
        terminal.wait("worker 0 is ready")
        job = stage.enqueue("f:fine")
        terminal.wait(f"job completed  job={job} kind=f:fine attempt=1")
