"""Producers notify only while somebody sleeps, and no job waits for that.

The poll is five minutes away in every one of these tests.
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
"""And a beat a lease away: its look for cancels has the parent take a turn."""
KEYS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785684584 AND objid BETWEEN 1 AND 16 AND mode = 'ShareLock'"


class Ears:
    """What is notified of jobs, heard by somebody who does not sleep."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute("LISTEN jobherd_jobs")

    def heard(self) -> list[str]:
        """What was notified since the last time; what the supervisor says to itself begins with @."""
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
    """Wait until no supervisor holds a sleep key: a session that wants one alone gets it then.

    The transaction lets go of them, not the session: its process ends after the connection, and
    would be taken for a sleeper till then.
    """
    with psycopg.connect(stage.dsn, autocommit=True, options="-c lock_timeout=60s") as connection:
        connection.execute("SELECT pg_advisory_xact_lock(1785684584, key) FROM generate_series(1, 16) AS key")


def wait_asleep(stage: Stage, supervisors: int = 1) -> None:
    """Wait until so many hold the sleep keys. That is no event for anybody; the look is short."""
    until = time.monotonic() + LIMIT
    while stage.call(KEYS) < 16 * supervisors:
        assert time.monotonic() < until, "the supervisor does not go to sleep"
        stage._hear(0.005)


def test_an_idle_fleet_is_notified_and_a_busy_one_is_not(stage: Stage, gate: Gate, ears: Ears):
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


def test_one_idle_worker_is_enough_to_be_notified(stage: Stage, gate: Gate, ears: Ears):
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
def test_a_transaction_that_begins_while_all_are_busy_and_commits_while_they_sleep(
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


def test_a_commit_that_has_looked_before_they_sleep_is_found_without_a_notification(
    stage: Stage, gate: Gate, ears: Ears
):
    """The narrowest moment.

    It saw nobody sleep, and is not visible to the last claim before the sleep.
    """
    stage.run_fleet(workers=1, **NEVER_POLL)
    held = stage.enqueue("t:gate", '{"label": "held"}')
    arrival = gate.wait_arrival("held")
    wait_busy(stage)
    ears.heard()
    with psycopg.connect(stage.dsn) as producer:
        job = producer.execute("SELECT jobherd.enqueue('t:noop')").fetchone()[0]
        producer.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what its commit looks at, it looks at now
        arrival.open()
        stage.wait_state(held, "completed")
        wait_asleep(stage)
        producer.commit()
    stage.wait_state(job, "completed")
    assert ears.heard() == []


def test_a_session_that_is_lost_while_all_sleep_is_made_up_for(stage: Stage):
    stage.run_fleet(workers=2, **NEVER_POLL)
    wait_asleep(stage)
    parent = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'jobherd:supervisor:%%' AND datname = current_database()"
    stage.run(f"SELECT pg_terminate_backend(pid, 10000) FROM ({parent}) AS parent")
    job = stage.enqueue("t:noop")  # nobody holds the keys now, or hears
    stage.wait_state(job, "completed")
    wait_asleep(stage)
    job = stage.enqueue("t:noop")
    stage.wait_state(job, "completed")


@pytest.mark.promise("A34")
def test_whatever_producers_do_every_job_starts(stage: Stage):
    """Many producers with bursts and rests, short and long transactions.

    The fleet falls asleep and wakes all the time.
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
