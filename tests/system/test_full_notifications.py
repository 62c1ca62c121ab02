"""The server's queue of notifications is full: another session listens and never ends its transaction.

A session that sends a notification then cannot commit.

Jobherd finds by polling what a notification would announce: no job, outcome or lease depends on a
notification.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import psycopg
import pytest

from jobherd import Client
from tests.cli.shell import jobherd
from tests.support.fleet import Stage
from tests.support.ground import fresh
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster, programs, quick_place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.gate import Gate

pytestmark = pytest.mark.skipif(
    programs().major < 17,
    reason="before PostgreSQL 17 the queue cannot be smaller than 8 GB, and filling it takes minutes",
)
PAGES = 64
"""The smallest size of the queue, in pages of 8 kB."""
BEATEN = "SELECT beat_at FROM jobherd.supervisors"
WAITED_FOR = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785684585 AND objid >= 64"


class Stranger:
    """A session that listens and stays in a transaction until it is closed.

    The server keeps every notification for it. `with Stranger(dsn) as stranger:`
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._sits = psycopg.connect(dsn)
        self._sits.execute("LISTEN chatter")
        self._sits.commit()
        self._sits.execute("SELECT 1")

    def fill(self, part: float = 1.0) -> None:
        """Send notifications until this part of the queue is used."""
        with psycopg.connect(self._dsn, autocommit=True) as talker:
            for number in range(2 * PAGES):
                used = talker.execute("SELECT pg_notification_queue_usage()").fetchone()
                assert used is not None
                if used[0] >= part:
                    break
                try:
                    talker.execute("SELECT pg_notify('chatter', %s)", [f"{number:07}" * 1000])
                except psycopg.errors.ProgramLimitExceeded:
                    assert part == 1.0
                    break

    def leave(self) -> None:
        self._sits.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


@contextmanager
def small() -> Iterator[str]:
    with Cluster({"max_notify_queue_pages": str(PAGES)}, place=quick_place()) as cluster, fresh(cluster) as dsn:
        yield dsn


def test_full_notification_queue_loses_no_job_and_blocks_none(tmp_path: Path, gate: Gate):
    with (
        small() as dsn,
        Stage(dsn, tmp_path, audit=False) as stage,
        Client(dsn) as client,
        Stranger(dsn) as stranger,
        ThreadPoolExecutor(1) as aside,
    ):
        try:
            fleet = stage.run_fleet(workers=5, poll="1s", lease="6s", respawn_initial="10ms")
            kinds = {"ends": "t:gate", "again": "d:snooze-short", "dies": "t:gate", "cancelled": "t:gate"}
            jobs = {label: stage.enqueue(kind, f'{{"label": "{label}"}}') for label, kind in kinds.items()}
            arrivals = {label: gate.wait_arrival(label) for label in jobs}
            waiter = aside.submit(client.wait, jobs["ends"], LIMIT)
            stage.wait(lambda: stage.call(WAITED_FOR), "the client's wait for the job")
            stranger.fill()
            with (
                psycopg.connect(dsn, autocommit=True) as refused,
                pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too many"),
            ):
                refused.execute("NOTIFY chatter")
            mark = len(fleet.log)

            arrivals["ends"].open("kept")
            row = stage.wait_state(jobs["ends"], "completed", "failed")
            assert (row["state"], row["result"]) == ("completed", "kept")
            assert waiter.result()["state"] == "completed"
            arrivals["again"].open("snooze")
            gate.wait_arrival("again").open("no more")
            stage.wait_state(jobs["again"], "completed")
            os.kill(arrivals["dies"].pid, signal.SIGKILL)
            gate.wait_arrival("dies").open("second")
            row = stage.wait_state(jobs["dies"], "completed")
            assert (row["result"], row["attempts"], row["crashes"]) == ("second", 2, 1)
            assert client.cancel(jobs["cancelled"]) == "cancelling"
            stage.wait_state(jobs["cancelled"], "cancelled")
            later = client.enqueue("t:noop", delay="1h")
            assert client.cancel(later) == "cancelled"
            stage.wait_all([client.enqueue("t:noop"), client.enqueue("t:noop", delay=0.1)], "completed")
            stage.run("SELECT jobherd.pause('other')")
            stage.run("SELECT jobherd.resume('other')")
            before = stage.run(BEATEN)
            stage.wait(lambda: stage.run(BEATEN) > before, "another renewal of the lease")
            answer = jobherd("doctor", "--json", dsn=dsn)
            assert (answer.code, answer.err) == (1, "")
            assert any("queue of notifications is 100% full" in found["text"] for found in answer.json["findings"])
            assert len(fleet.said("notification queue is full", after=mark)) == 1
            assert fleet.said("refused", after=mark) == []
            assert fleet.said("does not receive its own", after=mark) == []

            stranger.leave()
            fleet.wait_log("notification queue has space again", after=mark)
            assert fleet.stop() == 0
        finally:
            stage.show()


def test_outcome_waits_for_queue_space_when_an_applications_trigger_sends_notifications(tmp_path: Path, gate: Gate):
    """The triggers of the test stand for those of an application.

    They send a notification for each row, also if the queue is full.
    """
    with small() as dsn, Stage(dsn, tmp_path) as stage, Stranger(dsn) as stranger:
        try:
            fleet = stage.run_fleet(
                workers=2, poll="1s", lease="1m", respawn_initial="10ms", db_retry_initial="100ms", db_retry_max="500ms"
            )
            jobs = {label: stage.enqueue("t:gate", f'{{"label": "{label}"}}') for label in ("ends", "dies")}
            arrivals = {label: gate.wait_arrival(label) for label in jobs}
            stranger.fill()
            mark = len(fleet.log)
            arrivals["ends"].open("kept")
            os.kill(arrivals["dies"].pid, signal.SIGKILL)
            fleet.wait_log("the database is away, waiting for it: too many notifications", after=mark)
            fleet.wait_log("the database rejected a statement of the supervisor: settle/settle_jobs", after=mark)
            stranger.leave()
            gate.wait_arrival("dies").open("second")
            rows = [stage.wait_state(job, "completed", "failed") for job in jobs.values()]
            assert [(row["state"], row["result"], row["attempts"], row["crashes"]) for row in rows] == [
                ("completed", "kept", 1, 0),
                ("completed", "second", 2, 1),
            ]
            assert fleet.stop() == 0
        finally:
            stage.show()
