"""Bookkeeping of a wait for jobs: what is known, when to query again, when to give up.

A waiting client listens on a separate session, announces the jobs, and queries them once. Then the
database notifies it of each finished job. In case a notification gets lost, the client still
queries every few seconds (`sql/schema/05_wake.sql`). Threads, asyncio and the command line share this
bookkeeping. This module must not wait or use the database itself, so that the three differ only in
how they do that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobherd.handlers._enqueue import statements
from jobherd.handlers._enqueue.answer_deadline import SilentError
from jobherd.handlers._enqueue.options import check_id
from jobherd.handlers._policy.durations import Duration, at_least_zero
from jobherd.handlers._values.outcome import FINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._enqueue.statements import Statement

JobRow: TypeAlias = dict[str, Any]

BACKSTOP: Final = (1.0, 5.0)
"""Seconds after which a client without notifications queries again: the first time, and the
longest."""
POLL: Final = (0.02, 1.0)
"""The same for a client that cannot listen."""
FACTOR: Final = 1.5
"""Factor by which the pause grows from the first to the longest."""
LATE: Final = 2.0
"""Seconds that the notification may arrive after the job disappeared: for some kinds nothing else
is left."""
SILENCE: Final = 10.0
"""Seconds to wait for an answer at first, doubled after each missing one: for very many jobs it may
take long."""
GRACE: Final = 1.0
"""Seconds to wait for an answer once the timeout has passed: it may still say that all jobs are
finished."""
SHOWN: Final = 10
"""Most ids shown in an error."""


class CompletionWait:
    """The jobs that a caller waits for.

    The caller queries `due()`, passes the rows to `found()`, and waits for `pause()` seconds.

    schema: Jobherd's schema. can_listen: whether the caller can use LISTEN.
    """

    def __init__(self, job_ids: Iterable[int], timeout: Duration | None, *, schema: str, can_listen: bool) -> None:
        self.left: dict[int, JobRow | None] = {check_id(number): None for number in job_ids}
        """The jobs that are not finished, with their last row."""
        self._order = tuple(self.left)
        self._over: dict[int, JobRow] = {}
        self._notified: dict[int, str] = {}
        self._missed: dict[int, float] = {}
        """Jobs that have disappeared, with the time until which a notification about their end may
        arrive."""
        self.schema = schema
        self._can_listen = can_listen
        self._until = None if timeout is None else time.monotonic() + at_least_zero(timeout, field="timeout")
        self._query_at = time.monotonic()
        self._pause, self._longest = BACKSTOP if can_listen else POLL
        self._silence = SILENCE
        self._away = "the database does not answer"

    def cannot_listen(self) -> None:
        """Record that the caller cannot listen: behind a pooler, a shared backend would listen."""
        self._can_listen = False
        self._pause, self._longest = POLL
        self._query_at = time.monotonic() + self._pause

    def due(self) -> list[int]:
        """Return the jobs to query now.

        These are jobs with a notification, or past their deadline, or all after a long silence.
        """
        now = time.monotonic()
        if now >= self._query_at:
            self._query_at = now + self._pause
            self._pause = min(self._longest, self._pause * FACTOR)
            return list(self.left)
        return [number for number in self.left if number in self._notified or self._missed.get(number, now + 1) <= now]

    def within(self) -> float:
        """Return the seconds within which the next query must be answered."""
        return (
            self._silence
            if self._until is None
            else min(self._silence, max(self._until - time.monotonic(), 0.0) + GRACE)
        )

    def connecting(self) -> float | None:
        """Return the seconds within which to connect.

        None without a timeout: then the driver's own limit applies.
        """
        return None if self._until is None else self.within()

    def unanswered(self, problem: Exception) -> None:
        """Record that a query was not answered, or that there was no session.

        Raises TimeoutError if the timeout has passed, and the problem itself if it is the driver's
        limit.
        """
        if not isinstance(problem, SilentError):
            if self._until is None:
                raise problem
            self._away = str(problem)
        self._silence *= 2
        self.pause()

    def found(self, looked_at: Iterable[int], rows: dict[int, JobRow]) -> None:
        """Record the rows of the queried jobs.

        Raises LookupError for a job that does not exist, or that disappeared without a
        notification.
        """
        gone, unnotified = [], []
        for number in looked_at:
            row, seen = rows.get(number), self.left[number]
            if row is None and seen is not None and number in self._notified:
                row = seen | {"state": self._notified[number]}  # of some kinds nothing is kept
            if row is None:
                # Race: the query may overtake the notification. Both come from the same commit, and
                # only the notification waits to be read.
                if seen is not None and not self._can_listen:
                    unnotified.append(number)
                elif seen is None or time.monotonic() >= self._missed.setdefault(number, time.monotonic() + LATE):
                    gone.append(number)
            elif row["state"] in FINAL_STATES:
                self._over[number] = row
                del self.left[number]
                self._missed.pop(number, None)
            else:
                self.left[number] = row
                self._notified.pop(number, None)
        if gone:
            raise LookupError(f"job {_listed(gone)} not found")
        if unnotified:
            raise LookupError(
                f"job {_listed(unnotified)} is gone, and its kind keeps no record: only a client that listens is "
                "notified how such a job ends. A client does not listen on your own connection, nor through a pooler "
                "without JOBHERD_LISTEN_DSN"
            )

    def on_notification(self, message: str) -> None:
        """Record a notification."""
        self._notified |= {number: state for number, state in ends(message, self.schema).items() if number in self.left}

    def pause(self) -> float:
        """Return the seconds to wait for a notification.

        Raises TimeoutError if the timeout has passed.
        """
        now = time.monotonic()
        left = float("inf") if self._until is None else self._until - now
        if left <= 0:
            states = {row["state"] for row in self.left.values() if row is not None}
            jobs = f"job{'s' * (len(self.left) > 1)} {_listed(list(self.left))}"
            if not states:
                raise TimeoutError(f"the state of {jobs} is not known: {self._away}")
            raise TimeoutError(f"{jobs} {'are' if len(self.left) > 1 else 'is'} still {' or '.join(sorted(states))}")
        return min(max(min(self._query_at, *self._missed.values(), float("inf")) - now, 0.0), left)

    def rows(self) -> dict[int, JobRow]:
        """Return the rows of the jobs, all finished, in the order in which the caller gave them."""
        return {number: self._over[number] for number in self._order}


def ends(message: str, schema: str) -> dict[int, str]:
    """Return the finished jobs in a notification, as state by id.

    It consists of the schema with a dot, then words such as 7=completed: all schemas of a database
    share the channel.

    >>> ends("jobherd. 7=completed 8=failed", "jobherd"), ends("jobs_eu. 7=failed", "jobherd")
    ({7: 'completed', 8: 'failed'}, {})
    """
    whose, *words = message.split() or [""]
    if not whose.endswith("."):
        words = [whose, *words]  # sent by a schema that is not migrated yet
    elif whose != f"{schema}.":
        return {}
    pairs = (word.partition("=") for word in words)
    return {
        int(number): state for number, _, state in pairs if number.isascii() and number.isdigit() and len(number) < 20
    }


def listen_statements(wait: CompletionWait) -> list[Statement[None]]:
    """Return the statements that a session sends before it queries the jobs.

    Order: any other order could miss the end of a job.
    """
    waited_for = list(wait.left)
    return [
        statements.listen_finished(),
        statements.announce_wait(waited_for),
        statements.wait_for_settlements(waited_for),
    ]


def _listed(numbers: list[int]) -> str:
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more
