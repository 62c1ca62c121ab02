"""Kill workers, and end their sessions, while they work on records of an application's table.

Is every record's work in the database exactly once?

Each record's handler writes a row in the transaction that holds the record. So an additional row is
a run that was committed without its state, and a missing row is a state that was committed without
its work.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import psycopg

from jobherd.sql.table_statements import definition
from tests.faults.table_work import store
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("table_work.py")
ALIVE = "SELECT pid FROM jobherd.children WHERE kind = 'worker' ORDER BY random() LIMIT 1"
BREAK = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name LIKE 'jobherd:table:%' AND datname = current_database() ORDER BY random() LIMIT 1"""
FLAGS = ("--poll", "1s", "--respawn-initial", "10ms", "--respawn-max", "100ms")


def main() -> int:
    given = arguments(__doc__, kills=200, workers=2)
    dice = random.Random(given.seed)
    report = Report(f"tables: {given.kills} kills under two supervisors, seed {given.seed}")
    with ground() as (_, dsn), psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        connection.execute(definition(store.names, store.name).encode())
        connection.execute("CREATE TABLE effects (record bigint)")
        records = kills = 0
        with Herd(dsn, WORK, *FLAGS, workers=given.workers), Herd(dsn, WORK, *FLAGS, workers=given.workers):
            while kills < given.kills:
                if connection.execute("SELECT count(*) FROM fault_records WHERE state = 'queued'").fetchone()[0] < 100:
                    connection.execute("INSERT INTO fault_records (cancel) SELECT false FROM generate_series(1, 500)")
                    records += 500
                time.sleep(dice.uniform(0.0, 0.2))
                if dice.random() < 0.2:
                    connection.execute(BREAK)
                    continue
                for (pid,) in connection.execute(ALIVE).fetchall():
                    try:
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
                    except ProcessLookupError:
                        continue
            until = time.monotonic() + 300
            left = "SELECT count(*) FROM fault_records WHERE state IN ('queued', 'processing', 'errored')"
            while connection.execute(left).fetchone()[0] and time.monotonic() < until:
                time.sleep(0.2)
        states = connection.execute("SELECT state, count(*), sum(num_resets) FROM fault_records GROUP BY 1").fetchall()
        [(effects, distinct)] = connection.execute("SELECT count(*), count(DISTINCT record) FROM effects").fetchall()
        [(noted,)] = connection.execute("SELECT count(*) FROM jobherd.table_ends").fetchall()
    report.holds("every record is completed", [state for state, *_ in states] == ["completed"], states)
    report.holds(
        "the writes of each handler exist once",
        effects == distinct == records,
        f"{effects} of {distinct} of {records}",
    )
    report.holds("no outcome of a dead worker is left unprocessed", not noted, noted)
    report.fact("kills, and records that were reset", f"{kills}, {sum(resets for *_, resets in states)}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
