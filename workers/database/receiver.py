"""Reads the responses of a connection, with a time limit on the server's silence.

Waiting is done in Python, so that signals are handled while the server works.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from jobherd.workers.database.response_check import GOOD

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

EAGER: Final = 0.0004
"""Seconds of polling before sleeping. A claim takes 0.2 ms on an idle machine, and being put to
sleep and woken again costs 0.05 to 0.1 ms more.
"""


class Silence(psycopg.OperationalError):
    """The connection was given up after a silence of the server, which may still be working."""


class Receiver:
    """The receiving side of one connection.

    patience: seconds without a byte from or to the server after which the connection counts as
    lost; None: never. The kernel gives up only a connection that gets no acknowledgement: a device
    in between may acknowledge every packet and forward none.
    """

    def __init__(self, pgconn: PGconn, patience: float | None) -> None:
        self.patience = patience
        self._pgconn = pgconn
        self._readable = select.poll()
        self._readable.register(pgconn.socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(pgconn.socket, select.POLLIN | select.POLLOUT)

    def receive(self, *, syncs: int = 0, eager: bool = False, hidden: int = 0) -> list[PGresult]:
        """Return the results of a pipeline up to `syncs` syncs, or of one statement outside a pipeline.

        hidden: number of results at the beginning of each transaction that are left out.

        There are fewer if the connection is broken. A statement that has returned rows can still
        fail when its transaction commits, through a deferred trigger or a full notification queue.
        Then that error replaces all results of the transaction. Before the response to the commit,
        nothing in the transaction counts as done.
        """
        pipelined = syncs > 0
        pgconn = self._pgconn
        results: list[PGresult] = []
        uncommitted: list[PGresult] = []
        while pgconn.flush():
            self._wait(self._either)
            pgconn.consume_input()
        until = time.monotonic() + EAGER if eager else 0.0
        while True:
            while pgconn.is_busy():
                if until and time.monotonic() < until:
                    os.sched_yield()  # The server may need this processor.
                else:
                    self._wait(self._readable)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                if not pipelined:
                    return _of_transaction(uncommitted)
                if pgconn.status == pq.ConnStatus.BAD:
                    return results + [one for one in _of_transaction(uncommitted) if one.status not in GOOD]
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                results += _of_transaction(uncommitted, hidden)
                uncommitted = []
                syncs -= 1
                if not syncs:
                    return results
            else:
                uncommitted.append(result)
                if not pipelined and result.status not in GOOD and pgconn.status == pq.ConnStatus.BAD:
                    return _of_transaction(uncommitted)

    def _wait(self, ready: select.poll) -> None:
        if self.patience is None:
            ready.poll()
            return
        before = -1
        while not ready.poll(self.patience * 500):
            unsent = _unsent(self._pgconn.socket)
            if unsent == before:  # A slow connection on which data still moves is not lost.
                message = f"no message from the server for {self.patience:g} s"
                raise Silence(message)
            before = unsent


def _unsent(fd: int) -> int:
    """Return how many bytes the other side has not acknowledged yet."""
    count: int = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))[0]
    return count


def _of_transaction(results: list[PGresult], hidden: int = 0) -> list[PGresult]:
    """Return the results of a transaction.

    If a statement failed, that is only its error. Otherwise the first `hidden` results are left
    out.
    """
    for result in results:
        if result.status not in GOOD:
            return [result]
    return results[hidden:]
