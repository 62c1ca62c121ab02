"""Transaction ids run out, as in a database that could freeze no rows for years.

First the server warns, then it rejects every write.

The servers and ids are real; pg_resetwal skips most ids. As in practice, a forgotten replication slot
prevents the freezing. The test drops the slot at the end, and the server's autovacuum then does the rest.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd.sql.migrate import migrate
from tests.cli.shell import jobherd
from tests.support.fleet import Stage, is_foreign
from tests.support.postgres import Cluster, quick_place
from tests.support.processes import children_of
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.gate import Gate

SETTINGS = {"wal_level": "logical", "max_replication_slots": "1", "autovacuum_naptime": "1s"}
LEASE = "6s"
EXPIRED = "SELECT count(*) FROM jobherd.supervisors WHERE lease_until < clock_timestamp()"
FROZEN = "SELECT max(age(datfrozenxid)) <= (SELECT age(catalog_xmin) FROM pg_replication_slots) FROM pg_database"
"""Whether autovacuum has frozen everything that the slot allows.

Otherwise it would free a few hundred ids after all others are used up.
"""
FEW = 6
"""Most lines that a supervisor and its three or four child processes may log about the outage.

Each may log once that the database is away, and one death is logged.
"""
BURN = """
CREATE PROCEDURE burn() LANGUAGE plpgsql AS $$
BEGIN
    SET synchronous_commit = off;
    LOOP
        PERFORM pg_current_xact_id();
        COMMIT;
    END LOOP;
END $$
"""


@contextmanager
def neglected(left: int) -> Iterator[tuple[Cluster, str]]:
    """Yield a server with this many transaction ids left, and a migrated database of it."""
    with Cluster(SETTINGS, place=quick_place()) as cluster, cluster.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
            connection.execute(BURN)
            connection.execute("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        cluster.use_up_ids(left)
        yield cluster, dsn


def burn(dsn: str) -> None:
    """Use up the remaining ids."""
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        pytest.raises(psycopg.errors.ProgramLimitExceeded, match="wraparound"),
    ):
        connection.execute("CALL burn()")


def mend(dsn: str) -> None:
    """Drop the slot that prevents freezing, as the server's hint advises. This needs no transaction id."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot('forgotten')")


def test_jobs_run_while_the_server_warns_and_doctor_reports_the_coming_stop(tmp_path: Path):
    with neglected(1_000_000) as (cluster, dsn), Stage(dsn, tmp_path) as stage:
        fleet = stage.run_fleet(workers=1)
        stage.wait_state(stage.enqueue("t:noop"), "completed")
        assert b"must be vacuumed within" in cluster.log.read_bytes(), "the server warns with each id"
        assert fleet.said("must be vacuumed") == [], "Jobherd does not repeat the warnings in its log"
        answer = jobherd("doctor", "--json", dsn=dsn)
        assert answer.code == 1
        texts = [found["text"] for found in answer.json["findings"] if found["weight"] == "wrong"]
        assert any("the server stops taking writes, in all databases" in text for text in texts), texts
        assert any("forgotten" in text for text in texts), texts
        assert fleet.stop() == 0


def test_jobs_wait_while_the_server_has_no_transaction_ids_and_then_complete(tmp_path: Path, gate: Gate):
    with neglected(50_000) as (cluster, dsn), Stage(dsn, tmp_path) as stage:
        fleets = [stage.run_fleet(workers=2, lease=LEASE)]
        ends, dies = (stage.enqueue("t:gate", f'{{"label": "{label}"}}') for label in ("ends", "dies"))
        ending, dying = gate.wait_arrival("ends"), gate.wait_arrival("dies")
        fleets.append(stage.run_fleet(workers=1, lease=LEASE))
        lasts = stage.enqueue("t:gate", '{"label": "lasts"}')
        lasting = gate.wait_arrival("lasts")
        with Queue(dsn) as queue:
            there = (
                queue.supervisor().id
            )  # with a long lease: after its expiry, a fleet command is rejected before the write
        processes = {child for fleet in fleets for child in children_of(fleet.pid)} - {dying.pid}
        try:
            stage.wait(lambda: stage.run(FROZEN) == [(True,)], "autovacuum to finish", limit=180)
            marks, said = [len(fleet.log) for fleet in fleets], cluster.log.stat().st_size
            burn(dsn)
            ending.open("kept")
            os.kill(dying.pid, signal.SIGKILL)
            for fleet, mark in zip(fleets, marks, strict=True):
                fleet.wait_log("the database is away: it takes no writes", after=mark)
            fleets[0].wait_log("the database is away, waiting for it", after=marks[0])
            refused = jobherd("enqueue", "t:noop", "{}", dsn=dsn)
            assert (refused.code, refused.out) == (69, "")
            assert "the database takes no writes: database is not accepting commands" in refused.err
            fleets[0].signal(signal.SIGUSR1)
            fleets[0].wait_log("no database: it takes no writes", after=marks[0])
            refused = jobherd("fleet", "reload", there, dsn=dsn)
            assert (refused.code, "the database takes no writes" in refused.err) == (69, True), refused
            answer = jobherd("doctor", "--json", dsn=dsn)
            assert answer.code == 1, answer
            assert any("the server stops taking writes" in found["text"] for found in answer.json["findings"]), (
                "checks that cannot run hide no finding"
            )
            stage.wait(lambda: stage.call(EXPIRED) == 2, "both leases to expire")
            stage.wait(
                lambda: cluster.log.read_bytes()[said:].count(b"not accepting commands") >= 20, "twenty refusals"
            )
            assert (stage.state(ends), stage.state(dies), stage.state(lasts)) == ("running",) * 3
            told = [
                [line for line in fleet.said("", after=mark) if line["level"] != "info" and not is_foreign(line)]
                for fleet, mark in zip(fleets, marks, strict=True)
            ]
            assert max(map(len, told)) <= FEW, told

            mend(dsn)
            row = stage.wait_state(ends, "completed", "retrying", "failed")
            assert (row["state"], row["result"], row["attempts"]) == ("completed", "kept", 1)
            gate.wait_arrival("dies").open("second")
            row = stage.wait_state(dies, "completed")
            assert (row["result"], row["attempts"], row["crashes"]) == ("second", 2, 1)
            for fleet, mark in zip(fleets, marks, strict=True):
                fleet.wait_log("the database is there", after=mark)
            assert [fleet.said("were reclaimed") for fleet in fleets] == [[], []], (
                "a supervisor that could not renew its lease gets the time to do so"
            )
            lasting.open("to the end")
            row = stage.wait_state(lasts, "completed")
            assert (row["result"], row["attempts"]) == ("to the end", 1)
            stage.wait_state(stage.enqueue("t:noop"), "completed")
            assert processes <= {child for fleet in fleets for child in children_of(fleet.pid)}
            assert [fleet.stop() for fleet in fleets] == [0, 0]
        finally:
            stage.show()
