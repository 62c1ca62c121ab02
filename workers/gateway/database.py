"""The gateway's database session, used in a separate thread.

The event loop must not wait for the database: meanwhile no client would get an answer. All
statements go through one session, one transaction at a time and in the order in which they were
requested; only results are sent before the claim ahead of them is answered. What the statements mean
is the business of `claims.py` and `transactions.py`.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg

from jobherd.workers.database.connection import Session
from jobherd.workers.database.errors import is_retryable
from jobherd.workers.process.wakeup import Wake

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.workers.database.connection import Response
    from jobherd.workers.database.opening import Row
    from jobherd.workers.database.wire import Request
    from jobherd.workers.process.spec import ChildSpec

T = TypeVar("T")


class NoAnswerError(Exception):
    """A transaction was sent once and got no answer. Its session has ended, so it cannot commit later."""


class GatewaySession(Session):
    """A session whose transactions may have several statements. It is never idle in a transaction.

    next: sent together with the next claim, as its own transaction behind it. The server executes it while
        the answer to the claim is read. `transact` of the same object returns its rows.
    """

    next: Request | None = None
    _sent: Request | None = None
    """What was sent together with a claim, until `transact` takes its response."""

    def transact(self, *requests: Request, stubborn: bool = True) -> list[list[Row]]:
        """Send statements in one transaction and return the rows of each, however long the database is away.

        Without statements there is no transaction. They may be sent twice: a break hides whether
        they were committed. Raises StopWaiting, or psycopg.Error if a statement is rejected: then
        nothing of the transaction was committed.
        """
        if not requests:
            return []
        if len(requests) == 1 and requests[0] is self._sent:
            self._sent = None
            response = self.second_response()
            if not isinstance(response, Exception):
                return [response]
            if not isinstance(response, psycopg.Error) or not is_retryable(response):
                raise response
        send = cast("Callable[[], list[Row]]", lambda: self._ready().exchange(*requests))
        return cast("list[list[Row]]", self._keep_trying(send, patient=True, stubborn=stubborn))

    def transact_once(self, request: Request) -> list[Row]:
        """Send a statement as one transaction, but not twice, and return its rows.

        Raises NoAnswerError if there was no answer: then there is a new session, and the server has
        ended the old one. Raises as `transact` otherwise.
        """
        try:
            self._ready()
            response = self._send_with_next(request)
            if isinstance(response, psycopg.Error):
                raise response
            return response
        except psycopg.Error as problem:
            if not self._is_lost_by(problem):
                raise
            self._note_lost(problem)
            self.connect()
            raise NoAnswerError from problem

    def _send_with_next(self, request: Request) -> Response:
        """Send a statement, and `next` behind it."""
        following, self.next = self.next, None
        if following is not None:
            with suppress(ValueError, OverflowError):  # Nothing was sent. `transact` says why.
                response = self.run_ahead(*request, *following)
                self._sent = following
                return response
        return self._send(*request)


class Database:
    """The session and its thread.

    session: only functions that `call` runs may use it.
    """

    def __init__(self, spec: ChildSpec) -> None:
        # Its own pipe: the process's wake pipe is read by the event loop.
        read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wake = Wake(read, parent=spec.parent)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        self.session = GatewaySession(spec, self._wake)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the thread, after those before it, and return what it returns."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def wake(self) -> None:
        """End a wait for the database: it may be back."""
        with suppress(BlockingIOError):
            os.write(self._write, b"\1")

    def close(self) -> None:
        """Wait for no answer any more. A call that waits for the database raises StopWaiting."""
        self._wake.dismissed = True
        self.wake()
        self._thread.shutdown(wait=False, cancel_futures=True)
