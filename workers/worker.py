"""A worker's life: load the handlers, find the database, say READY; then wait, claim, run, settle until dismissed.

A claim that was made is always ended: each of its jobs is run, or handed back. Between an empty claim and the sleep nothing may slip
through: the epoch on the parent's page is noted before the claim and read again once this child shows itself idle. The settlement of
the last claim and the next claim travel together, so a job costs one round trip and one commit. What was finished is not kept for long:
after 50 ms, or before a job that may take longer than what is left of them, it is written by itself.
"""

from __future__ import annotations

import _thread
import logging
import os
import random
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from handlers._backoff import Backoff
from handlers._client import Client, configure
from handlers._registry import load
from workers.board import Now, Phase, Policy, Reason
from workers.connection import Left, Session
from workers.execute import Claimed, Executor
from workers.link import EXIT_HANDLERS, EXIT_LEFT, EXIT_WORN, More, Problem, Ready, send
from workers.logs import set_up
from workers.settle import Clerk, Finished, UnsettledError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from handlers._handler import AnyHandler
    from handlers._policy import Wait
    from workers.main import Body

_log = logging.getLogger("jobherd.worker")

HELD: Final = 0.05
"""Seconds that an outcome may wait for its settlement while other jobs of its claim run."""
_LOOK: Final = 0.0002
"""Seconds between two looks at the wake pipe while a batch runs: a look costs a microsecond."""
_CONTENDED: Final = 10
_EXIT_UNSETTLED: Final = 70
_LAPSED: Final = 0.2
_OWN_POLL: Final = 12
"""The parent nudges one child each poll; a child asks by itself, should its parent hang, so many polls after it last heard anything:
sixty-four idle children must not ask sixty-four times as often as one."""


def run(body: Body) -> int:
    """Live as a worker and return the exit code. Signals are unblocked, nothing of the parent's is left."""
    settings = body.seat.settings
    # What handlers enqueue goes where this job came from. One connection, and only once a handler asks for it.
    configure(client=Client(settings.dsn, schema=settings.schema, max_size=1))
    handlers = load_handlers(body)
    if handlers is None:
        return EXIT_HANDLERS
    try:
        return Worker(body, handlers).live()
    except Left as reason:
        _log.info("leaving: %s", reason)
        return EXIT_LEFT
    except UnsettledError as problem:
        _log.error("leaving it to the supervisor: %s", problem)
        return _EXIT_UNSETTLED


def load_handlers(body: Body) -> dict[str, AnyHandler] | None:
    """Load the handlers; if any module is broken, or none holds a job, say why to the parent and return None."""
    settings = body.seat.settings
    sys.path.insert(0, str(settings.app_dir.resolve()))
    found = load(settings.handlers)
    problems = [str(problem) for problem in found.problems]
    if not found.kinds and not problems:
        where = ", ".join(settings.handlers) or "nowhere: set --handlers or JOBHERD_HANDLERS"
        problems.append(f"no handler was found; looked in {where}")
    for problem in problems:
        _log.error("handlers do not load: %s", problem)
        send(body.seat.report, Problem(problem))
    return None if problems else found.kinds


class Worker:
    """What a worker holds: its session, the claim it works on, and what it has not written yet."""

    def __init__(self, body: Body, handlers: Mapping[str, AnyHandler]) -> None:
        self._body = body
        self._seat = body.seat
        self._board = body.seat.board
        self._notice = body.seat.notice
        self._wake = body.wake
        self._alarm = body.alarm
        self._handlers = handlers
        self._token = 0
        self._unsettled: list[Finished] = []
        self._first_at = 0.0
        self._woken = False
        self._worn = ""
        self._looked_at = 0.0
        self._claimed_at = 0.0
        self._session = Session(self._seat, self._wake, self._holding)
        settings = self._seat.settings
        self._clerk = Clerk(self._session, ran_on=f"{settings.host}/{os.getpid()}")
        self._executor = Executor(
            handlers=handlers,
            numbers=self._board.declare([policy_of(handler) for handler in handlers.values()]),
            board=self._board,
            notice=self._notice,
            alarm=self._alarm,
            settings=settings,
            title=body.title,
        )
        set_up(
            who=f"worker {self._seat.slot}",
            log_format=settings.log_format,
            level=settings.log_level,
            board=self._board,
            ids=self._ids,
        )
        self._tidy = _Tidiness(body)

    def live(self) -> int:
        """Connect, say READY, and work until dismissed. Returns the exit code. Raises Left and UnsettledError."""
        self._session.connect()
        self._session.run("register_kinds", kinds_of(self._handlers))
        self._executor.seat_child(self._session.child)
        self._say(Phase.IDLE)
        send(self._seat.report, Ready(self._session.child, self._session.backend))
        while (batch := self._next()) is not None:
            self._work(batch)
        self._say(Phase.SETTLING, keep_job=True)
        self._settle()
        self._say(Phase.LEAVING)
        self._body.title("leaves")
        self._session.close()
        if self._worn:
            _log.info("leaving, to be replaced: %s", self._worn)
            return EXIT_WORN
        return EXIT_LEFT

    # -- waiting and claiming ---------------------------------------------------------------------------------------

    def _next(self) -> list[Claimed] | None:
        """Return the jobs of the next claim, however long they take to come; None when it is time to leave."""
        contended = 0
        while True:
            self._look()
            self._worn = self._worn or self._tidy.look()
            if self._wake.dismissed or self._worn:
                return None
            if self._notice.draining or time.monotonic() >= self._notice.lease_deadline:
                # Whoever cannot renew the lease claims nothing: others may be about to take the jobs.
                self._settle()
                self._sleep(_LAPSED, idle=False)
                continue
            epoch = self._notice.epoch
            rows = self._claim()
            batch = self._sort(rows)
            if batch:
                if self._woken and len(rows) >= self._seat.settings.batch:
                    send(self._seat.report, More())
                self._woken = False
                return batch
            if rows and not rows[-1].id:
                contended += 1
                if contended <= _CONTENDED:
                    self._sleep(random.uniform(0.0002, 0.002) * contended, idle=False)
                    continue
                self._sleep(0.1, idle=False)
            elif not rows:
                self._idle(epoch)
            contended = 0

    def _idle(self, epoch: int) -> None:
        self._board.set_idle(idle=True)
        _fence()
        if self._notice.epoch == epoch:
            self._say(Phase.IDLE)
            self._body.title("idle")
            self._sleep(self._seat.settings.poll * _OWN_POLL * random.uniform(0.9, 1.1), idle=True)
            self._woken = True
        self._board.set_idle(idle=False)

    def _sleep(self, seconds: float, *, idle: bool) -> None:
        if self._wake.wait(seconds) and not idle:
            self._woken = True  # a nudge that came while this child was not idle after all

    def _claim(self) -> list[Claimed]:
        """Settle what is not settled and claim, together."""
        session, settings = self._session, self._seat.settings
        claim = {"child": session.child, "served": list(settings.queues) or None, "wanted": settings.batch}
        rows = None
        if self._unsettled:
            self._say(Phase.SETTLING, keep_job=True)
            rows = self._clerk.settle_and_claim(self._token, self._unsettled, claim)
            self._forget()
        if rows is None:
            self._say(Phase.CLAIMING)
            rows = session.run("claim_jobs", claim)
        self._claimed_at = time.monotonic()
        self._board.count_claim(empty=not rows)
        self._executor.look_at_clock()
        return [Claimed._make(row) for row in rows]

    def _sort(self, rows: Sequence[Claimed]) -> list[Claimed]:
        """Return the jobs to run; those that expired in the claim are over."""
        batch = [row for row in rows if row.token is not None]
        for row in rows:
            if row.expired:
                self._executor.count_expired(row)
        if batch:
            self._token = batch[0].token
            surplus = batch[self._seat.settings.batch :]
            if surplus:
                # A plan that locks a LIMIT again and again can do this: see claim_jobs.sql.
                _log.error("the claim took %d jobs, %d more than asked: handing them back", len(batch), len(surplus))
                self._hand_back(surplus)
                del batch[len(batch) - len(surplus) :]
        return batch

    # -- running and settling ---------------------------------------------------------------------------------------

    def _work(self, batch: Sequence[Claimed]) -> None:
        alarm, executor = self._alarm, self._executor
        alarm.begin(self._token, {row.id for row in batch})
        for place, row in enumerate(batch):
            self._look()
            if self._wake.dismissed or self._notice.draining or self._worn:
                self._hand_back(batch[place:])
                return
            reason = alarm.told.get(row.id, Reason.NONE) if alarm.told else Reason.NONE
            if reason is Reason.LOST:
                self._lose(len(batch) - place)
                return
            if reason is not Reason.NONE:
                self._note(executor.unstarted(row, cancelled=reason is Reason.CANCEL))
                continue
            if self._unsettled and time.monotonic() - self._first_at + executor.expected(row.kind) > HELD:
                self._settle(more=True)
            finished = executor.execute(row, claimed_at=self._claimed_at)
            self._examine()
            if finished is None:
                self._lose(len(batch) - place)
                return
            self._note(finished)

    def _examine(self) -> None:
        """Look whether the job has left this process as it found it; cheap, for it is done after each."""
        alarm = self._alarm
        if alarm.raised is not None:
            self._worn = f"a job was torn out by {type(alarm.raised).__name__}"
        elif not alarm.is_intact():
            alarm.restore()
            self._worn = "a job changed signal handlers"
        elif _thread._count() != self._tidy.threads and (left := self._tidy.threads_left()):  # noqa: SLF001 - all others make a list
            self._worn = f"a job left a thread behind: {left}"

    def _note(self, finished: Finished) -> None:
        if not self._unsettled:
            self._first_at = finished.ended or time.monotonic()
        self._unsettled.append(finished)

    def _hand_back(self, rows: Sequence[Claimed]) -> None:
        told = self._alarm.told
        for row in rows:
            self._note(self._executor.unstarted(row, cancelled=told.get(row.id) is Reason.CANCEL))

    def _settle(self, *, more: bool = False) -> None:
        """Write what is not written. `more`: further jobs of the claim are still to run."""
        if self._unsettled:
            self._clerk.settle(self._token, self._unsettled)
            if more:
                self._unsettled = []
            else:
                self._forget()

    def _lose(self, jobs: int) -> None:
        _log.warning("the claim was lost, dropping %d jobs of it", jobs, extra={"token": self._token})
        self._forget()

    def _forget(self) -> None:
        self._unsettled = []
        self._token = 0
        self._alarm.end()

    # -- small things -----------------------------------------------------------------------------------------------

    def _holding(self) -> list[int]:
        return [self._token] if self._token else []

    def _look(self) -> None:
        """See whether the parent has let go of us; not after every job of a few microseconds."""
        now = time.monotonic()
        if now - self._looked_at > _LOOK:
            self._looked_at = now
            if self._wake.look():
                self._woken = True

    def _say(self, phase: Phase, *, keep_job: bool = False) -> None:
        now = self._executor.now
        if keep_job and now.token == self._token:
            # If the process dies before the outcome is written, the attempt must count as one that ran.
            self._board.say(
                Now(phase, now.child, now.token, now.job, now.kind, now.attempts, now.max_attempts, now.crashes, now.started, now.deadline)
            )
        else:
            self._board.say(Now(phase, self._session.child))

    def _ids(self) -> dict[str, object]:
        running = self._executor.running
        return {} if running is None else {"job": running.id, "kind": running.kind, "attempt": running.attempts}


class _Tidiness:
    """What a job may have left changed in its process. Looked at once for each claim: a few system calls."""

    def __init__(self, body: Body) -> None:
        self.threads = _thread._count()  # noqa: SLF001 - all others make a list
        self._alarm = body.alarm
        self._known = set(threading.enumerate())
        self._home = os.getcwd()
        self._home_fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._depth = sys.getrecursionlimit()
        self._jobs = 0

    def look(self) -> str:
        """Put right what can be put right; return what cannot, in words, or nothing."""
        try:
            moved = os.getcwd() != self._home
        except OSError:
            moved = True
        if moved:
            os.fchdir(self._home_fd)
        sys.setrecursionlimit(self._depth)
        if blocked := signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            return f"a job blocked signals: {', '.join(signal.Signals(number).name for number in sorted(blocked))}"
        return "" if self._alarm.rearm_if_touched() else "a job moved the interval timer"

    def threads_left(self) -> str:
        """Return the names of threads that a job left behind, or nothing if what it left are daemons.

        Libraries keep daemons for as long as the process lives, a pool of connections is one: a child that was replaced for it would be
        replaced after each job.
        """
        now = set(threading.enumerate())
        left = [thread.name for thread in now - self._known if not thread.daemon]
        self._known = now
        self.threads = _thread._count()  # noqa: SLF001
        return ", ".join(left)


def policy_of(handler: AnyHandler) -> Policy:
    """Return what the parent must know of a kind."""
    policy = handler.policy
    return Policy(
        handler.kind,
        policy.max_attempts,
        policy.max_crashes,
        policy.keep_completed_days,
        policy.keep_failed_days,
        _backoff(policy.backoff),
        policy.exclusive,
    )


def _backoff(wait: Wait) -> tuple[float, float, float, float]:
    """Return a back-off as four numbers; one that is no curve becomes the nearest: the parent, which runs no user code, asks for a crash."""
    if isinstance(wait, Backoff):
        return wait.base, wait.factor, wait.jitter, wait.cap
    if isinstance(wait, tuple):
        growth = wait[1] / wait[0] if len(wait) > 1 and wait[0] > 0 else 1.0
        return wait[0], max(1.0, growth), 0.0, wait[-1]
    return Policy().backoff


def kinds_of(handlers: Mapping[str, AnyHandler]) -> dict[str, list[object]]:
    """Return the parameters of register_kinds.sql."""
    all_of = list(handlers.values())
    return {
        "names": [one.kind for one in all_of],
        "queues": [one.policy.queue for one in all_of],
        "priorities": [one.policy.priority for one in all_of],
        "max_attempts": [one.policy.max_attempts for one in all_of],
        "max_crashes": [one.policy.max_crashes for one in all_of],
        "keep_completed": [one.policy.keep_completed_days for one in all_of],
        "keep_failed": [one.policy.keep_failed_days for one in all_of],
    }


_lock = threading.Lock()


def _fence() -> None:
    """Make what was stored seen by others before anything is read: a processor may turn these two round, and a wake-up would be lost."""
    with _lock:
        pass
