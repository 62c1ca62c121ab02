"""Logs ended attempts: failures as warnings and errors, other outcomes with `log_jobs = all`.

The executor notes an attempt, and the worker writes the line after the outcome is in the outcome
buffer, so a log handler that hangs cannot cost an outcome. Each combination of kind and level has
its own limit, so a flood of one kind does not hide the failures of another. The next line of the
combination says how many were left out. Before a worker becomes idle or exits, it logs the
remaining counts.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobherd.handlers._values.outcome import LABELS
from jobherd.workers.inspect.phrases import duration
from jobherd.workers.inspect.stacks import Frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.handlers._values.outcome import Label, Outcome
    from jobherd.workers.job.row import JobRow

_log = logging.getLogger("jobherd.jobs")

BURST: Final = 20
"""Lines about one kind and level that are written without a pause."""
RATE: Final = 2.0
"""Lines a second after that, for each worker."""
LONGEST: Final = 500
"""Characters of an error in a line. The whole text is kept with the attempt."""
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)


class Note(NamedTuple):
    """An attempt that ended.

    most: `max_attempts`, 0 if not known.
    hidden: the error may quote what the kind encrypts or redacts.
    """

    row: JobRow
    outcome: Outcome
    most: int
    ran: float
    hidden: bool


class _Limit:
    """A rate limit of lines. left_out: lines not written since the last one that was."""

    def __init__(self, now: float) -> None:
        self.left_out = 0
        self._tokens = float(BURST)
        self._at = now

    def allows(self, now: float) -> bool:
        self._tokens, self._at = min(BURST, self._tokens + (now - self._at) * RATE), now
        if self._tokens < 1:
            self.left_out += 1
            return False
        self._tokens -= 1
        return True


class JobLog:
    """Notes attempts and logs them.

    mode: `all`, `failures` or `none`, as the setting `log_jobs`.
    waiting: noted attempts that are not logged yet.
    """

    def __init__(self, mode: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.waiting: list[Note] = []
        self.is_all = mode == "all"
        self._failures = mode != "none"
        self._clock = clock
        self._limits: dict[tuple[str, int], _Limit] = {}
        self._summary_at = 0.0

    def note(self, row: JobRow, outcome: Outcome, most: int, ran: float, *, hidden: bool) -> None:
        """Note an attempt that ended, if this mode logs it."""
        if self.is_all or (self._failures and outcome.failed):
            self.waiting.append(Note(row, outcome, most, ran, hidden))

    def correct(self, row: JobRow, outcome: Outcome, ran: float) -> None:
        """Replace the outcome noted for an attempt: the handler's writes could not be committed."""
        self.waiting = [note for note in self.waiting if note.row.id != row.id]
        self.note(row, outcome, 0, ran, hidden=False)

    def write(self) -> None:
        """Log each attempt noted since the last call. Never raises.

        Log handlers of the application run here too.
        """
        notes, self.waiting = self.waiting, []
        now = self._clock()
        for note in notes:
            level = _level(note.outcome)
            limit = self._limits.setdefault((note.row.kind, level), _Limit(now))
            if limit.allows(now):
                left_out, limit.left_out = limit.left_out, 0
                with suppress(Exception):
                    _log.log(level, "%s", _words(note), extra=_ids(note, left_out))

    def summarize(self, *, leaving: bool = False) -> float:
        """Log how many lines were left out, at most once a second.

        leaving: the worker exits and does not call again.
        Returns in how many seconds to call again, infinity for never.
        """
        left_out = sum(limit.left_out for limit in self._limits.values())
        if not left_out:
            return float("inf")
        now = self._clock()
        if now < self._summary_at and not leaving:
            return self._summary_at - now
        self._summary_at = now + 1.0
        for limit in self._limits.values():
            limit.left_out = 0
        with suppress(Exception):
            _log.warning(
                "left out %d lines about finished jobs: too many a second", left_out, extra={"left_out": left_out}
            )
        return float("inf")


def _level(outcome: Outcome) -> int:
    if not outcome.failed:
        return logging.INFO
    return logging.WARNING if outcome.label == "retry" else logging.ERROR


def _words(note: Note) -> str:
    outcome = note.outcome
    if not outcome.failed:
        again = f", runs again in {duration(outcome.delay)}" if outcome.state == "scheduled" else ""
        return f"{LABELS[outcome.label].words}{again}"
    error = (outcome.code if note.hidden else outcome.error) or outcome.code or "no reason was given"
    return failure_words(outcome.label, outcome.delay, error if len(error) <= LONGEST else error[:LONGEST] + " [cut]")


def failure_words(label: Label, delay: float, error: str) -> str:
    """Return the message of a failed attempt.

    The supervisor uses it too, for attempts that ended with their process.

    >>> failure_words("retry", 31.4, "ValueError: no such order")
    'attempt failed, runs again in 31 s: ValueError: no such order'
    """
    again = f", runs again {f'in {duration(delay)}' if delay else 'at once'}" if label == "retry" else ""
    return f"{LABELS[label].words}{again}: {error}"


def _ids(note: Note, left_out: int) -> dict[str, Any]:
    row, outcome = note.row, note.outcome
    ids: dict[str, Any] = {"job" if row.queue else "record": row.id, "kind": row.kind, "attempt": row.attempts}
    if note.most:
        ids["max_attempts"] = note.most
    if outcome.failed:
        ids["error_code"] = outcome.code or ""
        if outcome.traceback and (place := place_of(outcome.traceback)):
            ids["place"] = place
    ids["ran"] = f"{note.ran:.3f}s"
    return ids | ({"left_out": left_out} if left_out else {})


def place_of(traceback: str) -> str:
    r"""Return `file:line` of the innermost frame in the application's own code.

    If there is none, it is that of the innermost frame.

    >>> place_of('Traceback (most recent call last):\n  File "/app/mail.py", line 7, in send\nValueError')
    '/app/mail.py:7'
    """
    frames = _FRAME.findall(traceback)
    for file, line in reversed(frames):
        if Frame("", file, int(line)).is_users:
            return f"{file}:{line}"
    return ":".join(frames[-1]) if frames else ""
