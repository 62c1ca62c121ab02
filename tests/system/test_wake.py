"""Producers send notifications only while a worker is idle, and no job has to wait for the poll.

The poll is five minutes away in each of these tests.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Stage
    from tests.support.gate import Gate

NEVER_POLL = {"poll": "300s", "lease": "120s"}
"""The lease is long too: a renewal looks for canceled jobs, which makes the supervisor's loop take a turn."""
KEYS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785684584 AND objid BETWEEN 1 AND 16 AND mode = 'ShareLock'"


class Ears:
    """Collects the notifications about jobs, in a session without a sleep key."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute("LISTEN jobherd_jobs")

    def heard(self) -> list[str]:
        """Return the notifications since the last call, without the supervisor's own, which begin with @."""
        self._connection.execute("SELECT pg_notify('jobherd_jobs', '@mark')")
        notes: list[str] = []
        for note in self._connection.notifies(timeout=LIMIT):
            if note.payload == "@mark":
                return notes
            notes += [note.payload] if note.payload[0] != "@" else []
        raise TimeoutError("the mark never came")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def ears(stage: Stage) -> Iterator[Ears]:
    ears = Ears(stage.dsn)
    yield ears
    ears.close()


def wait_busy(stage: Stage) -> None:
    """Wait until no supervisor holds a sleep key: only then does a session get an exclusive lock on each.

    The locks end with the transaction. Locks of the session would last until its server process ends, which is
    after the connection is closed, and would look like an idle supervisor until then.
    """
    with psycopg.connect(stage.dsn, autocommit=True, options="-c lock_timeout=60s") as connection:
        connection.execute("SELECT pg_advisory_xact_lock(1785684584, key) FROM generate_series(1, 16) AS key")


def wait_asleep(stage: Stage, supervisors: int = 1) -> None:
    """Wait until this many supervisors hold the sleep keys. No event announces that, so this polls briefly."""
    until = time.monotonic() + LIMIT
    while stage.call(KEYS) < 16 * supervisors:
        assert time.monotonic() < until, "the supervisor does not become idle"
        stage._hear(0.005)


def test_producers_notify_an_idle_fleet_and_not_a_busy_one(stage: Stage, gate: Gate, ears: Ears):
    stage.run_fleet(workers=2, **NEVER_POLL)
    wait_asleep(stage)
    first = [stage.enqueue("t:gate", f'{{"label": "{number}"}}') for number in range(2)]
    assert ears.heard() == ["default", "default"]
    arrivals = [gate.wait_arrival(number) for number in range(2)]
    wait_busy(stage)
    later = [stage.enqueue("t:noop") for _ in range(50)]
    assert ears.heard() == []
    for arrival in arrivals:
        arrival.open()
    stage.wait_all([*first, *later], "completed")
    wait_asleep(stage)
    last = stage.enqueue("t:noop")
    stage.wait_state(last, "completed")
    assert "default" in ears.heard()


def test_producers_notify_a_fleet_with_one_idle_worker(stage: Stage, gate: Gate, ears: Ears):
    stage.run_fleet(workers=2, **NEVER_POLL)
    wait_asleep(stage)
    held = stage.enqueue("t:gate", '{"label": "held"}')
    arrival = gate.wait_arrival("held")
    wait_asleep(stage)
    job = stage.enqueue("t:noop")
    stage.wait_state(job, "completed")
    assert ears.heard() == ["default", "default"]
    arrival.open()
    stage.wait_state(held, "completed")


@pytest.mark.parametrize("isolation", [psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ])
def test_commit_wakes_an_idle_worker_although_all_were_busy_when_the_job_was_enqueued(
    stage: Stage, gate: Gate, ears: Ears, isolation: psycopg.IsolationLevel
):
    stage.run_fleet(workers=1, **NEVER_POLL)
    held = stage.enqueue("t:gate", '{"label": "held"}')
    arrival = gate.wait_arrival("held")
    wait_busy(stage)
    ears.heard()
    with psycopg.connect(stage.dsn) as producer:
        producer.isolation_level = isolation
        job = producer.execute("SELECT jobherd.enqueue('t:noop')").fetchone()[0]
        arrival.open()
        stage.wait_state(held, "completed")
        wait_asleep(stage)
        producer.commit()
    stage.wait_state(job, "completed")
    assert ears.heard() == ["default"]


def test_job_whose_commit_saw_no_idle_worker_is_found_without_a_notification(stage: Stage, gate: Gate, ears: Ears):
    """Race: the commit sees no idle worker, and the last claim before the sleep does not see the job."""
    stage.run_fleet(workers=1, **NEVER_POLL)
    held = stage.enqueue("t:gate", '{"label": "held"}')
    arrival = gate.wait_arrival("held")
    wait_busy(stage)
    ears.heard()
    with psycopg.connect(stage.dsn) as producer:
        job = producer.execute("SELECT jobherd.enqueue('t:noop')").fetchone()[0]
        producer.execute("SET CONSTRAINTS ALL IMMEDIATE")  # checks for idle workers now instead of at the commit
        arrival.open()
        stage.wait_state(held, "completed")
        wait_asleep(stage)
        producer.commit()
    stage.wait_state(job, "completed")
    assert ears.heard() == []


def test_job_enqueued_while_an_idle_supervisors_session_is_lost_still_starts(stage: Stage):
    stage.run_fleet(workers=2, **NEVER_POLL)
    wait_asleep(stage)
    parent = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'jobherd:supervisor:%%' AND datname = current_database()"
    stage.run(f"SELECT pg_terminate_backend(pid, 10000) FROM ({parent}) AS parent")
    job = stage.enqueue("t:noop")  # no session holds the sleep keys or listens now
    stage.wait_state(job, "completed")
    wait_asleep(stage)
    job = stage.enqueue("t:noop")
    stage.wait_state(job, "completed")


@pytest.mark.promise("A34")
def test_every_job_of_random_producers_starts_without_a_poll(stage: Stage):
    """Many producers with bursts and pauses, short and long transactions.

    The workers become idle and wake repeatedly.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for _ in range(2):
        stage.run_fleet(workers=2, **NEVER_POLL)
    rests = threading.Event()

    def produce(number: int) -> None:
        chance = random.Random(seed + number)
        with psycopg.connect(stage.dsn) as connection:
            for _ in range(40):
                if chance.random() < 0.3:
                    connection.isolation_level = chance.choice(list(psycopg.IsolationLevel)[1:3])
                for _ in range(chance.choice([1, 1, 1, 5])):
                    name = chance.choice(["default", "mail", "media"])
                    connection.execute(
                        "SELECT jobherd.enqueue('t:noop', '{}', jsonb_build_object('queue', %s::text))", [name]
                    )
                    rests.wait(chance.choice([0, 0, 0.002, 0.02]))
                if chance.random() < 0.1:
                    connection.rollback()
                connection.commit()
                rests.wait(chance.choice([0, 0, 0, 0.003, 0.03, 0.1]))

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(6)]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join()
    left = "SELECT count(*) FROM jobherd.jobs WHERE state <> 'completed'"
    stage.wait(lambda: not stage.call(left), lambda: f"{stage.call(left)} jobs to be completed")
    assert stage.completed_twice() == []
