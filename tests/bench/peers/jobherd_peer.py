"""The adapter of Jobherd itself, with the commands of the peers.

It runs a supervisor with two workers, in batches of 500 for a drain and of 1 for a start, or as it
chooses by default.

The first argument says what is kept of completed jobs: `history`, everything, or `failures`, nothing.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import notes
import psycopg

from jobherd import Client, handler, sql

BATCH = {"drain": 500, "start": 1}
KINDS = {"history": "peer:noop", "failures": "peer:forgotten"}


@handler("peer:noop")
def noop(n: int, user_id: int, action: str, locale: str, ref: str) -> None:
    notes.noop()


@handler("peer:forgotten", keep_completed=0)
def forgotten(n: int, user_id: int, action: str, locale: str, ref: str) -> None:
    notes.noop()


@handler("peer:stamp")
def stamp(n: int, user_id: int, action: str, locale: str, ref: str) -> None:
    notes.stamp(n)


def setup():
    subprocess.run(
        [sys.executable, "-m", "jobherd.supervisor", "migrate", "--dsn", notes.DSN],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    # Otherwise the first supervisor does it, which takes a second while jobs wait.
    with psycopg.connect(notes.DSN, autocommit=True) as connection:
        connection.execute(sql.load("maintenance/keep_partitions"), {"ahead": 32, "most": None})


def load(count):
    with Client(notes.DSN) as client:
        for part in notes.slices(count):
            client.enqueue_many(KINDS[kept], part)


def work(purpose):
    words = [
        "run",
        "--dsn",
        notes.DSN,
        "--handlers",
        str(Path(__file__)),
        "--workers",
        "2",
        "--http",
        "off",
        *(("--claim-size", str(BATCH[purpose])) if purpose in BATCH else ()),
    ]
    os.execv(sys.executable, [sys.executable, "-m", "jobherd.supervisor", *words])


@contextlib.contextmanager
def offering():
    with psycopg.connect(notes.DSN, autocommit=True) as connection:
        client = Client(connection=connection)
        yield lambda payload: client.enqueue("peer:stamp", payload)


if __name__ == "__main__":
    kept = sys.argv.pop(1)
    notes.main(setup, load, work, offering)
