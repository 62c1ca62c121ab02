"""The status board: memory that a worker writes and its supervisor reads, and that survives it.

It shows what the process does (job, token, deadline, phase), whether it is idle, and the progress
of the job. It also holds the counters (`counters.py`), the outcomes of the worker's claims
(`outcome_buffer.py`), the last lines of the log and the stack of a crash. Writing is a store and
never a system call, so a tight loop can report its progress at no cost. Reading never waits for a
writer: a record that could be read half-written is a double buffer (`double_buffer.py`) with sequence and
checksum, and a half-written copy is ignored.

Each region (`board_memory.py`) has one writer: the child process, except for the interruption, which
the supervisor writes. This module contains no policy.
"""

from __future__ import annotations

from jobherd.workers.ipc.board_memory import COMPANY, INTERRUPTION, MATE, NOW, Word
from jobherd.workers.ipc.board_streams import SERVICES, BoardStreams
from jobherd.workers.ipc.current_work import CurrentWork, Interruption, Phase, Reason
from jobherd.workers.ipc.memory_barrier import barrier


class StatusBoard(BoardStreams):
    """The status board of one slot.

    The supervisor creates it before any fork, and its child processes inherit the memory.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.open_stacks()

    # -- written by the worker

    def say(self, now: CurrentWork) -> None:
        """Called in the child process: publish what it does."""
        self._now.write(NOW.pack(*now))
        self._words[Word.SHORT] = 0  # Order: after the record, which takes the place of that job.

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
        self._now.write(NOW.pack(Phase.RUNNING, child, token, job, kind, attempts, most, crashes, started, deadline))
        self._words[Word.SHORT] = 0

    def say_together(self, now: CurrentWork, others: list[tuple[int, int, int, int]]) -> None:
        """Called in the worker: it runs the job of `now` and these others in one call.

        Each of the others is given by id, attempts, max_attempts, crashes.
        """
        # Order: before `now`, so that a reader of `now` finds the others too.
        self._company.write(COMPANY.pack(now.token, now.job) + b"".join(MATE.pack(*other) for other in others))
        self.say(now)

    def set_idle(self, *, idle: bool) -> None:
        """Called in the child process: it waits for a wake, or it does not."""
        self._words[Word.IDLED] += idle
        self._words[Word.IDLE] = idle

    def set_database(self, *, connected: bool) -> None:
        """Called in the child process: it has a session, or it is connecting."""
        self._words[Word.DATABASE] = connected

    def count_started(self, job: int) -> None:
        """Called in the worker: one more job starts.

        A job that was announced and not counted here when its worker died has not run.
        """
        self._words[Word.STARTED] += 1
        self._words[Word.BEGUN] = job

    def count_claim(self, *, empty: bool) -> None:
        """Called in the worker: it has made a claim."""
        self._words[Word.CLAIMS] += 1
        self._words[Word.EMPTY] += empty

    def begin_claim(self, token: int, held: int) -> None:
        """Called in the worker: a claim begins, of which `held` jobs wait for the running one."""
        # Order: before the outcome buffer is opened, the board must not say that a job of this
        # claim has started.
        self._words[Word.BEGUN] = 0
        self._words[Word.CLAIM] = token
        self.outcomes.open(token)
        self._words[Word.HELD] = held
        self._words[Word.UNWRITTEN] = 0

    def set_held(self, held: int) -> None:
        """Called in the worker: this many jobs of the claim wait for the running ones."""
        self._words[Word.HELD] = held

    def say_unwritten(self, since: float) -> None:
        """Called in the worker: an outcome is stored only here since `since`, in monotonic seconds. 0: none is."""
        self._words[Word.UNWRITTEN] = int(since * 1e6)

    def say_hook(self, until: float) -> None:
        """Called in the child process: a hook runs outside a job's time, until `until` at most.

        until: monotonic seconds. 0: no hook runs.
        """
        self._words[Word.HOOK] = int(until * 1e6)

    def tell_progress(self, record: bytes) -> None:
        """Called in the worker, from the handler: publish progress, a JSON document of at most 2 KiB."""
        self._progress.write(record)

    def clear(self) -> None:
        """Called in the supervisor before a fork: reset everything that belongs to the previous process."""
        self.say(CurrentWork(Phase.BOOTING))
        self._now.restart()
        self.set_idle(idle=False)
        self.set_database(connected=False)
        self._words[Word.LOGGED] = 0
        self._words[Word.TAKEN] = 0
        self._words[Word.DRAINING] = 0
        self._words[Word.READING] = 0
        self._output.write(bytes(8))
        self._words[Word.DISMISSED] = 0
        self._words[Word.REVOKED] = 0
        self._words[Word.FLUSHED] = 0
        self._words[Word.HOOK] = 0
        self.set_held(0)
        for service in SERVICES:
            self.say_streams(service, 0)
        self.say_wanted(0)
        self.outcomes.restart()
        self.interrupt(Interruption(Reason.NONE))
        self._progress.write(b"")
        self._progress.restart()
        self._company.restart()
        self.open_stacks()

    # -- written by the supervisor

    def interrupt(self, interruption: Interruption) -> None:
        """Called in the supervisor, before SIGUSR2: which claim to interrupt, and why."""
        self._interruption.write(INTERRUPTION.pack(interruption.reason, interruption.token, interruption.job))

    def dismiss(self) -> None:
        """Called in the supervisor, before it closes the wake pipe.

        The end of that file then means a dismissal, and not the death of the supervisor.
        """
        self._words[Word.DISMISSED] = 1

    def revoke(self, token: int) -> None:
        """Called in the supervisor: no further job of that claim may start."""
        self._words[Word.REVOKED] = token
        barrier()

    def announce_flush(self, token: int) -> None:
        """Called in the supervisor, before it records the finished jobs of a claim that continues.

        A worker that misses these jobs in the database then knows why.
        """
        self._words[Word.FLUSHED] = token
        barrier()

    # -- read by any process

    def now(self) -> CurrentWork | None:
        """Return what the child process does, or None if there is no valid record."""
        short = self._words[Word.SHORT]
        barrier()  # Order: the rows are read after the word that names one of them.
        if short and (work := self.outcomes.announced(int(short))) is not None:
            return work
        record = self._now.read()
        if record is None or len(record) != NOW.size:
            return None
        phase, *rest = NOW.unpack(record)
        return CurrentWork(Phase(phase), *rest)

    def company(self, now: CurrentWork) -> list[CurrentWork]:
        """Return the record of each other job that runs in the same call as `now`."""
        record = self._company.read()
        if record is None or len(record) < COMPANY.size or COMPANY.unpack_from(record) != (now.token, now.job):
            return []
        return [
            now._replace(job=job, attempts=attempts, max_attempts=most, crashes=crashes)
            for job, attempts, most, crashes in MATE.iter_unpack(record[COMPANY.size :])
        ]

    @property
    def times_interrupted(self) -> int:
        """Grows with each interruption, so a new one is noticed without reading it."""
        return self._interruption.newest()

    def interruption(self) -> Interruption:
        """Return the supervisor's latest interruption."""
        record = self._interruption.read()
        if record is None or len(record) != INTERRUPTION.size:
            return Interruption(Reason.NONE)
        reason, token, job = INTERRUPTION.unpack(record)
        return Interruption(Reason(reason), token, job)

    @property
    def dismissed(self) -> bool:
        """Whether the supervisor has asked the child process to exit."""
        return bool(self._words[Word.DISMISSED])

    @property
    def revoked(self) -> int:
        """Token of the claim of which no further job may start."""
        return int(self._words[Word.REVOKED])

    @property
    def flushed(self) -> int:
        """Token of the claim whose finished jobs the supervisor may have recorded during a run."""
        return int(self._words[Word.FLUSHED])

    @property
    def begun(self) -> int:
        """The job of the claim that started last, or 0."""
        return int(self._words[Word.BEGUN])

    @property
    def cleared(self) -> list[int]:
        """The open claims of which a job has started.

        A later death of the process is not the fault of their other jobs.
        """
        untouched = 0 if self.begun else int(self._words[Word.CLAIM])
        return [token for token in self.outcomes.claims() if token != untouched]

    @property
    def held(self) -> int:
        """How many jobs the claim held when it began, besides the first."""
        return int(self._words[Word.HELD])

    @property
    def unwritten(self) -> float:
        """Since when an outcome of the current claim is stored only here, in monotonic seconds.

        0: none is.
        """
        return self._words[Word.UNWRITTEN] / 1e6

    @property
    def hook(self) -> float:
        """When a running hook must have finished, in monotonic seconds. 0: none runs."""
        return self._words[Word.HOOK] / 1e6

    @property
    def idle(self) -> bool:
        """Whether the child process waits for a wake."""
        return bool(self._words[Word.IDLE])

    @property
    def times_idle(self) -> int:
        """How often a child process of this slot became idle, to notice idle times between two reads."""
        return int(self._words[Word.IDLED])

    @property
    def database(self) -> bool:
        """Whether the child process has a session."""
        return bool(self._words[Word.DATABASE])

    @property
    def jobs_started(self) -> int:
        """How many jobs have started in this slot, across all of its child processes."""
        return int(self._words[Word.STARTED])

    @property
    def claims(self) -> tuple[int, int]:
        """How many claims were made in this slot, and how many of them were empty."""
        return int(self._words[Word.CLAIMS]), int(self._words[Word.EMPTY])

    def progress(self) -> bytes:
        """Return the handler's latest progress, a JSON document, or nothing."""
        return self._progress.read() or b""
