"""The status board: memory that a worker writes and its supervisor reads, and that survives it.

It shows what the process does (job, token, deadline, phase), whether it is idle, and the progress
of the job. It also holds the counters (`counters.py`), the outcomes of the worker's claims
(`outcome_buffer.py`), the last lines of the log and the stack of a crash. Writing is a store and
never a system call, so a tight loop can report its progress at no cost. Reading never waits for a
writer: a record that could be read half-written is a double buffer (`record.py`) with sequence and
checksum, and a half-written copy is ignored.

Each region has one writer: the child process, except for the interruption, which the supervisor
writes. Stacks come last, and the memory cannot grow: signal handlers write them, of any length, and
they must not overwrite anything else. This module contains no policy.
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
    """What a child process does, for display and for the post-mortem."""

    BOOTING = 0
    IDLE = 1
    CLAIMING = 2
    RUNNING = 3
    SETTLING = 4
    LEAVING = 5
    TOGETHER = 6
    """It runs several jobs in one call. `job` is the first of them."""


class Reason(IntEnum):
    """Why the supervisor interrupts a job."""

    NONE = 0
    CANCEL = 1
    DRAIN = 2
    LOST = 3
    """The claim turned out to be lost: another worker has the job."""


class CurrentWork(NamedTuple):
    """What a child process does.

    `job` is 0 between jobs. Times are monotonic seconds. `deadline` is infinite without a timeout.
    """

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
        """Whether the job was announced and had not started.

        Only the supervisor creates such a record, for a dead worker.
        """
        return self.phase is Phase.CLAIMING and self.job != 0


@dataclass(frozen=True, slots=True)
class Interruption:
    """A message of the supervisor to a worker: interrupt this claim."""

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
"""Maximum bytes kept of the output of one attempt."""

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
    _FLUSHED,
    _HOOK,
    _CLAIM,
) = range(19)


class StatusBoard:
    """The status board of one slot.

    The supervisor creates it before any fork, and its child processes inherit the memory.
    """

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
        """Release the memory. Other processes keep it."""
        self.tally.close()
        self.outcomes.release()
        self._words.release()
        self._view.release()
        self._memory.close()
        os.close(self.fd)

    # -- written by the worker

    def say(self, now: CurrentWork) -> None:
        """Called in the child process: publish what it does."""
        self._now.write(_NOW.pack(*now))

    def say_running(  # noqa: PLR0917 - keyword arguments cost a tenth of a microsecond, and this is called for each job
        self,
        child: int,
        token: int,
        job: int,
        kind: int,
        attempts: int,
        most: int,
        crashes: int,
        started: float,
        deadline: float,
    ) -> None:
        """Called in the worker for each job, with positional arguments: it runs this job.

        The order of the arguments is that of `CurrentWork`.
        """
        self._now.write(_NOW.pack(Phase.RUNNING, child, token, job, kind, attempts, most, crashes, started, deadline))

    def say_together(self, now: CurrentWork, others: list[tuple[int, int, int, int]]) -> None:
        """Called in the worker: it runs the job of `now` and these others in one call.

        Each of the others is given by id, attempts, max_attempts, crashes.
        """
        # Order: before `now`, so that a reader of `now` finds the others too.
        self._company.write(_COMPANY.pack(now.token, now.job) + b"".join(_MATE.pack(*other) for other in others))
        self.say(now)

    def set_idle(self, *, idle: bool) -> None:
        """Called in the child process: it waits for a wake, or it does not."""
        self._words[_IDLED] += idle
        self._words[_IDLE] = idle

    def set_database(self, *, connected: bool) -> None:
        """Called in the child process: it has a session, or it is connecting."""
        self._words[_DATABASE] = connected

    def count_started(self, job: int) -> None:
        """Called in the worker: one more job starts.

        A job that was announced and not counted here when its worker died has not run.
        """
        self._words[_STARTED] += 1
        self._words[_BEGUN] = job

    def count_claim(self, *, empty: bool) -> None:
        """Called in the worker: it has made a claim."""
        self._words[_CLAIMS] += 1
        self._words[_EMPTY] += empty

    def begin_claim(self, token: int, held: int) -> None:
        """Called in the worker: a claim begins, of which `held` jobs wait for the running one."""
        # Order: before the outcome buffer is opened, the board must not say that a job of this
        # claim has started.
        self._words[_BEGUN] = 0
        self._words[_CLAIM] = token
        self.outcomes.open(token)
        self._words[_HELD] = held
        self._words[_UNWRITTEN] = 0

    def set_held(self, held: int) -> None:
        """Called in the worker: this many jobs of the claim wait for the running ones."""
        self._words[_HELD] = held

    def say_unwritten(self, since: float) -> None:
        """Called in the worker.

        Since `since`, in monotonic seconds, an outcome is stored only here.

        0: none is.
        """
        self._words[_UNWRITTEN] = int(since * 1e6)

    def say_hook(self, until: float) -> None:
        """Called in the child process: a hook runs outside a job's time, until `until` at most.

        until: monotonic seconds. 0: no hook runs.
        """
        self._words[_HOOK] = int(until * 1e6)

    def tell_progress(self, record: bytes) -> None:
        """Called in the worker, from the handler.

        Publish progress, a JSON document of at most 2 KiB.
        """
        self._progress.write(record)

    def log(self, line: bytes) -> None:
        """Called in the child process: append to the ring of the last 64 KiB of log."""
        line = line[-_LOG:]
        at = self._words[_LOGGED] % _LOG
        first = min(len(line), _LOG - at)
        self._view[_AT_LOG + at : _AT_LOG + at + first] = line[:first]
        self._view[_AT_LOG : _AT_LOG + len(line) - first] = line[first:]
        self._words[_LOGGED] += len(line)

    def take_output(self) -> bytes:
        """Called in the worker: return the output that the supervisor has read since the last call.

        Only the latest of it is available.
        """
        for _ in range(10_000):  # Not indefinitely: the supervisor may have died while it read.
            if not self._words[_DRAINING]:
                break
            os.sched_yield()  # The supervisor is reading at this moment.
        total, tail = self.drained()
        taken, self._words[_TAKEN] = int(self._words[_TAKEN]), total
        return tail[-(total - taken) :] if total > taken else b""

    def say_reading(self, *, reading: bool) -> None:
        """Called in the worker: it is about to read its own output, or has finished reading."""
        self._words[_READING] = reading
        barrier()

    def open_trace(self) -> int:
        """Called in the child process at boot: clear the region for the stacks of a crash.

        Return a file descriptor that writes there.
        """
        if self._view[_AT_TRACE]:  # An empty region is not touched, so it takes no memory.
            self._view[_AT_TRACE : _AT_TRACE + _TRACE] = bytes(_TRACE)
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(fd, _AT_TRACE, os.SEEK_SET)
        return fd

    def clear(self) -> None:
        """Called in the supervisor before a fork.

        Reset everything that belongs to the previous process.
        """
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
        self._words[_FLUSHED] = 0
        self._words[_HOOK] = 0
        self.set_held(0)
        self.outcomes.restart()
        self.interrupt(Interruption(Reason.NONE))
        self._progress.write(b"")
        self._progress.restart()
        self._company.restart()
        self.open_stacks()

    # -- written by the supervisor

    def interrupt(self, interruption: Interruption) -> None:
        """Called in the supervisor, before SIGUSR2: which claim to interrupt, and why."""
        self._interruption.write(_INTERRUPTION.pack(interruption.reason, interruption.token, interruption.job))

    def dismiss(self) -> None:
        """Called in the supervisor, before it closes the wake pipe.

        The end of that file then means a dismissal, and not the death of the supervisor.
        """
        self._words[_DISMISSED] = 1

    def revoke(self, token: int) -> None:
        """Called in the supervisor: no further job of that claim may start."""
        self._words[_REVOKED] = token
        barrier()

    def announce_flush(self, token: int) -> None:
        """Called in the supervisor, before it records the finished jobs of a claim that continues.

        A worker that misses these jobs in the database then knows why.
        """
        self._words[_FLUSHED] = token
        barrier()

    def say_draining(self, *, draining: bool) -> bool:
        """Called in the supervisor: it is about to read a worker's output, or has published it.

        Return whether the worker is reading. Each side announces itself and then checks the other,
        so at least one of them sees the other, and the supervisor gives way. If both read at once,
        the output would be mixed up.
        """
        self._words[_DRAINING] = draining
        barrier()
        return bool(self._words[_READING])

    def hand_output(self, total: int, tail: bytes) -> None:
        """Called in the supervisor: publish the end of the worker's output.

        total: bytes read by now. tail: their end.
        """
        self._output.write(_SEQUENCE.pack(total) + tail[-OUTPUT:])

    def open_stacks(self) -> None:
        """Called in the supervisor, before SIGUSR1.

        The next stacks start at the start of their region.

        The worker writes to the file descriptor that it inherited, so both processes share one
        position in the file. It is set here and read in `stacks`.
        """
        os.lseek(self.fd, _AT_STACKS, os.SEEK_SET)

    # -- written by any process

    def watch(self, until: float) -> None:
        """Show that a user watches the output of this slot, until `until` in monotonic seconds.

        Until then the supervisor publishes even small amounts of output.
        """
        self._words[_WATCHED] = int(until * 1000)

    # -- read by any process

    def now(self) -> CurrentWork | None:
        """Return what the child process does, or None if there is no valid record."""
        record = self._now.read()
        if record is None or len(record) != _NOW.size:
            return None
        phase, *rest = _NOW.unpack(record)
        return CurrentWork(Phase(phase), *rest)

    def company(self, now: CurrentWork) -> list[CurrentWork]:
        """Return the record of each other job that runs in the same call as `now`."""
        record = self._company.read()
        if record is None or len(record) < _COMPANY.size or _COMPANY.unpack_from(record) != (now.token, now.job):
            return []
        return [
            now._replace(job=job, attempts=attempts, max_attempts=most, crashes=crashes)
            for job, attempts, most, crashes in _MATE.iter_unpack(record[_COMPANY.size :])
        ]

    @property
    def times_interrupted(self) -> int:
        """Grows with each interruption, so a new one is noticed without reading it."""
        return self._interruption.newest()

    def interruption(self) -> Interruption:
        """Return the supervisor's latest interruption."""
        record = self._interruption.read()
        if record is None or len(record) != _INTERRUPTION.size:
            return Interruption(Reason.NONE)
        reason, token, job = _INTERRUPTION.unpack(record)
        return Interruption(Reason(reason), token, job)

    @property
    def dismissed(self) -> bool:
        """Whether the supervisor has asked the child process to exit."""
        return bool(self._words[_DISMISSED])

    @property
    def revoked(self) -> int:
        """Token of the claim of which no further job may start."""
        return int(self._words[_REVOKED])

    @property
    def flushed(self) -> int:
        """Token of the claim whose finished jobs the supervisor may have recorded during a run."""
        return int(self._words[_FLUSHED])

    @property
    def begun(self) -> int:
        """The job of the claim that started last, or 0."""
        return int(self._words[_BEGUN])

    @property
    def cleared(self) -> list[int]:
        """The open claims of which a job has started.

        A later death of the process is not the fault of their other jobs.
        """
        untouched = 0 if self.begun else int(self._words[_CLAIM])
        return [token for token in self.outcomes.claims() if token != untouched]

    @property
    def held(self) -> int:
        """How many jobs the claim held when it began, besides the first."""
        return int(self._words[_HELD])

    @property
    def unwritten(self) -> float:
        """Since when an outcome of the current claim is stored only here, in monotonic seconds.

        0: none is.
        """
        return self._words[_UNWRITTEN] / 1e6

    @property
    def hook(self) -> float:
        """When a running hook must have finished, in monotonic seconds. 0: none runs."""
        return self._words[_HOOK] / 1e6

    @property
    def idle(self) -> bool:
        """Whether the child process waits for a wake."""
        return bool(self._words[_IDLE])

    @property
    def times_idle(self) -> int:
        """How often a child process of this slot became idle, to notice idle times between two reads."""
        return int(self._words[_IDLED])

    @property
    def database(self) -> bool:
        """Whether the child process has a session."""
        return bool(self._words[_DATABASE])

    @property
    def jobs_started(self) -> int:
        """How many jobs have started in this slot, across all of its child processes."""
        return int(self._words[_STARTED])

    @property
    def claims(self) -> tuple[int, int]:
        """How many claims were made in this slot, and how many of them were empty."""
        return int(self._words[_CLAIMS]), int(self._words[_EMPTY])

    def progress(self) -> bytes:
        """Return the handler's latest progress, a JSON document, or nothing."""
        return self._progress.read() or b""

    def log_tail(self, limit: int = 8192) -> bytes:
        """Return the latest `limit` bytes of the child process's log, from the beginning of a line."""
        written = int(self._words[_LOGGED])
        length = min(written, _LOG, limit)
        start = (written - length) % _LOG
        ring = bytes(self._view[_AT_LOG : _AT_LOG + _LOG])
        tail = (ring + ring)[start : start + length]
        return tail if length == written else tail[tail.find(b"\n") + 1 :]

    def drained(self) -> tuple[int, bytes]:
        """Return how many bytes of the worker's output the supervisor has read, and the end of them."""
        record = self._output.read() or bytes(8)
        return int(_SEQUENCE.unpack_from(record)[0]), record[8:]

    @property
    def times_drained(self) -> int:
        """Grows each time the supervisor has read some output."""
        return self._output.newest()

    @property
    def watched(self) -> float:
        """Until when a user watches the output here, in monotonic seconds."""
        return self._words[_WATCHED] / 1000

    @property
    def output_taken(self) -> int:
        """How many bytes of the output belong to finished jobs."""
        return int(self._words[_TAKEN])

    def stacks(self) -> bytes:
        """Return what was written so far of the stacks that were requested last.

        Called in the supervisor, which shares the position in the file.
        """
        end = os.lseek(self.fd, 0, os.SEEK_CUR)
        return bytes(self._view[_AT_STACKS:end])

    def trace(self) -> str:
        """Return the stacks of a crash, or an empty string."""
        found = b""
        # Stop at the end of the text: reading the rest would allocate its memory.
        for at in range(_AT_TRACE, _AT_STACKS, _PAGE):
            found += bytes(self._view[at : at + _PAGE])
            if found.endswith(b"\0"):
                break
        return found.rstrip(b"\0").decode(errors="replace")
