"""Waiting for the end of jobs: what is known of them, when to look again, and when to give up.

Whoever waits listens on a session of its own, says for which jobs, and looks; from then on it is told of each end, and looks by itself only
every few seconds, should a word get lost (`sql/migrations/0013`). The bookkeeping is here, for threads, asyncio and the command line; it
must not wait or speak to the database itself, so that the three only differ in how they do that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobherd.handlers._enqueue import options
from jobherd.handlers._enqueue.answer_deadline import SilentError
from jobherd.handlers._enqueue.options import OVER, check_id
from jobherd.handlers._policy.durations import Duration, at_least_zero

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._enqueue.options import Statement

JobRow: TypeAlias = dict[str, Any]

BACKSTOP: Final = (1.0, 5.0)
"""Seconds after which a waiter that was told nothing looks by itself: the first time, and at last."""
BLIND: Final = (0.02, 1.0)
"""The same for one who cannot listen."""
FACTOR: Final = 1.5
"""By which the one grows into the other."""
LATE: Final = 2.0
"""Seconds that the word of an end may come after the end itself was seen: of some kinds nothing else is left."""
SILENCE: Final = 10.0
"""Seconds for an answer, at first: twice as many after each that did not come, for of very many jobs it may take long."""
GRACE: Final = 1.0
"""Seconds for an answer once the time is up: it may still say that all are over."""
SHOWN: Final = 10
"""Ids in an error."""


class CompletionWait:
    """The jobs that somebody waits for. The caller looks at `due()`, hands over what it `found()`, and waits for `patience()` seconds.

    schema: where they are. deaf: the caller cannot listen.
    """

    def __init__(self, job_ids: Iterable[int], timeout: Duration | None, *, schema: str, deaf: bool) -> None:
        self.left: dict[int, JobRow | None] = {check_id(number): None for number in job_ids}
        """The jobs that are not over, as they were last seen."""
        self._order = tuple(self.left)
        self._over: dict[int, JobRow] = {}
        self._told: dict[int, str] = {}
        self._missed: dict[int, float] = {}
        """Jobs that were there and are not any more, and until when a word of their end may come."""
        self._schema = schema
        self._deaf = deaf
        self._until = None if timeout is None else time.monotonic() + at_least_zero(timeout, field="timeout")
        self._look = time.monotonic()
        self._pause, self._longest = BLIND if deaf else BACKSTOP
        self._silence = SILENCE
        self._away = "the database does not answer"

    def deafen(self) -> None:
        """Note that the caller cannot listen after all: behind a pooler a shared backend would."""
        self._deaf = True
        self._pause, self._longest = BLIND
        self._look = time.monotonic() + self._pause

    def due(self) -> list[int]:
        """Return the jobs to look at now: those that were told of or must be given up, or all if nothing was heard for long."""
        now = time.monotonic()
        if now >= self._look:
            self._look = now + self._pause
            self._pause = min(self._longest, self._pause * FACTOR)
            return list(self.left)
        return [number for number in self.left if number in self._told or self._missed.get(number, now + 1) <= now]

    def within(self) -> float:
        """Return the seconds in which the next question is to be answered."""
        return self._silence if self._until is None else min(self._silence, max(self._until - time.monotonic(), 0.0) + GRACE)

    def connecting(self) -> float | None:
        """Return the seconds in which a session is to be had: None if nobody said how long to wait, for then the driver's own time holds."""
        return None if self._until is None else self.within()

    def unanswered(self, problem: Exception) -> None:
        """Note that it was not, or that no session was to be had. Raises TimeoutError when the time is up, and the problem if that was the driver's time."""
        if not isinstance(problem, SilentError):
            if self._until is None:
                raise problem
            self._away = str(problem)
        self._silence *= 2
        self.patience()

    def found(self, looked_at: Iterable[int], rows: dict[int, JobRow]) -> None:
        """Enter what was found of these jobs. Raises LookupError for one that does not exist, or does no more, and is not told of."""
        gone, unheard = [], []
        for number in looked_at:
            row, seen = rows.get(number), self.left[number]
            if row is None and seen is not None and number in self._told:
                row = seen | {"state": self._told[number]}  # of some kinds nothing is kept
            if row is None:
                # The look may have overtaken the word: both come from the same commit, and only one of them waits to be read.
                if seen is not None and self._deaf:
                    unheard.append(number)
                elif seen is None or time.monotonic() >= self._missed.setdefault(number, time.monotonic() + LATE):
                    gone.append(number)
            elif row["state"] in OVER:
                self._over[number] = row
                del self.left[number]
                self._missed.pop(number, None)
            else:
                self.left[number] = row
                self._told.pop(number, None)
        if gone:
            raise LookupError(f"there is no job {_listed(gone)}")
        if unheard:
            raise LookupError(
                f"job {_listed(unheard)} is gone, and nothing is kept of it: how such a job ends is told to those who listen, which is not done "
                "on a connection of yours, nor through a pooler unless JOBHERD_LISTEN_DSN says how"
            )

    def heard(self, message: str) -> None:
        """Note a notification."""
        self._told |= {number: state for number, state in ends(message, self._schema).items() if number in self.left}

    def patience(self) -> float:
        """Return the seconds to wait for a word. Raises TimeoutError when the time is up."""
        now = time.monotonic()
        left = float("inf") if self._until is None else self._until - now
        if left <= 0:
            states = {row["state"] for row in self.left.values() if row is not None}
            jobs = f"job{'s' * (len(self.left) > 1)} {_listed(list(self.left))}"
            if not states:
                raise TimeoutError(f"nothing is known of {jobs}: {self._away}")
            raise TimeoutError(f"{jobs} {'are' if len(self.left) > 1 else 'is'} still {' or '.join(sorted(states))}")
        return min(max(min(self._look, *self._missed.values(), float("inf")) - now, 0.0), left)

    def rows(self) -> dict[int, JobRow]:
        """Return the rows of the jobs, all over, in the order in which they were asked for."""
        return {number: self._over[number] for number in self._order}


def ends(message: str, schema: str) -> dict[int, str]:
    """Return the ends that a notification tells, by id: words like 7=completed, and first the schema with a dot, for all of a database hear each other.

    >>> ends("jobherd. 7=completed 8=failed", "jobherd"), ends("jobs_eu. 7=failed", "jobherd")
    ({7: 'completed', 8: 'failed'}, {})
    """
    whose, *words = message.split() or [""]
    if not whose.endswith("."):
        words = [whose, *words]  # of a schema that was not migrated yet
    elif whose != f"{schema}.":
        return {}
    told = (word.partition("=") for word in words)
    return {int(number): state for number, _, state in told if number.isascii() and number.isdigit() and len(number) < 20}


def ready_to_hear(vigil: CompletionWait) -> list[Statement[None]]:
    """Return what a session has to send before it looks: in this order, or the end of a job may be missed."""
    waited_for = list(vigil.left)
    return [options.listen_ended(), options.announce_wait(waited_for), options.meet_settlements(waited_for)]


def _listed(numbers: list[int]) -> str:
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more
