"""Deadlines for answers of a session.

A proxy may acknowledge every packet and forward none, so a call would wait forever. A call that
waits for a job queries now and then, and each answer has a deadline. If it passes, the socket is
shut down as if the server had ended the session. Leaving the call is not enough: psycopg would wait
for the answer also while it is interrupted. The caller's own session is never shut down.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class SilentError(psycopg.OperationalError):
    """The session was shut down because it did not answer in time."""


@contextmanager
def answered(connection: psycopg.Connection[Any], within: float) -> Iterator[None]:
    """Shut the session down and raise SilentError if the block takes more than `within` s."""
    line = _Line(connection)
    timer = threading.Timer(within, line.cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except psycopg.Error:
        if not line.silent:
            raise
    finally:
        timer.cancel()
        timer.join()
    line.check()


@contextmanager
def aanswered(connection: psycopg.AsyncConnection[Any], within: float) -> Iterator[None]:
    """`answered`, for coroutines."""
    line = _Line(connection)
    timer = asyncio.get_running_loop().call_later(within, line.cut)
    try:
        yield
    except psycopg.Error:
        if not line.silent:
            raise
    finally:
        timer.cancel()
    if line.silent and (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError  # psycopg has replaced it with the error of the ended session
    line.check()


class _Line:
    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self.silent = False

    def cut(self) -> None:
        self.silent = True
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        if self.silent:
            message = "the server took too long to answer"
            raise SilentError(message)
