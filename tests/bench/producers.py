"""Measure producers that commit one job at a time against a busy fleet.

How much does it cost them that they can wake workers?

Slices of the same load run in turn, so that all see the same machine: without the trigger; with it,
while every worker is busy; and with it while a worker is idle, when each producer must notify. The
aim is for the second against the first. The third shows the cost of notifications.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd import sql
from tests.support.figures import Report, at
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WORK = Path(__file__).with_name("work.py")
KEYS: Final = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785684584 AND mode = 'ShareLock'"
)
NONE, BUSY, ASLEEP = "no trigger at all", "trigger, all busy", "trigger, a worker sleeps"


def produce(dsn: str, orders: Connection) -> None:
    """Run a producer: for each time that it receives, commit jobs until then, and send their number."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        while until := orders.recv():
            count = 0
            while time.monotonic() < until:
                connection.execute("SELECT jobherd.enqueue('bench:noop')", prepare=True)
                count += 1
            orders.send(count)


def wait_for_keys(connection: psycopg.Connection, held: bool) -> None:
    until = time.monotonic() + 30
    while bool(connection.execute(KEYS).fetchone()[0]) is not held:
        assert time.monotonic() < until, "the supervisor did not take or release its advisory keys within 30 s"
        time.sleep(0.02)


def heard(ears: psycopg.Connection) -> int:
    """How many notifications of jobs arrived since the last call. A mark that it sends itself ends the count."""
    ears.execute("SELECT pg_notify('jobherd_jobs', '@mark')")
    count = 0
    for note in ears.notifies(timeout=30):
        if note.payload == "@mark":
            break
        count += note.payload[0] != "@"
    return count


def main() -> int:
    given = arguments(__doc__, producers=8, rounds=24, seconds=0.5, workers=2)
    report = Report(f"producers: {given.producers} that commit one job at a time")
    with ground() as (_, dsn), Herd(dsn, WORK, "--poll", "5m", workers=given.workers) as herd:
        report.on(dsn)
        ends = [multiprocessing.Pipe() for _ in range(given.producers)]
        family = [multiprocessing.Process(target=produce, args=(dsn, theirs), daemon=True) for _, theirs in ends]
        for process in family:
            process.start()
        with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn, autocommit=True) as ears:
            for _ in range(given.workers):
                connection.execute("SELECT jobherd.enqueue('bench:hold', '{\"seconds\": 3600}')")
            wait_for_keys(connection, held=False)
            ears.execute(sql.load("wake/listen_jobs"))
            rates: dict[str, list[float]] = {NONE: [], BUSY: [], ASLEEP: []}
            notified = dict.fromkeys(rates, 0)
            commits = dict.fromkeys(rates, 0)
            for number in range(-1, given.rounds):  # The first round is the warm-up.
                turns = [NONE, BUSY] if number % 2 else [BUSY, NONE]
                for what in turns if number % 4 else [*turns, ASLEEP]:
                    connection.execute("TRUNCATE jobherd.ready")
                    connection.execute(
                        f"ALTER TABLE jobherd.ready {'DISABLE' if what is NONE else 'ENABLE'} TRIGGER wake"
                    )
                    if what is ASLEEP:
                        ears.execute(sql.load("wake/enable_notify"))
                    heard(ears)
                    until = time.monotonic() + given.seconds
                    for ours, _ in ends:
                        ours.send(until)
                    count = sum(ours.recv() for ours, _ in ends)
                    told = heard(ears)
                    if what is ASLEEP:
                        ears.execute(sql.load("wake/disable_notify"))
                    if number >= 0:
                        rates[what].append(count / given.seconds)
                        notified[what] += told
                        commits[what] += count
            for ours, _ in ends:
                ours.send(0.0)
            for process in family:
                process.join()
        herd.signal(signal.SIGQUIT)
        herd.wait()
    for what, found in rates.items():
        report.fact(
            f"{what}, jobs/s",
            f"median {at(found, 0.5):,.0f} ({min(found):,.0f} to {max(found):,.0f}), {notified[what]:,} of {commits[what]:,} notified",
        )
    report.holds("a session that commits while a worker sleeps notifies", notified[ASLEEP] == commits[ASLEEP])
    report.holds("no session notifies without the trigger", notified[NONE] == 0)
    report.figure(
        "jobs that were notified while all were busy", [100 * notified[BUSY] / commits[BUSY]], unit="%", aim=1
    )
    report.figure(
        "jobs committed one by one while all are busy, against no trigger",
        rates[BUSY],
        rates[NONE],
        unit="jobs/s",
        aim=0.9,
        at_least=True,
    )
    report.figure("the same while a worker sleeps", rates[ASLEEP], unit="jobs/s")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
