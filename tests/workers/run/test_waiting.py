"""Jobs that wait for signals: each gets every signal of its topic once, whether the job or the signal comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd import Client
from tests.workers.run.test_steps import OVER, bank, records, start

if TYPE_CHECKING:
    from tests.support.seats import Bench

__all__ = ["bank"]
WAITS = "SELECT count(*) AS n FROM jobherd.waits"


def fleet(bank: Bench):
    """Start a worker and a maintenance process. The test sends the wakes."""
    maintenance = bank.start("maintenance", poll=0.5)
    return start(bank), maintenance


def wait_for_end(bank: Bench, worker, job: int):
    """Wait until a job has finished, and wake the worker when the job is ready again."""

    def over():
        row = bank.job(job)
        if row is not None and row["state"] == "ready":
            worker.nudge()
        return row if row is not None and row["state"] in OVER else None

    return bank.wait_until(over, f"the end of job {job}")


def suspended(bank: Bench, worker, how: str = "", kind: str = "step:waits") -> int:
    job = bank.enqueue(kind, **{"how": how} if how else {})
    worker.nudge()
    bank.wait(job, "scheduled")
    return job


def test_signal_wakes_the_job_that_waits_for_it(bank: Bench):
    worker, _ = fleet(bank)
    job, other = suspended(bank, worker), suspended(bank, worker)
    with Client(bank.dsn) as client:
        number = client.signal_job(job, "approved", {"by": "ada"})
        assert client.signal_job(2**40, "approved") is None
    row = wait_for_end(bank, worker, job)
    assert row["result"] == [{"by": "ada"}, 2]
    assert (row["attempts"], [one["outcome"] for one in row["history"]]) == (1, ["completed"])
    assert bank.ask("SELECT signal FROM jobherd.steps WHERE job = %(job)s", job=job) == [{"signal": number}]
    assert bank.job(other)["state"] == "scheduled"
    assert [row["job"] for row in bank.ask("SELECT job FROM jobherd.waits")] == [other]


def test_job_gets_an_earlier_signal_without_being_suspended(bank: Bench):
    worker = start(bank)
    with psycopg.connect(bank.dsn) as connection:  # one transaction, so that no worker sees the job without its signals
        client = Client(connection=connection)
        job, other = client.enqueue("step:waits"), client.enqueue("step:awaits")
        client.signal_job(job, "approved", "early")
        client.signal_job(job, "approved", "later")
        client.signal_job(other, "approved")
    worker.nudge()
    assert bank.wait(job, *OVER)["result"] == ["early", 1]
    assert bank.wait(other, *OVER)["result"] is None, "a signal without payload"
    assert records(bank, other)["approved"][0] == {"payload": None}


def test_each_job_gets_every_signal_of_a_topic_once_oldest_first(bank: Bench):
    worker, _ = fleet(bank)
    one, two = suspended(bank, worker, "topic"), suspended(bank, worker, "topic")
    for number in (1, 2):
        bank.ask("SELECT jobherd.signal('order/7', to_jsonb(%(n)s::int))", n=number)
    assert wait_for_end(bank, worker, one)["result"] == [1, 2]
    assert wait_for_end(bank, worker, two)["result"] == [1, 2]
    assert bank.ask(WAITS)[0]["n"] == 0


def test_job_gets_a_signal_of_an_open_transaction_after_its_commit(bank: Bench):
    worker, _ = fleet(bank)
    with psycopg.connect(bank.dsn) as sender:
        sender.execute("SELECT jobherd.signal('job/1/approved', '1')")
        job = suspended(bank, worker)
        assert job == 1
        bank.wait_until(lambda: bank.ask("SELECT FROM jobherd.waits WHERE looked"), "the look for signals")
        sender.commit()
    assert wait_for_end(bank, worker, job)["result"][0] == 1


def test_rolled_back_signal_does_not_reach_the_job(bank: Bench):
    worker, _ = fleet(bank)
    job = suspended(bank, worker)
    with psycopg.connect(bank.dsn) as sender:
        sender.execute("SELECT jobherd.signal_job(%s, 'approved', '1')", [job])
        sender.rollback()
    bank.ask("SELECT jobherd.signal_job(%(job)s, 'approved', '2')", job=job)
    assert wait_for_end(bank, worker, job)["result"][0] == 2


def test_timeout_of_a_wait_is_recorded_and_the_next_wait_begins(bank: Bench):
    worker = start(bank)
    job = suspended(bank, worker, "timeout")
    bank.ask("SELECT jobherd.retry(%(job)s)", job=job)
    worker.nudge()
    bank.wait(job, "scheduled")
    assert records(bank, job) == {}, "a job that is run early waits for the remaining time"
    bank.ask("UPDATE jobherd.waits SET until = clock_timestamp()")
    bank.ask("SELECT jobherd.retry(%(job)s)", job=job)
    worker.nudge()
    bank.wait_until(lambda: [row for row in bank.ask("SELECT name FROM jobherd.waits") if row["name"] == "packed"])
    bank.wait(job, "scheduled")
    assert records(bank, job)["approved"][0] == {}
    bank.ask("SELECT jobherd.signal_job(%(job)s, 'approved', '1'), jobherd.signal('order/7', '2')", job=job)
    bank.ask("SELECT jobherd.retry(%(job)s)", job=job)
    worker.nudge()
    assert bank.wait(job, *OVER)["result"] == [None, 2]


def test_signal_payload_of_another_type_fails_the_job_with_the_reason(bank: Bench):
    worker = start(bank)
    job = bank.enqueue("step:waits", options={"max_attempts": 1}, how="typed")
    bank.ask("SELECT jobherd.signal_job(%(job)s, 'charged', '{}')", job=job)
    worker.nudge()
    assert "is not Charge" in bank.wait(job, *OVER)["error"]


def test_wait_of_a_canceled_job_is_deleted(bank: Bench):
    worker, _ = fleet(bank)
    job = suspended(bank, worker)
    bank.ask("SELECT jobherd.cancel(%(job)s)", job=job)
    bank.ask("SELECT last FROM jobherd.sweep_waits(NULL, 10)")
    assert bank.ask(WAITS)[0]["n"] == 0


@pytest.mark.parametrize("payload", ["{", None])
def test_signal_without_a_topic_or_with_invalid_json_is_rejected(bank: Bench, payload: str | None):
    with pytest.raises(psycopg.Error):
        bank.ask(
            "SELECT jobherd.signal(%(topic)s, %(payload)s::jsonb)",
            topic="" if payload is None else "a",
            payload=payload,
        )
