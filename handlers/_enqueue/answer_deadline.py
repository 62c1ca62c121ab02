"""Sessions that fall silent: what lies between may confirm every packet and carry none, and an answer would be waited for for ever.

Whoever waits for a job asks now and then, and each answer has a time by which it is there, or the line is cut as if the server had ended the
session. Cut, and not left: psycopg would wait for the answer also while it is interrupted. A session of the caller's own is never cut.
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
    """The session was cut: nothing was answered for too long."""


@contextmanager
def answered(connection: psycopg.Connection[Any], within: float) -> Iterator[None]:
    """Cut the session, and raise SilentError, if what is asked here is not answered within so many seconds."""
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
        raise asyncio.CancelledError  # psycopg has put the end of the session in its place
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
            message = "nothing was answered for too long"
            raise SilentError(message)
