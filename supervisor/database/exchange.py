"""Sends queued requests over one session, one at a time, and reads the replies. Never blocks.

It depends neither on how a session begins nor on what a request is about.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from psycopg import pq

from jobherd.supervisor.database.requests import Rejection, Request, Row, rows_of
from jobherd.workers.database.response_check import Answers
from jobherd.workers.system import failpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.pq.abc import PGconn

ANSWER_PATIENCE: Final = 10.0
"""Seconds without an answer after which the session counts as dead."""


class Exchange:
    """Sends the queued requests over one session after the other.

    Attributes:
        queue: requests that are not sent yet. They stay queued until there is a session.
        notified: payloads of notifications since the owner last took them.
        prepared: names of the statements that are prepared in this session.
        reply: the latest reply, as far as it was read.
        checks_replies: a pooler shares the backend, so each reply is checked for another client's.
        answered_at: when the last reply was complete.
    """

    def __init__(self) -> None:
        self.queue: deque[Request] = deque()
        self.notified: list[str] = []
        self.prepared: set[str] = set()
        self.checks_replies = False
        self.answered_at = 0.0
        self._answers = Answers()
        self._sent: Request | None = None
        self.reply: list[Row] | Rejection = []
        self._flushing = False

    @property
    def is_quiet(self) -> bool:
        """Whether no request is under way or queued."""
        return self._sent is None and not self.queue

    @property
    def wants_write(self) -> bool:
        """Whether the socket must be writable for the next step."""
        return self._flushing

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        if self._sent is not None:
            return self._sent.give_up_at
        return 0.0 if self.queue else float("inf")  # queued after the last step: no socket event would send it

    def overdue(self, now: float) -> str:
        """Return the name of the request whose answer is overdue, or ""."""
        return self._sent.name if self._sent is not None and now >= self._sent.give_up_at else ""

    def begin(self) -> None:
        """Use a new session from now on."""
        self.prepared, self._answers, self.checks_replies = set(), Answers(), False

    def end(self) -> list[Request]:
        """Forget the lost session and its requests; return the requests that have no reply."""
        lost = [*([] if self._sent is None else [self._sent]), *self.queue]
        self._sent, self._flushing, self.reply = None, False, []
        self.queue.clear()
        return lost

    def put_first(self) -> deque[Request]:
        """Return the queued requests and empty the queue, so that other requests can be queued before them."""
        waiting, self.queue = self.queue, deque()
        return waiting

    def step(self, conn: PGconn, now: float) -> Iterator[tuple[Request, list[Row] | Rejection]]:
        """Yield each reply once it is complete; send the next request when the caller continues.

        Raises:
            Exception: the session is lost. psycopg raises OperationalError for all that libpq
                reports.
        """
        conn.consume_input()
        if self._flushing:
            self._flushing = bool(conn.flush())
        while True:
            request = self._sent
            whole = request is None or self._read(conn, request, now)
            # Reading a reply may have consumed a notification from the socket, which no longer
            # shows it. So check after each reply, including the last one.
            while (notified := conn.notifies()) is not None:
                self.notified.append(notified.extra.decode(errors="replace"))
            if not whole:
                return
            if request is not None:
                yield request, self.reply
            if not self.queue:
                return
            self._send(conn, self.queue.popleft(), now)

    def _send(self, conn: PGconn, request: Request, now: float) -> None:
        request.give_up_at = now + ANSWER_PATIENCE
        self._sent, self.reply = request, []
        _reach(request, "before")
        if request.prepares:
            conn.send_prepare(request.name.encode(), request.text)
        elif request.name in self.prepared:
            conn.send_query_prepared(request.name.encode(), request.parameters)
        else:
            conn.send_query_params(request.text, request.parameters)
        self._flushing = bool(conn.flush())
        _reach(request, "sent")

    def _read(self, conn: PGconn, request: Request, now: float) -> bool:
        """Read the reply as far as it has arrived; return whether it is complete."""
        while not conn.is_busy():
            result = conn.get_result()
            if result is None:
                self._sent = None
                self.answered_at = now
                _reach(request, "done")
                return True
            if self.checks_replies:
                self._answers.check(request.name, result)
            if result.status == pq.ExecStatus.TUPLES_OK:
                self.reply = rows_of(result)
            elif result.status != pq.ExecStatus.COMMAND_OK:
                self.reply = Rejection.of(result)
        return False


def _reach(request: Request, place: str) -> None:
    if failpoints.armed:
        failpoints.reach(f"parent:{request.name.rpartition('/')[2]}.{place}")
