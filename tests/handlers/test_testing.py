from __future__ import annotations

import asyncio
import math

import psycopg
import pytest

from handlers import Client, Failed, Job, JobTimeout, Json, Nack, PayloadError, Poison, Snooze, enqueue_on, handler
from handlers import _default as module
from handlers._pytest import jobherd_inline  # noqa: F401  # the fixture under test
from handlers.testing import inline, run, run_payload


@handler("demo:double")
def double(job: Job, number: int) -> int:
    job.progress(0.5, "half")
    return 2 * number


@handler("demo:say", max_attempts=3)
def say(what: str) -> object:
    match what:
        case "nack":
            return Nack("5m")
        case "snooze":
            raise Snooze("1h")
        case "poison":
            raise Poison("bad")
        case "failed":
            return Failed("no", code="NO")
        case "exit":
            raise SystemExit
        case "nan":
            return math.nan
        case "timeout":
            raise JobTimeout
    return {"said": what}


@handler("demo:first")
def first(count: int) -> None:
    for number in range(count):
        second.enqueue(number=number)


@handler("demo:second", queue="other")
def second(number: int) -> None:
    if number == 1:
        third.enqueue()
        raise ValueError


@handler("demo:third")
def third() -> None: ...


@pytest.fixture
def jobherd_dsn(database):
    return database


def test_a_handler_runs_here_and_now_with_the_round_trip_through_json():
    ran = run(double, number=21)
    assert ran.outcome.label == "ok"
    assert ran.result == 42
    assert ran.progress == ((0.5, "half", None),)
    assert run(say, "x").result == {"said": "x"}


def test_a_tuple_arrives_as_a_worker_would_hand_it_over():
    seen = []
    keep = handler("demo:keep")(lambda payload: seen.append(payload))
    run(keep, (1, (2,)))
    assert seen == [[1, [2]]]


@pytest.mark.parametrize(
    ("what", "label", "state", "code"),
    [
        ("hello", "ok", "completed", None),
        ("nack", "retry", "scheduled", "NACK"),
        ("snooze", "snoozed", "scheduled", None),
        ("poison", "poison", "failed", "POISON"),
        ("failed", "retry", "scheduled", "NO"),
        ("exit", "retry", "scheduled", "UNHANDLED_ERROR"),
        ("nan", "failed", "failed", "WORKER_SERIALIZATION_ERROR"),
        ("timeout", "retry", "scheduled", "JOB_TIMEOUT"),
    ],
)
def test_every_disposition_is_judged_as_a_worker_does(what, label, state, code):
    outcome = run(say, what).outcome
    assert (outcome.label, outcome.state, outcome.code) == (label, state, code)


def test_the_last_attempt_fails():
    assert run_payload(say, {"what": "exit"}, attempt=3).outcome.state == "failed"
    assert run_payload(say, {"what": "exit"}, attempt=3, max_attempts=4).outcome.state == "scheduled"


def test_a_payload_that_does_not_fit_is_poison_and_a_wrong_call_an_error():
    ran = run_payload(double, {"number": "x"})
    assert (ran.outcome.label, ran.outcome.code) == ("poison", "PAYLOAD_INVALID")
    with pytest.raises(PayloadError):
        run(double, number="x")
    with pytest.raises(TypeError):
        run(double, nummer=1)


def test_an_asynchronous_handler_runs_too():
    @handler("demo:async")
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert run(work, number=5).result == 5


def test_the_job_can_be_dressed_up():
    @handler("demo:look")
    def look(job: Job) -> Json:
        return [job.id, job.attempt, job.crashes, job.cancelled, job.remaining() > 200]

    assert run_payload(look, {}, id=9, crashes=1, attempt=2, on_cancelled=lambda: True).result == [9, 2, 1, True, True]


def test_what_handlers_enqueue_can_be_looked_at_and_run(jobherd_inline):  # noqa: F811
    assert jobherd_inline.run(first, count=3).outcome.label == "ok"
    assert jobherd_inline.enqueued(second) == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert jobherd_inline.enqueued("demo:third") == []
    ran = jobherd_inline.drain([second, third])
    assert [(job.kind, job.ran[0].outcome.label) for job in ran] == [("demo:second", "ok"), ("demo:second", "retry"), ("demo:second", "ok")]
    assert jobherd_inline.enqueued(third) == []  # undone with the attempt that raised
    assert jobherd_inline.connection.execute("SELECT count(*), min(queue) FROM jobherd.jobs").fetchone() == (3, "other")


def test_what_a_job_enqueues_here_remembers_it_too(jobherd_inline):  # noqa: F811
    second.enqueue(number=0)
    job = jobherd_inline.client.enqueue("demo:first", {"count": 1})
    jobherd_inline.drain([first, second])
    rows = jobherd_inline.connection.execute("SELECT set_off_by FROM jobherd.jobs WHERE kind = 'demo:second' ORDER BY id").fetchall()
    assert rows == [(None,), (job,)]


def test_retries_are_run_as_often_as_asked(jobherd_inline):  # noqa: F811
    say.enqueue("exit")
    (job,) = jobherd_inline.drain([say], attempts=10)
    assert [ran.outcome.label for ran in job.ran] == ["retry", "retry", "failed"]
    assert job.over


def test_a_loop_of_jobs_is_found(jobherd_inline):  # noqa: F811
    @handler("demo:loop")
    def loop() -> None:
        loop.enqueue()

    loop.enqueue()
    with pytest.raises(RuntimeError, match="enqueues itself for ever"):
        jobherd_inline.drain([loop], most=20)


def test_a_kind_that_no_handler_is_given_for_is_given_back(jobherd_inline):  # noqa: F811
    jobherd_inline.client.enqueue("demo:unknown")
    (job,) = jobherd_inline.drain([])
    assert job.ran[0].outcome.code == "WORKER_RESOLUTION_ERROR"
    assert job.attempts == 0


def test_everything_is_undone_at_the_end(database):
    before = module._chosen
    with inline(database) as jobs:
        third.enqueue()
        enqueue_on(jobs.connection, "demo:third")
        assert jobs.connection.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (2,)
    assert module._chosen is before
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (0,)


def test_a_failed_statement_of_a_handler_does_not_spoil_the_test(database):
    with inline(database) as jobs:

        @handler("demo:broken")
        def broken() -> None:
            jobs.connection.execute("SELECT no_such_thing")

        assert jobs.run(broken).outcome.label == "retry"
        assert jobs.connection.execute("SELECT 1").fetchone() == (1,)
        assert isinstance(jobs.client, Client)


def test_a_job_s_transaction_is_a_part_of_the_test_s(database):
    with inline(database) as jobs:

        @handler("demo:pay", transactional=True)
        def pay(job: Job, how: str) -> object:
            job.connection.execute("SELECT 1")
            third.enqueue()
            return Nack("1h") if how == "nack" else how

        @handler("demo:part")
        def part(job: Job, how: str) -> None:
            with (transaction := job.transaction()) as connection:
                connection.execute("SELECT 1")
                third.enqueue()
                transaction.result = how
                if how == "raises":
                    raise ValueError
            raise KeyError("too late")

        assert jobs.run(pay, how="well").result == "well"
        assert len(jobs.enqueued(third)) == 1
        assert jobs.run(pay, how="nack").outcome.label == "retry"
        assert jobs.run(part, how="raises").outcome.label == "retry"
        assert len(jobs.enqueued(third)) == 1, "undone with the attempt"
        assert jobs.run(part, how="well").result == "well"
        assert jobs.connection.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (2,)


def test_without_a_database_a_transaction_says_what_it_needs():
    @handler("demo:pay")
    def pay(job: Job) -> None:
        with job.transaction():
            pass

    assert "handlers.testing.inline" in (run(pay).outcome.error or "")
