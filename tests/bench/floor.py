"""Measure the latency floor: the shortest time in which this way of starting a job can work.

A minimal parent listens and writes one byte to a pipe. A forked child then claims one row of a lean
table by its index and records the time. There is no supervision, no outcome and no fencing token.
The product is measured against this.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from typing import Self

import psycopg

LEAN = """
CREATE TABLE lean (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue int NOT NULL DEFAULT 1, locked_by int,
    attempts int NOT NULL DEFAULT 0, kind text NOT NULL DEFAULT 'noop', payload text NOT NULL) WITH (fillfactor = 50);
CREATE FUNCTION enqueue_lean(p text) RETURNS bigint LANGUAGE sql AS
    $$ SELECT pg_notify('lean', ''); INSERT INTO lean (payload) VALUES (p) RETURNING id $$;
"""
CLAIM = """
UPDATE lean SET locked_by = 1, attempts = attempts + 1
  FROM (SELECT id FROM lean WHERE locked_by IS NULL AND queue = 1 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) AS s
 WHERE lean.id = s.id RETURNING lean.id, lean.kind, lean.payload"""


class Floor:
    """The two processes.

    `start(n)` enqueues one row and returns the milliseconds from before the call to the child's recorded
    time.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.call = 0.0
        """Milliseconds of the last enqueue call."""
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(LEAN)
        self._notes, notes = os.pipe()
        wake_read, wake_write = os.pipe()
        self._pids = [
            self._fork(lambda: self._claim_for_ever(wake_read, notes)),
            self._fork(lambda: self._listen_for_ever(wake_write, notes)),
        ]
        for fd in (wake_read, wake_write, notes):
            os.close(fd)
        for _ in self._pids:  # Each process writes once when it is ready.
            os.read(self._notes, 16)

    def _fork(self, life) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            life()
        finally:
            os._exit(1)

    def _claim_for_ever(self, wake: int, notes: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(CLAIM, prepare=True)
            os.write(notes, struct.pack("<qd", -1, 0.0))
            while os.read(wake, 4096):
                row = connection.execute(CLAIM, prepare=True).fetchone()
                now = time.time()
                if row:
                    os.write(notes, struct.pack("<qd", int(row[2]), now))
                    connection.execute("DELETE FROM lean WHERE id = %s AND locked_by = 1", (row[0],), prepare=True)

    def _listen_for_ever(self, wake: int, notes: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("LISTEN lean")
            os.write(notes, struct.pack("<qd", -1, 0.0))
            while True:
                select.select([connection.pgconn.socket], [], [])
                connection.pgconn.consume_input()
                heard = False
                while connection.pgconn.notifies():
                    heard = True
                if heard:
                    os.write(wake, b"x")

    def start(self, number: int) -> float:
        before = time.time()
        self._connection.execute("SELECT enqueue_lean(%s)", (str(number),), prepare=True)
        self.call = (time.time() - before) * 1000
        told, at = struct.unpack("<qd", os.read(self._notes, 16))
        assert told == number
        return (at - before) * 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self._notes)
        self._connection.close()
