"""The board: memory that a child writes and its parent reads, and that survives the child.

It says what the child is doing (job, token, deadline, phase), whether it is idle, how far the job is, what was counted (`tally.py`), what became
of the jobs of its claims (`ledger.py`), the last lines of the log and the stack of a crash. Writing is a store, never a system call, so a
tight loop may report its progress and nobody pays. Reading never waits for a writer: what can be torn stands in a cell (`cell.py`), twice,
with sequence and checksum, and a torn copy is not believed. Each region has one writer: the child, but for the interruption, which the parent writes. Stacks stand last, and the memory cannot grow:
they are written in signal handlers, of any length, and must run over nothing else. No policy stands here.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from jobherd.workers.ipc.counters import Tally
from jobherd.workers.ipc.outcome_buffer import OutcomeBuffer
from jobherd.workers.ipc.record import DoubleBuffer, barrier


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


class CurrentWork(NamedTuple):
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

    @property
    def unstarted(self) -> bool:
        """Whether the job was announced and had not started. Only the supervisor makes such a record, of a dead worker."""
        return self.phase is Phase.CLAIMING and self.job != 0


@dataclass(frozen=True, slots=True)
class Interruption:
    """The parent's word to a child about one claim: interrupt it."""

    reason: Reason
    token: int = 0
    job: int = 0


_NOW = struct.Struct("<BqqqHhhhdd")
_INTERRUPTION = struct.Struct("<Bqq")
_COMPANY = struct.Struct("<qq")
_MATE = struct.Struct("<qhhh")
_SEQUENCE = struct.Struct("<Q")

_WORDS: Final = 32
_LOG: Final = 64 * 1024
_TRACE: Final = 128 * 1024
_STACKS: Final = 256 * 1024
_PAGE: Final = 4096
_PROGRESS: Final = 2048
OUTPUT: Final = 64 * 1024
"""The most that is kept of what one attempt prints, in bytes."""

_AT_WORDS: Final = 0
_AT_NOW: Final = _AT_WORDS + 8 * _WORDS
_AT_INTERRUPTION: Final = _AT_NOW + DoubleBuffer.size(128)
_AT_PROGRESS: Final = _AT_INTERRUPTION + DoubleBuffer.size(64)
_AT_TALLY: Final = (_AT_PROGRESS + DoubleBuffer.size(_PROGRESS) + 7) // 8 * 8
_AT_LOG: Final = _AT_TALLY + Tally.SIZE
_AT_LEDGER: Final = (_AT_LOG + _LOG + 7) // 8 * 8
_AT_COMPANY: Final = _AT_LEDGER + OutcomeBuffer.SIZE
_MATES: Final = _COMPANY.size + 500 * _MATE.size
_AT_OUTPUT: Final = (_AT_COMPANY + DoubleBuffer.size(_MATES) + 7) // 8 * 8
_AT_TRACE: Final = (_AT_OUTPUT + DoubleBuffer.size(8 + OUTPUT) + _PAGE - 1) // _PAGE * _PAGE
_AT_STACKS: Final = _AT_TRACE + _TRACE
_SIZE: Final = _AT_STACKS + _STACKS

(
    _IDLE,
    _STARTED,
    _CLAIMS,
    _EMPTY,
    _LOGGED,
    _DATABASE,
    _DISMISSED,
    _HELD,
    _REVOKED,
    _IDLED,
    _BEGUN,
    _TAKEN,
    _DRAINING,
    _READING,
    _WATCHED,
    _UNWRITTEN,
    _HELPED,
    _HOOK,
    _CLAIM,
) = range(19)


class StatusBoard:
    """One slot's board, made by the parent before any fork; its children inherit the memory."""

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
        self._now = DoubleBuffer(self._view, _AT_NOW, 128)
        self._interruption = DoubleBuffer(self._view, _AT_INTERRUPTION, 64)
        self._progress = DoubleBuffer(self._view, _AT_PROGRESS, _PROGRESS)
        self._company = DoubleBuffer(self._view, _AT_COMPANY, _MATES)
        self._output = DoubleBuffer(self._view, _AT_OUTPUT, 8 + OUTPUT)
        self.tally = Tally(self._view, _AT_TALLY)
        self.outcomes = OutcomeBuffer(self._view, _AT_LEDGER)

    def close(self) -> None:
        """Let go of the memory (the others keep it)."""
        self.tally.close()
        self.outcomes.release()
        self._words.release()
        self._view.release()
        self._memory.close()
        os.close(self.fd)

    # -- written by the child ---------------------------------------------------------------------------------------

    def say(self, now: CurrentWork) -> None:
        """Called in the child: publish what it is doing."""
        self._now.write(_NOW.pack(*now))

    def say_running(  # noqa: PLR0917 - names cost a tenth of a microsecond, and this is said of each job
        self, child: int, token: int, job: int, kind: int, attempts: int, most: int, crashes: int, started: float, deadline: float
    ) -> None:
        """Called in the child for each job, and so by position: it runs this job. The order is that of `CurrentWork`."""
        self._now.write(_NOW.pack(Phase.RUNNING, child, token, job, kind, attempts, most, crashes, started, deadline))

    def say_together(self, now: CurrentWork, others: list[tuple[int, int, int, int]]) -> None:
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

    def begin_claim(self, token: int, held: int) -> None:
        """Called in the child: a claim begins, of which `held` jobs wait for the one that runs."""
        # Order: before the ledger is opened, the board must not say that a job of this claim has started.
        self._words[_BEGUN] = 0
        self._words[_CLAIM] = token
        self.outcomes.open(token)
        self._words[_HELD] = held
        self._words[_UNWRITTEN] = 0

    def set_held(self, held: int) -> None:
        """Called in the child: so many jobs of the claim wait for those that run."""
        self._words[_HELD] = held

    def say_unwritten(self, since: float) -> None:
        """Called in the child: since then, in monotonic seconds, an outcome of the claim stands here and nowhere else; 0: none does."""
        self._words[_UNWRITTEN] = int(since * 1e6)

    def say_hook(self, until: float) -> None:
        """Called in the child: a hook runs in nobody's time, until then at the latest, in monotonic seconds; 0: none does."""
        self._words[_HOOK] = int(until * 1e6)

    def tell_progress(self, record: bytes) -> None:
        """Called in the child, from the handler: a JSON document of at most 2 KiB."""
        self._progress.write(record)

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
        barrier()

    def open_trace(self) -> int:
        """Called in the child at boot: clear the place for the stacks of a crash, and return a file number that writes there."""
        if self._view[_AT_TRACE]:  # or nothing is there, and its memory is better left untouched
            self._view[_AT_TRACE : _AT_TRACE + _TRACE] = bytes(_TRACE)
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(fd, _AT_TRACE, os.SEEK_SET)
        return fd

    def clear(self) -> None:
        """Called in the parent before a fork: nothing of a predecessor may be taken for its successor's."""
        self.say(CurrentWork(Phase.BOOTING))
        self._now.restart()
        self.set_idle(idle=False)
        self.set_database(connected=False)
        self._words[_LOGGED] = 0
        self._words[_TAKEN] = 0
        self._words[_DRAINING] = 0
        self._words[_READING] = 0
        self._output.write(bytes(8))
        self._words[_DISMISSED] = 0
        self._words[_REVOKED] = 0
        self._words[_HELPED] = 0
        self._words[_HOOK] = 0
        self.set_held(0)
        self.outcomes.restart()
        self.interrupt(Interruption(Reason.NONE))
        self._progress.write(b"")
        self._progress.restart()
        self._company.restart()
        self.open_stacks()

    # -- written by the parent --------------------------------------------------------------------------------------

    def interrupt(self, interruption: Interruption) -> None:
        """Called in the parent, before SIGUSR2: which claim to interrupt, and why."""
        self._interruption.write(_INTERRUPTION.pack(interruption.reason, interruption.token, interruption.job))

    def dismiss(self) -> None:
        """Called in the parent, before it closes the wake pipe: that end of the file is a word of ours, and not our death."""
        self._words[_DISMISSED] = 1

    def revoke(self, token: int) -> None:
        """Called in the parent: nothing more of that claim may be started."""
        self._words[_REVOKED] = token
        barrier()

    def help(self, token: int) -> None:
        """Called in the parent, before it writes what was finished of that claim, which goes on: whoever misses it in the database knows why."""
        self._words[_HELPED] = token
        barrier()

    def say_draining(self, *, draining: bool) -> bool:
        """Called in the parent: it is about to read a child's output, or it has handed on what it read. Return whether the child is at it.

        Each says so and looks then: one of the two sees the other, and the parent gives way. Both at once would mix up what is read.
        """
        self._words[_DRAINING] = draining
        barrier()
        return bool(self._words[_READING])

    def hand_output(self, total: int, tail: bytes) -> None:
        """Called in the parent: so much of the child's output was drained by now, and this is the end of it."""
        self._output.write(_SEQUENCE.pack(total) + tail[-OUTPUT:])

    def open_stacks(self) -> None:
        """Called in the parent, before SIGUSR1: the stacks that the child writes then begin at the beginning of their place.

        The child writes to the file number that it has inherited, so both have one position in the file: here it is moved, and read.
        """
        os.lseek(self.fd, _AT_STACKS, os.SEEK_SET)

    # -- written by whoever looks on --------------------------------------------------------------------------------

    def watch(self, until: float) -> None:
        """Somebody looks at what the job here prints: until then, in monotonic seconds, the parent hands on what little there is, too."""
        self._words[_WATCHED] = int(until * 1000)

    # -- read by anyone ---------------------------------------------------------------------------------------------

    def now(self) -> CurrentWork | None:
        """Return what the child is doing, or None if that cannot be believed."""
        record = self._now.read()
        if record is None or len(record) != _NOW.size:
            return None
        phase, *rest = _NOW.unpack(record)
        return CurrentWork(Phase(phase), *rest)

    def company(self, now: CurrentWork) -> list[CurrentWork]:
        """Return what `now` says for each of the other jobs that run in the same call."""
        record = self._company.read()
        if record is None or len(record) < _COMPANY.size or _COMPANY.unpack_from(record) != (now.token, now.job):
            return []
        return [
            now._replace(job=job, attempts=attempts, max_attempts=most, crashes=crashes)
            for job, attempts, most, crashes in _MATE.iter_unpack(record[_COMPANY.size :])
        ]

    @property
    def times_interrupted(self) -> int:
        """Grows with each interruption: whether there is a new one, without reading it."""
        return self._interruption.newest()

    def interruption(self) -> Interruption:
        """Return the parent's latest one."""
        record = self._interruption.read()
        if record is None or len(record) != _INTERRUPTION.size:
            return Interruption(Reason.NONE)
        reason, token, job = _INTERRUPTION.unpack(record)
        return Interruption(Reason(reason), token, job)

    @property
    def dismissed(self) -> bool:
        """Whether the parent has asked the child to leave."""
        return bool(self._words[_DISMISSED])

    @property
    def revoked(self) -> int:
        """The claim of which nothing more may be started."""
        return int(self._words[_REVOKED])

    @property
    def helped(self) -> int:
        """The claim of which the parent may have written what was finished in front of the job that ran."""
        return int(self._words[_HELPED])

    @property
    def begun(self) -> int:
        """The job of the claim that was begun last, or 0."""
        return int(self._words[_BEGUN])

    @property
    def cleared(self) -> list[int]:
        """The claims that are open and of which a job has started: a later death is not the fault of the other jobs."""
        untouched = 0 if self.begun else int(self._words[_CLAIM])
        return [token for token in self.outcomes.claims() if token != untouched]

    @property
    def held(self) -> int:
        """How many jobs of its claim the child held when it began, beside the first."""
        return int(self._words[_HELD])

    @property
    def unwritten(self) -> float:
        """Since when an outcome of the claim in hand stands here and nowhere else, in monotonic seconds; 0: none does."""
        return self._words[_UNWRITTEN] / 1e6

    @property
    def hook(self) -> float:
        """When a hook that runs should be through, in monotonic seconds; 0: none runs."""
        return self._words[_HOOK] / 1e6

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
    def watched(self) -> float:
        """Until when somebody looks at what is printed here, in monotonic seconds."""
        return self._words[_WATCHED] / 1000

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
