"""The counters of a slot, by kind, across all of its child processes.

They are a region of the status board, which also holds what the supervisor must know of the kinds
whose jobs it settles. Counting is a store without a system call. No counter decreases, so metrics
can be read at any moment.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import Final

from jobherd.handlers._values.outcome import LABELS

MAX_KINDS: Final = 256
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the duration histograms, in seconds. One more bucket counts the rest."""
OUTCOMES: Final = tuple(LABELS)
"""Labels of outcomes, in the order of their counters."""
OUTCOME_NUMBER: Final = {label: number for number, label in enumerate(OUTCOMES)}
OTHER_KINDS: Final = "(other)"
"""First entry of the table of kinds. Kinds without their own entry are counted there, so a flood of
kinds cannot fill the table.
"""
MAX_ERRORS: Final = 64
"""Number of pairs of a kind and an error code that a slot counts separately. The rest are counted
together, so a flood of codes cannot fill the table.
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the supervisor must know of a kind to record the outcome of a job whose process is dead."""

    name: str = OTHER_KINDS
    max_attempts: int = 5
    max_crashes: int = 3
    keep_completed: int = 7
    keep_failed: int = 30
    backoff: tuple[float, float, float, float] = (30.0, 2.0, 0.2, 3600.0)
    """Base in seconds, factor, jitter as a fraction, cap in seconds."""
    exclusive: bool = False
    table: bool = False
    """Its jobs are records of an application's own table. A resetter records their outcomes if a
    process dies.
    """
    sealed: bool = False
    """Errors and logs of its jobs are encrypted. The supervisor cannot encrypt, so it writes none
    of them.
    """


@dataclass(frozen=True, slots=True)
class KindCounts:
    """The counters of one kind in a slot, across all child processes of the slot."""

    name: str
    outcomes: tuple[int, ...]
    timeouts: int
    recycled: int
    """Worker processes that a job of this kind left unfit for another job."""
    buckets: tuple[int, ...]
    seconds: float


_ERROR: Final = struct.Struct("<H62s")
_NAME: Final = 104
_POLICY: Final = 280
_COUNTS: Final = len(OUTCOMES) + 2 + len(BUCKETS) + 1 + 1  # outcomes, timeouts, recycled, buckets, sum of seconds
_ENTRY: Final = _NAME + _POLICY + 8 * 32
_WAITS: Final = 16
_KINDS: Final = _WAITS + 8 * 32
_ERRORS: Final = _KINDS + MAX_KINDS * _ENTRY
_CODES: Final = _ERRORS + 8 * MAX_ERRORS


def _in_buckets(seconds: list[float]) -> list[tuple[int, int]]:
    """Return how many of these durations belong to each bucket."""
    if not seconds:
        return []
    lowest, highest = bisect_left(BUCKETS, min(seconds)), bisect_left(BUCKETS, max(seconds))
    if lowest == highest:
        return [(lowest, len(seconds))]
    return list(Counter(bisect_left(BUCKETS, one) for one in seconds).items())


class Tally:
    """The region that begins at `at`. The child process writes it, and any process reads it."""

    SIZE: Final = _CODES + MAX_ERRORS * _ERROR.size

    def __init__(self, view: memoryview, at: int) -> None:
        self._view = view
        self._at = at
        self._used = view[at : at + _WAITS].cast("Q")
        """Number of kinds, and number of error codes."""
        self._waits = view[at + _WAITS : at + _WAITS + 8 * 31].cast("Q")
        self._waited = view[at + _WAITS + 8 * 31 : at + _KINDS].cast("d")
        self._errors = view[at + _ERRORS : at + _CODES].cast("Q")
        self._error_at: dict[tuple[int, str], int] | None = None
        self._counts: list[memoryview] = []
        self._sums: list[memoryview[float]] = []

    def close(self) -> None:
        """Release the memory views."""
        for view in (*self._counts, self._used, self._waits, self._errors):
            view.release()
        for sums in (*self._sums, self._waited):
            sums.release()

    def declare(self, policies: list[Policy]) -> dict[str, int]:
        """Called in the child process at boot: enter its kinds, and return the number of each.

        Numbers stay valid after the process that assigned them has exited.
        """
        known = {self.policy(number).name: number for number in range(self._used[0])}
        for policy in (Policy(), *policies):
            number = known.get(policy.name, len(known))
            if number >= MAX_KINDS:
                continue  # counted under OTHER_KINDS
            known[policy.name] = number
            at = self._at + _KINDS + number * _ENTRY
            body = json.dumps(
                [
                    policy.max_attempts,
                    policy.max_crashes,
                    policy.keep_completed,
                    policy.keep_failed,
                    policy.backoff,
                    policy.exclusive,
                    policy.table,
                    policy.sealed,
                ]
            ).encode()
            self._view[at : at + _NAME] = policy.name.encode()[:_NAME].ljust(_NAME, b"\0")
            self._view[at + _NAME : at + _NAME + _POLICY] = body.ljust(_POLICY)
        self._used[0] = max(self._used[0], len(known))
        for number in range(len(self._counts), self._used[0]):
            at = self._at + _KINDS + number * _ENTRY + _NAME + _POLICY
            self._counts.append(self._view[at : at + 8 * (_COUNTS - 1)].cast("Q"))
            self._sums.append(self._view[at + 8 * (_COUNTS - 1) : at + 8 * _COUNTS].cast("d"))
        return known

    def count(self, kind: int, outcome: int, seconds: float, *, timeout: bool = False) -> None:
        """Called in the child process: an attempt of `kind` ended.

        outcome: index in `OUTCOMES`.
        """
        counts = self._counts[kind]
        counts[outcome] += 1
        counts[len(OUTCOMES)] += timeout
        counts[len(OUTCOMES) + 2 + bisect_left(BUCKETS, seconds)] += 1
        self._sums[kind][0] += seconds

    def count_all(self, kind: int, outcome: int, seconds: list[float]) -> None:
        """Called in the child process: that many attempts of `kind` ended alike, none by its timeout."""
        counts = self._counts[kind]
        counts[outcome] += len(seconds)
        for bucket, many in _in_buckets(seconds):
            counts[len(OUTCOMES) + 2 + bucket] += many
        self._sums[kind][0] += sum(seconds)

    def count_unrun(self, kind: int, outcome: int) -> None:
        """Called in the child process: a job of `kind` ended without running, for example by expiry."""
        self._counts[kind][outcome] += 1

    def count_recycled(self, kind: int) -> int:
        """Called in the child process: a job of `kind` left this process unfit for another job.

        Return how often that happened in this slot.
        """
        counts = self._counts[kind]
        counts[len(OUTCOMES) + 1] += 1
        return int(counts[len(OUTCOMES) + 1])

    def count_error(self, kind: int, code: str) -> None:
        """Called in the child process: a job of `kind` failed or will be retried, with this error code."""
        if self._error_at is None:  # A new process continues the table of the previous one.
            self._error_at = {(number, name): at for at, (number, name, _) in enumerate(self._read_errors())}
            self._error_at.setdefault((0, OTHER_KINDS), 0)
        at = self._error_at.get((kind, code))
        if at is None:
            name = code.encode()
            at = max(self._used[1], 1)  # The first entry is for all codes without their own.
            if at >= MAX_ERRORS or len(name) > _ERROR.size - 2:
                at = 0
            else:
                _ERROR.pack_into(self._view, self._at + _CODES + at * _ERROR.size, kind, name)
                self._error_at[kind, code] = at
        self._errors[at] += 1
        self._used[1] = max(self._used[1], at + 1)

    def count_wait(self, seconds: float) -> None:
        """Called in the child process: a job started this many seconds after it became due."""
        self._waits[bisect_left(BUCKETS, seconds)] += 1
        self._waited[0] += seconds

    def count_waits(self, seconds: list[float]) -> None:
        """Called in the child process: as `count_wait`, for several jobs."""
        for bucket, many in _in_buckets(seconds):
            self._waits[bucket] += many
        self._waited[0] += sum(seconds)

    def policy(self, kind: int) -> Policy:
        """Return the policy of the kind with that number."""
        if not 0 <= kind < self._used[0]:
            return Policy()
        at = self._at + _KINDS + kind * _ENTRY
        name = bytes(self._view[at : at + _NAME]).rstrip(b"\0").decode(errors="replace")
        try:
            attempts, crashes, completed, failed, backoff, exclusive, table, sealed = json.loads(
                bytes(self._view[at + _NAME : at + _NAME + _POLICY])
            )
            return Policy(name, attempts, crashes, completed, failed, tuple(backoff), exclusive, table, sealed)
        except ValueError:
            return Policy(name)

    def kind_counts(self) -> list[KindCounts]:
        """Return the counters, by kind."""
        found = []
        for number in range(self._used[0]):
            at = self._at + _KINDS + number * _ENTRY + _NAME + _POLICY
            values = struct.unpack_from(f"<{_COUNTS - 1}Qd", self._view, at)
            split = len(OUTCOMES)
            found.append(
                KindCounts(
                    self.policy(number).name,
                    values[:split],
                    values[split],
                    values[split + 1],
                    values[split + 2 : -1],
                    values[-1],
                )
            )
        return found

    def error_counts(self) -> list[tuple[str, str, int]]:
        """Return the count of each error code: kind, code, number.

        The first entry is for all codes without their own.
        """
        return [(self.policy(kind).name, code, number) for kind, code, number in self._read_errors()]

    def _read_errors(self) -> list[tuple[int, str, int]]:
        found = [(0, OTHER_KINDS, int(self._errors[0]))]
        for at in range(1, min(int(self._used[1]), MAX_ERRORS)):
            kind, name = _ERROR.unpack_from(self._view, self._at + _CODES + at * _ERROR.size)
            found.append((kind, name.rstrip(b"\0").decode(errors="replace"), int(self._errors[at])))
        return found

    def waits(self) -> tuple[tuple[int, ...], float]:
        """Return the histogram of how long jobs were due before they started, and the sum of seconds."""
        return tuple(self._waits[: len(BUCKETS) + 1]), float(self._waited[0])
