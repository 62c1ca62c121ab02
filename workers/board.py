"""The board: one page of memory that a child writes and its parent reads, and that survives the child.

It says what the child is doing (job, token, deadline, phase), whether it is idle, how far the job is, what was counted, the last lines
of the log and the stack of a crash. Writing is a store, never a system call, so a tight loop may report its progress and nobody pays.
Reading never waits for a writer: what can be torn stands in a `Cell`, twice, with sequence and checksum, and a torn copy is not
believed. Each region has one writer: the child, but for the order, which the parent writes. Stacks stand last, and the page cannot grow:
they are written in signal handlers, of any length, and must run over nothing else. No policy stands here.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import threading
from bisect import bisect_left
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

MAX_KINDS: Final = 256
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the duration histograms, in seconds; one more bucket holds the rest."""
OUTCOMES: Final = ("ok", "retry", "failed", "poison", "snoozed", "abandoned", "cancelled", "expired")
OTHER_KINDS: Final = "(other)"
"""The first entry of the table of kinds: whatever has no entry of its own is counted there, so no flood of kinds can fill it."""


MAX_ERRORS: Final = 64
"""Pairs of a kind and an error code that a slot counts by name; the rest are counted together, so that no flood of codes can fill it."""


class Phase(IntEnum):
    """What a child is at, for people and for the post-mortem."""

    BOOTING = 0
    IDLE = 1
    CLAIMING = 2
    RUNNING = 3
    SETTLING = 4
    LEAVING = 5
    TOGETHER = 6
    """It runs several jobs in one call; `job` is the first of them."""


class Reason(IntEnum):
    """Why the parent interrupts a job."""

    NONE = 0
    CANCEL = 1
    DRAIN = 2
    LOST = 3
    """The claim turned out to be lost: somebody else has the job."""


class Now(NamedTuple):
    """What a child is doing. `job` is 0 between jobs. Times are monotonic seconds, `deadline` is infinite without a timeout."""

    phase: Phase
    child: int = 0
    token: int = 0
    job: int = 0
    kind: int = 0
    attempts: int = 0
    max_attempts: int = 0
    crashes: int = 0
    started: float = 0.0
    deadline: float = float("inf")

    @property
    def runs(self) -> bool:
        """Whether a handler runs."""
        return self.phase is Phase.RUNNING or self.phase is Phase.TOGETHER


@dataclass(frozen=True, slots=True)
class Order:
    """The parent's word to a child about one claim: interrupt it."""

    reason: Reason
    token: int = 0
    job: int = 0


_NOW = struct.Struct("<BqqqHhhhdd")
_ORDER = struct.Struct("<Bqq")
_COMPANY = struct.Struct("<qq")
_MATE = struct.Struct("<qhhh")
_HEAD = struct.Struct("<QII")
_ENTRY_HEAD = struct.Struct("<II")
_SEQUENCE = struct.Struct("<Q")
_ERROR = struct.Struct("<H62s")


_lock = threading.Lock()


def fence() -> None:
    """Make what was stored seen by others before anything is read: a processor may turn the two round.

    A child shows itself idle and then looks at the epoch; the parent moves the epoch and then looks who is idle. Were either pair turned
    round, both could miss each other, and the wake-up would be lost. The same holds for the word that the parent hears.
    """
    with _lock:
        pass


class Cell:
    """A record of changing length with one writer and any number of readers, none of whom ever waits.

    It has two halves; the writer fills the older one and stamps it last. A reader takes the newest half whose checksum is right.
    """

    __slots__ = ("_half", "_offset", "_sequence", "_view", "capacity")

    def __init__(self, view: memoryview, offset: int, capacity: int) -> None:
        self._view = view
        self._offset = offset
        self._half = _HEAD.size + capacity
        self._sequence = 0
        self.capacity = capacity

    @staticmethod
    def size(capacity: int) -> int:
        """Return how many bytes a cell for records of up to `capacity` bytes takes."""
        return 2 * (_HEAD.size + capacity)

    def write(self, record: bytes) -> None:
        """Publish `record`; what is longer than the cell is cut."""
        if len(record) > self.capacity:
            record = record[: self.capacity]
        sequence = self._sequence = (self._sequence or self.read_with_sequence()[0]) + 1  # a successor goes on where its predecessor died
        at = self._offset + (sequence & 1) * self._half
        body = at + _HEAD.size
        self._view[body : body + len(record)] = record
        _HEAD.pack_into(self._view, at, sequence, len(record), crc32(record, sequence & 0xFFFFFFFF))

    def newest(self) -> int:
        """Return the number of the newest record, whole or not."""
        return int(max(_SEQUENCE.unpack_from(self._view, self._offset)[0], _SEQUENCE.unpack_from(self._view, self._offset + self._half)[0]))

    def read(self) -> bytes | None:
        """Return the newest whole record, or None if there is none."""
        return self.read_with_sequence()[1]

    def read_with_sequence(self) -> tuple[int, bytes | None]:
        """Return the newest whole record and its number (0 and None if there is none)."""
        best: tuple[int, bytes | None] = (0, None)
        for at in (self._offset, self._offset + self._half):
            sequence, length, checksum = _HEAD.unpack_from(self._view, at)
            if sequence <= best[0] or length > self.capacity:
                continue
            record = bytes(self._view[at + _HEAD.size : at + _HEAD.size + length])
            if crc32(record, sequence & 0xFFFFFFFF) == checksum:
                best = (sequence, record)
        return best


@dataclass(frozen=True, slots=True)
class Policy:
    """What the parent must know of a kind to write the outcome of a job whose process is dead."""

    name: str = OTHER_KINDS
    max_attempts: int = 5
    max_crashes: int = 3
    keep_completed: int = 7
    keep_failed: int = 30
    backoff: tuple[float, float, float, float] = (30.0, 2.0, 0.2, 3600.0)
    """Base in seconds, factor, jitter as a fraction, cap in seconds."""
    exclusive: bool = False
    table: bool = False
    """Its jobs are records of an application's own table, whose outcomes a resetter writes for the dead."""


@dataclass(frozen=True, slots=True)
class KindCounts:
    """What a child has counted of one kind, over all children that ever sat in its slot."""

    name: str
    outcomes: tuple[int, ...]
    timeouts: int
    buckets: tuple[int, ...]
    seconds: float


_WORDS: Final = 32
_NAME: Final = 104
_POLICY: Final = 280
_COUNTS: Final = len(OUTCOMES) + 1 + len(BUCKETS) + 1 + 1  # outcomes, timeouts, buckets, sum of seconds
_ENTRY: Final = _NAME + _POLICY + 8 * 32
_LOG: Final = 64 * 1024
_TRACE: Final = 128 * 1024
_STACKS: Final = 256 * 1024
_PAGE: Final = 4096
_PROGRESS: Final = 2048
_LEDGER: Final = 128 * 1024
OUTPUT: Final = 64 * 1024
"""The most that is kept of what one attempt prints, in bytes."""

_AT_WORDS: Final = 0
_AT_NOW: Final = _AT_WORDS + 8 * _WORDS
_AT_ORDER: Final = _AT_NOW + Cell.size(128)
_AT_PROGRESS: Final = _AT_ORDER + Cell.size(64)
_AT_WAITS: Final = (_AT_PROGRESS + Cell.size(_PROGRESS) + 7) // 8 * 8
_AT_KINDS: Final = _AT_WAITS + 8 * 32
_AT_LOG: Final = _AT_KINDS + MAX_KINDS * _ENTRY
_AT_LEDGER: Final = _AT_LOG + _LOG
_AT_COMPANY: Final = _AT_LEDGER + _LEDGER
_MATES: Final = _COMPANY.size + 500 * _MATE.size
_AT_ERRORS: Final = (_AT_COMPANY + Cell.size(_MATES) + 7) // 8 * 8
_AT_OUTPUT: Final = (_AT_ERRORS + MAX_ERRORS * (_ERROR.size + 8) + 7) // 8 * 8
_AT_TRACE: Final = (_AT_OUTPUT + Cell.size(8 + OUTPUT) + _PAGE - 1) // _PAGE * _PAGE
_AT_STACKS: Final = _AT_TRACE + _TRACE
_SIZE: Final = _AT_STACKS + _STACKS

(
    _IDLE,
    _STARTED,
    _CLAIMS,
    _EMPTY,
    _KINDS,
    _LOGGED,
    _DATABASE,
    _DISMISSED,
    _CLAIM,
    _ENTERED,
    _HELD,
    _REVOKED,
    _IDLED,
    _BEGUN,
    _ERRORS,
    _TAKEN,
    _DRAINING,
    _READING,
) = range(18)


class Board:
    """One slot's page. Made by the parent before any fork; `map` makes it usable, in each process for itself."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, _SIZE)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        self._open()
        self.open_stacks()

    def _open(self) -> None:
        self._memory = mmap.mmap(self.fd, _SIZE)
        self._view = memoryview(self._memory)
        self._words = self._view[: 8 * _WORDS].cast("Q")
        self._now = Cell(self._view, _AT_NOW, 128)
        self._order = Cell(self._view, _AT_ORDER, 64)
        self._progress = Cell(self._view, _AT_PROGRESS, _PROGRESS)
        self._company = Cell(self._view, _AT_COMPANY, _MATES)
        self._output = Cell(self._view, _AT_OUTPUT, 8 + OUTPUT)
        self._waits = self._view[_AT_WAITS : _AT_WAITS + 8 * 31].cast("Q")
        self._waited = self._view[_AT_WAITS + 8 * 31 : _AT_WAITS + 8 * 32].cast("d")
        self._errors = self._view[_AT_ERRORS : _AT_ERRORS + 8 * MAX_ERRORS].cast("Q")
        self._error_at: dict[tuple[int, str], int] | None = None
        self._counts: list[memoryview] = []
        self._sums: list[memoryview[float]] = []

    def close(self) -> None:
        """Let go of the page (the others keep it)."""
        for view in (*self._counts, self._words, self._waits, self._errors):
            view.release()
        for sums in (*self._sums, self._waited):
            sums.release()
        self._view.release()
        self._memory.close()
        os.close(self.fd)

    # -- written by the child ---------------------------------------------------------------------------------------

    def say(self, now: Now) -> None:
        """Called in the child: publish what it is doing."""
        self._now.write(_NOW.pack(*now))

    def say_running(  # noqa: PLR0917 - names cost a tenth of a microsecond, and this is said of each job
        self, child: int, token: int, job: int, kind: int, attempts: int, most: int, crashes: int, started: float, deadline: float
    ) -> None:
        """Called in the child for each job, and so by position: it runs this job. The order is that of `Now`."""
        self._now.write(_NOW.pack(Phase.RUNNING, child, token, job, kind, attempts, most, crashes, started, deadline))

    def say_together(self, now: Now, others: list[tuple[int, int, int, int]]) -> None:
        """Called in the child: it runs the job of `now` and these others in one call: id, attempts, the most of them, crashes."""
        # Before `now`: whoever believes that one finds these.
        self._company.write(_COMPANY.pack(now.token, now.job) + b"".join(_MATE.pack(*other) for other in others))
        self.say(now)

    def set_idle(self, *, idle: bool) -> None:
        """Called in the child: it waits for a nudge, or it does not."""
        self._words[_IDLED] += idle
        self._words[_IDLE] = idle

    def set_database(self, *, connected: bool) -> None:
        """Called in the child: it has a session, or it looks for one."""
        self._words[_DATABASE] = connected

    def count_started(self, job: int) -> None:
        """Called in the child: one more job starts. What was announced and not begun when its child died has not run."""
        self._words[_STARTED] += 1
        self._words[_BEGUN] = job

    def count_claim(self, *, empty: bool) -> None:
        """Called in the child: it asked the database for work."""
        self._words[_CLAIMS] += 1
        self._words[_EMPTY] += empty

    def open_ledger(self, token: int, held: int) -> None:
        """Called in the child: a claim begins, of which `held` jobs wait for the one that runs."""
        words = self._words
        words[_ENTERED] = 0  # before the token: entries of the last claim must never be read as this one's
        words[_CLAIM] = token
        words[_HELD] = held
        words[_BEGUN] = 0

    def enter(self, record: bytes) -> bool:
        """Called in the child: what became of a job of the claim, before the next one starts. False if it does not fit."""
        words = self._words
        at = words[_ENTERED]
        end = at + _ENTRY_HEAD.size + len(record)
        if end > _LEDGER:
            return False
        self._view[_AT_LEDGER + at : _AT_LEDGER + end] = _ENTRY_HEAD.pack(len(record), crc32(record)) + record
        words[_ENTERED] = end  # last of all: an entry that was cut off by death is none
        return True

    def set_held(self, held: int) -> None:
        """Called in the child: so many jobs of the claim wait for those that run."""
        self._words[_HELD] = held

    def clear_ledger(self) -> None:
        """Called in the child: what was entered stands in the database."""
        self._words[_ENTERED] = 0

    def close_ledger(self) -> None:
        """Called in the child: the claim is over."""
        self._words[_HELD] = 0
        self._words[_ENTERED] = 0
        self._words[_CLAIM] = 0

    def tell_progress(self, record: bytes) -> None:
        """Called in the child, from the handler: a JSON document of at most 2 KiB."""
        self._progress.write(record)

    def declare(self, policies: list[Policy]) -> dict[str, int]:
        """Called in the child at boot: enter its kinds, and return each one's number. Numbers outlive the child that gave them."""
        known = {self.policy(number).name: number for number in range(self._words[_KINDS])}
        for policy in (Policy(), *policies):
            number = known.get(policy.name, len(known))
            if number >= MAX_KINDS:
                continue  # counted under OTHER_KINDS
            known[policy.name] = number
            at = _AT_KINDS + number * _ENTRY
            body = json.dumps(
                [
                    policy.max_attempts,
                    policy.max_crashes,
                    policy.keep_completed,
                    policy.keep_failed,
                    policy.backoff,
                    policy.exclusive,
                    policy.table,
                ]
            ).encode()
            self._view[at : at + _NAME] = policy.name.encode()[:_NAME].ljust(_NAME, b"\0")
            self._view[at + _NAME : at + _NAME + _POLICY] = body.ljust(_POLICY)
        self._words[_KINDS] = max(self._words[_KINDS], len(known))
        for number in range(len(self._counts), self._words[_KINDS]):
            at = _AT_KINDS + number * _ENTRY + _NAME + _POLICY
            self._counts.append(self._view[at : at + 8 * (_COUNTS - 1)].cast("Q"))
            self._sums.append(self._view[at + 8 * (_COUNTS - 1) : at + 8 * _COUNTS].cast("d"))
        return known

    def count(self, kind: int, outcome: int, seconds: float, *, timeout: bool = False) -> None:
        """Called in the child: a run of `kind` ended with the outcome of that index in `OUTCOMES`."""
        counts = self._counts[kind]
        counts[outcome] += 1
        counts[len(OUTCOMES)] += timeout
        counts[len(OUTCOMES) + 1 + bisect_left(BUCKETS, seconds)] += 1
        self._sums[kind][0] += seconds

    def count_unrun(self, kind: int, outcome: int) -> None:
        """Called in the child: a job of `kind` ended without running, such as by expiry."""
        self._counts[kind][outcome] += 1

    def count_error(self, kind: int, code: str) -> None:
        """Called in the child: a job of `kind` ended, or is to be tried again, with this error code."""
        if self._error_at is None:  # a successor goes on where its predecessor died
            self._error_at = {(number, name): at for at, (number, name, _) in enumerate(self._read_errors())}
            self._error_at.setdefault((0, OTHER_KINDS), 0)
        at = self._error_at.get((kind, code))
        if at is None:
            name = code.encode()
            at = max(self._words[_ERRORS], 1)  # the first entry is that of all that have none
            if at >= MAX_ERRORS or len(name) > _ERROR.size - 2:
                at = 0
            else:
                _ERROR.pack_into(self._view, _AT_ERRORS + 8 * MAX_ERRORS + at * _ERROR.size, kind, name)
                self._error_at[kind, code] = at
        self._errors[at] += 1
        self._words[_ERRORS] = max(self._words[_ERRORS], at + 1)

    def count_wait(self, seconds: float) -> None:
        """Called in the child: a job started so long after it became due."""
        self._waits[bisect_left(BUCKETS, seconds)] += 1
        self._waited[0] += seconds

    def log(self, line: bytes) -> None:
        """Called in the child: append to the ring of the last 64 KiB of log."""
        line = line[-_LOG:]
        at = self._words[_LOGGED] % _LOG
        first = min(len(line), _LOG - at)
        self._view[_AT_LOG + at : _AT_LOG + at + first] = line[:first]
        self._view[_AT_LOG : _AT_LOG + len(line) - first] = line[first:]
        self._words[_LOGGED] += len(line)

    def take_output(self) -> bytes:
        """Called in the child: return what the parent has drained of its output since the last call, the latest of it."""
        for _ in range(10_000):  # not for ever: it may have died at it
            if not self._words[_DRAINING]:
                break
            os.sched_yield()  # it reads at this moment
        total, tail = self.drained()
        taken, self._words[_TAKEN] = int(self._words[_TAKEN]), total
        return tail[-(total - taken) :] if total > taken else b""

    def say_reading(self, *, reading: bool) -> None:
        """Called in the child: it is about to read its own output, or through with it."""
        self._words[_READING] = reading
        fence()

    def open_trace(self) -> int:
        """Called in the child at boot: clear the place for the stacks of a crash, and return a file number that writes there."""
        if self._view[_AT_TRACE]:  # or nothing is there, and its memory is better left untouched
            self._view[_AT_TRACE : _AT_TRACE + _TRACE] = bytes(_TRACE)
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(fd, _AT_TRACE, os.SEEK_SET)
        return fd

    def clear(self) -> None:
        """Called in the parent before a fork: nothing of a predecessor may be taken for its successor's."""
        self.say(Now(Phase.BOOTING))
        self._now._sequence = 0  # noqa: SLF001 - the child goes on from what stands there, not from our memory
        self.set_idle(idle=False)
        self.set_database(connected=False)
        self._words[_LOGGED] = 0
        self._words[_TAKEN] = 0
        self._words[_DRAINING] = 0
        self._words[_READING] = 0
        self._output.write(bytes(8))
        self._words[_DISMISSED] = 0
        self._words[_REVOKED] = 0
        self.close_ledger()
        self.order(Order(Reason.NONE))
        self._progress.write(b"")
        self._progress._sequence = 0  # noqa: SLF001 - as above
        self._company._sequence = 0  # noqa: SLF001 - as above
        self.open_stacks()

    # -- written by the parent --------------------------------------------------------------------------------------

    def order(self, order: Order) -> None:
        """Called in the parent, before SIGUSR2: which claim to interrupt, and why."""
        self._order.write(_ORDER.pack(order.reason, order.token, order.job))

    def dismiss(self) -> None:
        """Called in the parent, before it closes the wake pipe: that end of the file is a word of ours, and not our death."""
        self._words[_DISMISSED] = 1

    def revoke(self, token: int) -> None:
        """Called in the parent: nothing more of that claim may be started."""
        self._words[_REVOKED] = token
        fence()

    def say_draining(self, *, draining: bool) -> bool:
        """Called in the parent: it is about to read a child's output, or it has handed on what it read. Return whether the child is at it.

        Each says so and looks then: one of the two sees the other, and the parent gives way. Both at once would mix up what is read.
        """
        self._words[_DRAINING] = draining
        fence()
        return bool(self._words[_READING])

    def hand_output(self, total: int, tail: bytes) -> None:
        """Called in the parent: so much of the child's output was drained by now, and this is the end of it."""
        self._output.write(_SEQUENCE.pack(total) + tail[-OUTPUT:])

    def open_stacks(self) -> None:
        """Called in the parent, before SIGUSR1: the stacks that the child writes then begin at the beginning of their place.

        The child writes to the file number that it has inherited, so both have one position in the file: here it is moved, and read.
        """
        os.lseek(self.fd, _AT_STACKS, os.SEEK_SET)

    # -- read by anyone ---------------------------------------------------------------------------------------------

    def now(self) -> Now | None:
        """Return what the child is doing, or None if that cannot be believed."""
        record = self._now.read()
        if record is None or len(record) != _NOW.size:
            return None
        phase, *rest = _NOW.unpack(record)
        return Now(Phase(phase), *rest)

    def company(self, now: Now) -> list[Now]:
        """Return what `now` says for each of the other jobs that run in the same call."""
        record = self._company.read()
        if record is None or len(record) < _COMPANY.size or _COMPANY.unpack_from(record) != (now.token, now.job):
            return []
        return [
            now._replace(job=job, attempts=attempts, max_attempts=most, crashes=crashes)
            for job, attempts, most, crashes in _MATE.iter_unpack(record[_COMPANY.size :])
        ]

    @property
    def order_number(self) -> int:
        """Grows with each order: whether there is a new one, without reading it."""
        return self._order.newest()

    def ordered(self) -> Order:
        """Return the parent's latest order."""
        record = self._order.read()
        if record is None or len(record) != _ORDER.size:
            return Order(Reason.NONE)
        reason, token, job = _ORDER.unpack(record)
        return Order(Reason(reason), token, job)

    @property
    def dismissed(self) -> bool:
        """Whether the parent has asked the child to leave."""
        return bool(self._words[_DISMISSED])

    @property
    def revoked(self) -> int:
        """The claim of which nothing more may be started."""
        return int(self._words[_REVOKED])

    @property
    def begun(self) -> int:
        """The job of the claim that was begun last, or 0."""
        return int(self._words[_BEGUN])

    @property
    def held(self) -> int:
        """How many jobs of its claim the child held when it began, beside the first."""
        return int(self._words[_HELD])

    def ledger(self) -> tuple[int, list[bytes]]:
        """Return the claim that the child works on and what became of the jobs of it that are through, as they were entered.

        It may be read while the child writes: entries are only ever added, and if the claim has changed meanwhile nothing is returned.
        """
        token, end = int(self._words[_CLAIM]), min(int(self._words[_ENTERED]), _LEDGER)
        found, at = [], 0
        data = bytes(self._view[_AT_LEDGER : _AT_LEDGER + end])
        while at + _ENTRY_HEAD.size <= end:
            length, checksum = _ENTRY_HEAD.unpack_from(data, at)
            record = data[at + _ENTRY_HEAD.size : at + _ENTRY_HEAD.size + length]
            if crc32(record) != checksum:
                break
            found.append(record)
            at += _ENTRY_HEAD.size + length
        fence()
        return (token, found) if self._words[_CLAIM] == token and self._words[_ENTERED] >= end else (0, [])

    @property
    def idle(self) -> bool:
        """Whether the child waits for a nudge."""
        return bool(self._words[_IDLE])

    @property
    def times_idle(self) -> int:
        """How often a child of this slot has gone idle: whether it was, between two looks."""
        return int(self._words[_IDLED])

    @property
    def database(self) -> bool:
        """Whether the child has a session."""
        return bool(self._words[_DATABASE])

    @property
    def jobs_started(self) -> int:
        """How many jobs have started in this slot, whichever child it was."""
        return int(self._words[_STARTED])

    @property
    def claims(self) -> tuple[int, int]:
        """How many claims were made in this slot, and how many of them found nothing."""
        return int(self._words[_CLAIMS]), int(self._words[_EMPTY])

    def progress(self) -> bytes:
        """Return the handler's latest word on its progress, a JSON document, or nothing."""
        return self._progress.read() or b""

    def policy(self, kind: int) -> Policy:
        """Return what is known of the kind of that number."""
        if not 0 <= kind < self._words[_KINDS]:
            return Policy()
        at = _AT_KINDS + kind * _ENTRY
        name = bytes(self._view[at : at + _NAME]).rstrip(b"\0").decode(errors="replace")
        try:
            attempts, crashes, completed, failed, backoff, exclusive, table = json.loads(
                bytes(self._view[at + _NAME : at + _NAME + _POLICY])
            )
            return Policy(name, attempts, crashes, completed, failed, tuple(backoff), exclusive, table)
        except ValueError:
            return Policy(name)

    def kind_counts(self) -> list[KindCounts]:
        """Return what was counted, kind by kind."""
        found = []
        for number in range(self._words[_KINDS]):
            at = _AT_KINDS + number * _ENTRY + _NAME + _POLICY
            values = struct.unpack_from(f"<{_COUNTS - 1}Qd", self._view, at)
            split = len(OUTCOMES)
            found.append(KindCounts(self.policy(number).name, values[:split], values[split], values[split + 1 : -1], values[-1]))
        return found

    def error_counts(self) -> list[tuple[str, str, int]]:
        """Return how often each error code was counted: kind, code, number. The first stands for all that have no place of their own."""
        return [(self.policy(kind).name, code, number) for kind, code, number in self._read_errors()]

    def _read_errors(self) -> list[tuple[int, str, int]]:
        found = [(0, OTHER_KINDS, int(self._errors[0]))]
        for at in range(1, min(int(self._words[_ERRORS]), MAX_ERRORS)):
            kind, name = _ERROR.unpack_from(self._view, _AT_ERRORS + 8 * MAX_ERRORS + at * _ERROR.size)
            found.append((kind, name.rstrip(b"\0").decode(errors="replace"), int(self._errors[at])))
        return found

    def waits(self) -> tuple[tuple[int, ...], float]:
        """Return the histogram of how long jobs were due before they started, and the sum of seconds."""
        return tuple(self._waits[: len(BUCKETS) + 1]), float(self._waited[0])

    def log_tail(self, limit: int = 8192) -> bytes:
        """Return the latest `limit` bytes of the child's log, from the beginning of a line."""
        written = int(self._words[_LOGGED])
        length = min(written, _LOG, limit)
        start = (written - length) % _LOG
        ring = bytes(self._view[_AT_LOG : _AT_LOG + _LOG])
        tail = (ring + ring)[start : start + length]
        return tail if length == written else tail[tail.find(b"\n") + 1 :]

    def drained(self) -> tuple[int, bytes]:
        """Return how much of the child's output the parent has drained, and the end of it."""
        record = self._output.read() or bytes(8)
        return int(_SEQUENCE.unpack_from(record)[0]), record[8:]

    @property
    def times_drained(self) -> int:
        """Grows with each time that the parent has drained some."""
        return self._output.newest()

    @property
    def output_taken(self) -> int:
        """How much of it belongs to jobs that are through."""
        return int(self._words[_TAKEN])

    def stacks(self) -> bytes:
        """Return what was written of the stacks that were last asked for, so far: in the parent, which shares the position in the file."""
        end = os.lseek(self.fd, 0, os.SEEK_CUR)
        return bytes(self._view[_AT_STACKS:end])

    def trace(self) -> str:
        """Return the stacks of a crash, or nothing."""
        found = b""
        for at in range(_AT_TRACE, _AT_STACKS, _PAGE):  # no further than something is: reading would take memory for the rest
            found += bytes(self._view[at : at + _PAGE])
            if found.endswith(b"\0"):
                break
        return found.rstrip(b"\0").decode(errors="replace")


class Notice:
    """The page of all: the parent writes, every child reads.

    `epoch` grows with everything that may mean work. A child notes it before it claims; if the claim was empty and the epoch has moved
    since, it claims again instead of sleeping: between its claim and its sleep nothing can slip through. `hearing` says that whatever
    is committed from now on moves the epoch; a child that goes idle without it says so, and is called once the parent hears.
    """

    _EPOCH, _DRAINING, _LOOP, _LEASE, _DATABASE, _HEARING = range(6)
    _FACTS = 64 * 1024

    def __init__(self) -> None:
        self.fd = os.memfd_create("jobherd-notice", os.MFD_CLOEXEC)
        self._size = 4096 + Cell.size(self._FACTS)
        os.ftruncate(self.fd, self._size)
        self._view = memoryview(mmap.mmap(self.fd, self._size))
        self._words = self._view[:256].cast("Q")
        self._times = self._view[256:512].cast("d")
        self._facts = Cell(self._view, 4096, self._FACTS)

    def bump(self) -> None:
        """Called in the parent: there may be work."""
        self._words[self._EPOCH] += 1
        fence()

    @property
    def epoch(self) -> int:
        """Grows with everything that may mean work."""
        return int(self._words[self._EPOCH])

    @property
    def hearing(self) -> bool:
        """Whether producers notify the parent."""
        return bool(self._words[self._HEARING])

    @hearing.setter
    def hearing(self, value: bool) -> None:
        self._words[self._HEARING] = value

    @property
    def lease_deadline(self) -> float:
        """Monotonic time past which nobody may claim: the lease may have lapsed."""
        return float(self._times[self._LEASE])

    @lease_deadline.setter
    def lease_deadline(self, value: float) -> None:
        self._times[self._LEASE] = value

    @property
    def loop_at(self) -> float:
        """Monotonic time at which the parent's loop last turned."""
        return float(self._times[self._LOOP])

    @loop_at.setter
    def loop_at(self, value: float) -> None:
        self._times[self._LOOP] = value

    @property
    def draining(self) -> bool:
        """Whether the supervisor is on its way out."""
        return bool(self._words[self._DRAINING])

    @draining.setter
    def draining(self, value: bool) -> None:
        self._words[self._DRAINING] = value

    def publish(self, facts: dict[str, object]) -> None:
        """Called in the parent: what it knows of the fleet, for the page and the metrics."""
        self._facts.write(json.dumps(facts).encode())

    def facts(self) -> dict[str, object]:
        """Return what the parent last published."""
        record = self._facts.read()
        found = json.loads(record) if record else {}
        return found if isinstance(found, dict) else {}
