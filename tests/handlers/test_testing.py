from __future__ import annotations

import asyncio
import math
import os
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import psycopg
import pytest

from jobherd import Client, Failed, Job, JobTimeout, Json, Nack, PayloadError, Poison, Snooze, enqueue_on, handler
from jobherd.handlers._enqueue import default as module
from jobherd.handlers._pytest import jobherd_connection, jobherd_inline, jobherd_recorder  # noqa: F401  # the fixtures under test
from jobherd.testing import RealWorker, arun, inline, recorder, run, run_payload
from tests.support.patience import LIMIT


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


def test_run_calls_the_handler_after_a_round_trip_through_json():
    ran = run(double, number=21)
    assert ran.outcome.label == "ok"
    assert ran.result == 42
    assert ran.progress == ((0.5, "half", None),)
    assert run(say, "x").result == {"said": "x"}


def test_payload_tuple_arrives_as_a_list_as_in_a_worker():
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
def test_run_classifies_every_disposition_like_a_worker(what, label, state, code):
    outcome = run(say, what).outcome
    assert (outcome.label, outcome.state, outcome.code) == (label, state, code)


def test_last_attempt_fails():
    assert run_payload(say, {"what": "exit"}, attempt=3).outcome.state == "failed"
    assert run_payload(say, {"what": "exit"}, attempt=3, max_attempts=4).outcome.state == "scheduled"


def test_invalid_payload_is_poison_and_a_wrong_call_raises():
    ran = run_payload(double, {"number": "x"})
    assert (ran.outcome.label, ran.outcome.code) == ("poison", "PAYLOAD_INVALID")
    with pytest.raises(PayloadError):
        run(double, number="x")
    with pytest.raises(TypeError):
        run(double, nummer=1)


def test_run_executes_an_async_handler():
    @handler("demo:async")
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert run(work, number=5).result == 5


def test_run_payload_sets_fields_of_the_job():
    @handler("demo:look")
    def look(job: Job) -> Json:
        return [job.id, job.attempt, job.crashes, job.cancelled, job.remaining() > 200]

    assert run_payload(look, {}, id=9, crashes=1, attempt=2, on_cancelled=lambda: True).result == [9, 2, 1, True, True]


def test_inline_shows_and_runs_the_jobs_that_handlers_enqueue(jobherd_inline):  # noqa: F811
    assert jobherd_inline.run(first, count=3).outcome.label == "ok"
    assert jobherd_inline.enqueued(second) == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert jobherd_inline.enqueued("demo:third") == []
    ran = jobherd_inline.drain([second, third])
    assert [(job.kind, job.ran[0].outcome.label) for job in ran] == [
        ("demo:second", "ok"),
        ("demo:second", "retry"),
        ("demo:second", "ok"),
    ]
    assert jobherd_inline.enqueued(third) == []  # undone with the failed attempt
    assert jobherd_inline.connection.execute("SELECT count(*), min(queue) FROM jobherd.jobs").fetchone() == (3, "other")


def test_inline_stores_the_parent_of_a_job_that_a_handler_enqueues(jobherd_inline):  # noqa: F811
    second.enqueue(number=0)
    job = jobherd_inline.client.enqueue("demo:first", {"count": 1})
    jobherd_inline.drain([first, second])
    rows = jobherd_inline.connection.execute(
        "SELECT parent_id FROM jobherd.jobs WHERE kind = 'demo:second' ORDER BY id"
    ).fetchall()
    assert rows == [(None,), (job,)]


def test_drain_runs_as_many_attempts_as_requested(jobherd_inline):  # noqa: F811
    say.enqueue("exit")
    (job,) = jobherd_inline.drain([say], attempts=10)
    assert [ran.outcome.label for ran in job.ran] == ["retry", "retry", "failed"]
    assert job.over


def test_drain_detects_a_job_that_enqueues_itself_without_end(jobherd_inline):  # noqa: F811
    @handler("demo:loop")
    def loop() -> None:
        loop.enqueue()

    loop.enqueue()
    with pytest.raises(RuntimeError, match="enqueues itself without a delay"):
        jobherd_inline.drain([loop], most=20)


def test_drain_does_not_count_an_attempt_for_a_kind_without_a_handler(jobherd_inline):  # noqa: F811
    jobherd_inline.client.enqueue("demo:unknown")
    (job,) = jobherd_inline.drain([])
    assert job.ran[0].outcome.code == "WORKER_RESOLUTION_ERROR"
    assert job.attempts == 0


def test_inline_undoes_everything_at_its_end(database):
    before = module._chosen
    with inline(database) as jobs:
        third.enqueue()
        enqueue_on(jobs.connection, "demo:third")
        assert jobs.connection.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (2,)
    assert module._chosen is before
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (0,)


def test_failed_statement_in_a_handler_does_not_abort_the_test_transaction(database):
    with inline(database) as jobs:

        @handler("demo:broken")
        def broken() -> None:
            jobs.connection.execute("SELECT no_such_thing")

        assert jobs.run(broken).outcome.label == "retry"
        assert jobs.connection.execute("SELECT 1").fetchone() == (1,)
        assert isinstance(jobs.client, Client)


def test_transaction_of_a_job_is_part_of_the_test_transaction(database):
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
        assert len(jobs.enqueued(third)) == 1, "the job was undone with the failed attempt"
        assert jobs.run(part, how="well").result == "well"
        assert jobs.connection.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (2,)


def test_transaction_without_a_database_fails_and_names_inline():
    @handler("demo:pay")
    def pay(job: Job) -> None:
        with job.transaction():
            pass

    assert "jobherd.testing.inline" in (run(pay).outcome.error or "")


@handler("demo:typed")
def typed(total: Decimal, to: str = "x") -> dict[str, str]:
    return {"total": str(total)}


@handler("demo:breaks")
def breaks() -> None:
    raise LookupError("no such order")


@handler("demo:refuses")
def refuses() -> object:
    return Failed("the bank said no")


@handler("demo:tomorrow")
def tomorrow(every: str = "1d") -> None:
    tomorrow.options(delay=every).enqueue(every=every)


def test_value_returns_the_result_or_raises_what_the_handler_raised():
    assert run(typed, total=Decimal("3.00")).value() == {"total": "3.00"}
    ran = run(breaks)
    assert ran.outcome.label == "retry"
    for step in (ran.raise_, ran.value):
        with pytest.raises(LookupError, match="no such order") as caught:
            step()
        assert caught.traceback[-1].name == "breaks"
    with pytest.raises(AssertionError, match="'retry': the bank said no"):
        run(refuses).value()
    with pytest.raises(PayloadError, match=r"\$\.total must be Decimal"):
        run_payload(typed, {"total": "x"}).value()
    assert "_trial" not in ran.outcome.traceback
    assert "test_testing" in ran.outcome.traceback


def test_enqueued_jobs_have_the_types_of_the_handlers_parameters(jobherd_inline):  # noqa: F811
    typed.enqueue(total=Decimal("3.00"))
    assert jobherd_inline.enqueued(typed) == [{"total": Decimal("3.00")}]
    assert jobherd_inline.enqueued("demo:typed") == [{"total": "3.00"}]
    assert jobherd_inline.assert_enqueued(typed, total=Decimal("3.00")).payload == {"total": "3.00"}
    jobherd_inline.assert_enqueued("demo:typed", total="3.00")
    with pytest.raises(
        AssertionError, match="no job of 'demo:typed' was enqueued with .*4.* there are: .*Decimal.'3.00'"
    ):
        jobherd_inline.assert_enqueued(typed, total=Decimal(4))
    with pytest.raises(AssertionError, match="none of 'demo:breaks', of others 1"):
        jobherd_inline.assert_enqueued(breaks)


def test_drain_runs_only_due_jobs_and_delayed_ones_on_request(jobherd_inline):  # noqa: F811
    tomorrow.enqueue()
    assert len(jobherd_inline.drain([tomorrow])) == 1, "the next job is not due"
    assert jobherd_inline.drain([tomorrow]) == []
    assert [job.due for job in jobherd_inline.drain([tomorrow], due="3d")] == [86400, 2 * 86400, 3 * 86400]
    assert len(jobherd_inline.drain([tomorrow], due=None, rounds=1)) == 1
    assert len(jobherd_inline.drain([tomorrow], due=None, rounds=2)) == 2
    with pytest.raises(RuntimeError, match="5 runs have not emptied the queue"):
        jobherd_inline.drain([tomorrow], due=None, most=5)


def test_rounds_limit_an_endless_loop_of_jobs(jobherd_recorder):  # noqa: F811
    @handler("demo:loop")
    def loop() -> None:
        loop.enqueue()
        loop.enqueue()

    loop.enqueue()
    assert [job.round for job in jobherd_recorder.drain([loop], rounds=3)] == [1, 2, 2, 3, 3, 3, 3]


def test_run_at_delays_a_job_in_a_drain(jobherd_recorder):  # noqa: F811
    typed.options(run_at=datetime.now(UTC) + timedelta(hours=1)).enqueue(total=Decimal(1))
    assert jobherd_recorder.drain([typed]) == []
    assert len(jobherd_recorder.drain([typed], due="61m")) == 1


def test_recorder_needs_no_database(monkeypatch, jobherd_recorder):  # noqa: F811
    monkeypatch.setenv("JOBHERD_DSN", "postgresql://nobody@127.0.0.1:1/nothing")
    assert [typed.enqueue(total=Decimal(1)), *typed.enqueue_many([(Decimal(2),), (Decimal(3),)])] == [1, 2, 3]
    jobherd_recorder.client.enqueue("demo:other", {"a": 1}, priority=5)
    jobherd_recorder.assert_enqueued(typed, total=Decimal(3))
    assert jobherd_recorder.assert_enqueued("demo:other", a=1).options["priority"] == 5
    with pytest.raises(PayloadError):
        typed.enqueue(total="x")
    with pytest.raises(RuntimeError, match="a recorder has no database"):
        jobherd_recorder.client.job(1)
    assert jobherd_recorder.run(tomorrow).outcome.label == "ok"
    assert len(jobherd_recorder.drain([typed])) == 4  # one job has a kind without a handler
    with recorder() as inner:
        typed.enqueue(total=Decimal(9))
        assert len(inner.jobs) == 1
    typed.enqueue(total=Decimal(10))
    assert len(jobherd_recorder.jobs) == 6


@handler("demo:awaits")
async def awaits(number: int) -> int:
    await asyncio.sleep(0)
    await typed.aenqueue(total=Decimal(number))
    if number < 0:
        raise LookupError("negative")
    return asyncio.get_running_loop() is awaits_in.get("loop") and number


awaits_in: dict[str, object] = {}


def test_async_handler_in_a_running_loop_needs_arun_and_runs_in_that_loop(jobherd_inline):  # noqa: F811
    async def main() -> None:
        awaits_in["loop"] = asyncio.get_running_loop()
        for call, advice in [
            (lambda: run(awaits, number=5), r"await arun\(...\) instead of run\(...\)"),
            (lambda: jobherd_inline.run(awaits, number=5), r"await arun\(...\)"),
        ]:
            with pytest.raises(TypeError, match=advice):
                call()
        with recorder():
            assert (await arun(awaits, number=5)).value() == 5
        assert (await jobherd_inline.arun(awaits, number=6)).value() == 6
        failed = await jobherd_inline.arun(awaits, number=-1)
        with pytest.raises(LookupError):
            failed.raise_()
        assert jobherd_inline.enqueued(typed) == [{"total": Decimal(6)}]  # undone with the failed attempt
        jobherd_inline.client.enqueue("demo:awaits", {"number": 7})
        with pytest.raises(TypeError, match=r"await adrain\(...\) instead of drain\(...\)"):
            jobherd_inline.drain([awaits, typed])
        assert [job.kind for job in await jobherd_inline.adrain([awaits, typed])] == ["demo:awaits", "demo:typed"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(arun(hangs), 0.01)

    asyncio.run(main())


@handler("demo:hangs")
async def hangs() -> None:
    await asyncio.Event().wait()


def test_inline_runs_jobs_in_the_callers_transaction(database):
    """`inline` commits and rolls back nothing: the test does."""
    with psycopg.connect(database) as own:
        with inline(connection=own) as jobs:
            double.enqueue(number=2)
            assert jobs.drain([double])[0].ran[0].value() == 4
        assert own.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (1,)
        own.rollback()
        assert own.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (0,)
    with psycopg.connect(database, autocommit=True) as own:
        with pytest.raises(ValueError, match="connection has no open transaction"), inline(connection=own):
            pass
        with own.transaction(force_rollback=True), inline(connection=own) as jobs:
            jobs.client.enqueue("demo:double", {"number": 1})
        assert own.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (0,)


def test_advance_makes_delayed_jobs_due():
    with recorder() as jobs:
        double.options(delay="1h").enqueue(number=1)
        assert jobs.drain([double]) == []
        jobs.advance("30m")
        double.options(delay="1h").enqueue(number=2)
        assert jobs.drain([double]) == []
        jobs.advance("30m")
        assert [job.payload for job in jobs.drain([double])] == [{"number": 1}]
        assert [job.payload for job in jobs.drain([double], due="30m")] == [{"number": 2}]
        with pytest.raises(ValueError, match="duration"):
            jobs.advance("soon")


@pytest.mark.system
def test_real_worker_runs_committed_jobs_and_leaves_no_session(database, tmp_path):
    (tmp_path / "shop.py").write_text(
        "import os\nfrom jobherd import handler\n"
        "@handler('shop:pid')\ndef pid() -> int:\n    return os.getpid()\n"
        "@handler('shop:no', max_attempts=1)\ndef no() -> None:\n    raise ValueError('no')\n"
    )
    with Client(database) as client, RealWorker(database) as worker:
        first, failed = client.enqueue("shop:pid"), client.enqueue("shop:no")
        assert "ValueError: no" in worker.drain(str(tmp_path / "shop.py"), timeout=2 * LIMIT)
        assert (client.job(first)["state"], client.job(failed)["state"]) == ("completed", "failed")
        assert client.job(first)["result"] != os.getpid()
        worker.start(str(tmp_path / "shop.py"))
        second = client.enqueue("shop:pid")
        assert client.wait(second, timeout=LIMIT)["state"] == "completed"
    with psycopg.connect(database, autocommit=True) as own:
        sessions = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        until = time.monotonic() + LIMIT  # the server ends a session some time after its process has exited
        while own.execute(sessions).fetchone() != (0,):
            assert time.monotonic() < until, "a session is left"
            time.sleep(0.05)
    with RealWorker(database) as worker, pytest.raises(AssertionError, match="the supervisor exited with 78"):
        worker.drain(str(tmp_path / "nothing.py"))
