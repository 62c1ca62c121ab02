"""`why`, on real rows: each state has its screen, and what stands before a job is named."""

from __future__ import annotations

from tests.cli.rows import child, claim, past, send, supervisor
from tests.cli.shell import jobherd


def why(dsn: str, job: int) -> str:
    answer = jobherd("why", job, dsn=dsn, COLUMNS="200")
    assert answer.code == 0, answer
    assert answer.err == ""
    return answer.out


def add(dsn: str, *words: object) -> int:
    return int(jobherd("enqueue", "mail:receipt", "{}", *words, dsn=dsn).out)


def test_every_state_is_explained(database):
    late = add(database, "--delay", "3h")
    first = add(database)
    assert "waiting: nobody serves it" in why(database, first)
    worker = child(database, supervisor(database))
    assert "no worker has ever declared the kind mail:receipt" in why(database, first)
    assert claim(database, worker) == first
    assert "on alpha in process 78 (worker 1): attempt 0 of 5" in why(database, first)
    assert "scheduled: it is not due before" in why(database, late)
    for state, says in {"completed": "completed at", "failed": "it broke", "cancelled": "cancelled at", "expired": "expired at"}.items():
        assert says in why(database, past(database, state))


def test_a_pause_is_named_with_who_when_and_why_and_ends_with_the_command_that_resumes(database):
    job = add(database)
    assert jobherd("pause", "default", "--by", "ann", "--reason", "moving house", dsn=database).code == 0
    said = why(database, job)
    assert "its queue default was paused by ann at" in said
    assert "reason: moving house" in said
    assert jobherd(*said.splitlines()[-1].split("   ")[0].split()[1:], dsn=database).code == 0, "what it tells to do is a command"
    assert "paused" not in why(database, job)


def test_it_fits_80_columns_and_has_the_same_for_programs(database):
    send(database, "INSERT INTO jobherd.ready (kind, queue) VALUES ('a:b', 'media')")
    (job,) = send(database, "SELECT max(id) FROM jobherd.ready")[0]
    send(database, "SELECT jobherd.pause('media', %s)", "a reason that is rather long, " * 6)
    answer = jobherd("why", job, dsn=database, COLUMNS="80")
    assert max(map(len, answer.lines)) <= 80
    told = jobherd("why", job, "--json", dsn=database).json
    assert (told["id"], told["state"], told["before"]) == (job, "ready", [])
    assert told["now"][0].startswith("waiting: its queue media was paused")


def test_a_job_that_does_not_exist_is_said_not_to(database):
    answer = jobherd("why", 4711, dsn=database)
    assert answer.code == 1
    assert "there is no job 4711" in answer.err
