"""The timer and the signals that interrupt a job, and the guarantee that they interrupt nothing else.

Invariant: only code between `interrupts.open = True` and `interrupts.open = False` can be
interrupted. Both are plain stores. The interpreter checks for signals where a call ends and where a
loop repeats, never at a store, so no exception can be raised between the handler's return and the
closing store. A signal that arrives while `open` is false is remembered or ignored: it never
reaches the next job or Jobherd's own code.

After an exception was raised, the timer (`job_timer.py`) fires each second until the handler has
ended. Signals get handlers and are never set to be ignored: an ignored signal would survive an exec
into grandchildren.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # fifteen times as fast as the module around it
import os
import signal
import time
from operator import is_
from typing import TYPE_CHECKING, Final

from jobherd.handlers._run.call import interrupt
from jobherd.handlers._run.dispositions import JobCancelled, JobDrained, JobInterrupted, JobTimeout
from jobherd.workers.ipc.current_work import Reason
from jobherd.workers.process.fork_mark import fork_mark
from jobherd.workers.process.interruptions import interruption_for
from jobherd.workers.process.job_timer import AGAIN, FOR_EVER, JobTimer
from jobherd.workers.process.signal_handlers import exit_at_once, ignore, kill_own_group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.wakeup import Wake

_LAST_WORDS: Final = 1.0
"""Seconds that an orphan may take to release its job. The maintenance process kills the process
group half a second later.
"""


class Interrupts:
    """What can end a running job from outside.

    open: a job runs and may be interrupted. The code that runs the job sets it, as a plain store.
    together: several jobs run in one call, so canceling one of them interrupts none. Set as `open`
    is.
    raised: what was raised last in the current job, or None.
    pending: interruptions of jobs of the current claim that do not run yet, by id.
    unread: an interruption arrived while another one was raised. Call `read` before the next job.
    lease: duration of the supervisor's lease in seconds. Exclusive jobs are ended a fifth of it
    before the lease expires.
    on_long: called once a job has run until `long_at` of `enter`.
    here: its first byte is 0 in a fork of this process, as `forked` says. For code that checks
    after each job.
    """

    def __init__(self, board: StatusBoard, wake: Wake, *, lease: float = 15.0) -> None:
        self.open = False
        self.together = False
        self.raised: JobInterrupted | None = None
        self.pending: dict[int, Reason] = {}
        self.unread = False
        self.here = fork_mark()
        self._reading = False
        self._times_interrupted = -1
        self._board = board
        self._wake = wake
        self._token = 0
        self._batch: Collection[int] = ()
        self._job = 0
        self._deadline = FOR_EVER
        self._timeout = 0.0
        self._lease: ControlBlock | None = None
        self._margin = lease / 5
        self.timer = JobTimer()
        self._orphan_until = FOR_EVER
        self._long_at = FOR_EVER
        self.on_long: Callable[[], None] = _do_nothing
        # Kept, because handlers are compared by identity after each job: a bound method is a new
        # object at each access.
        self._installed: tuple[tuple[int, Callable[[int, FrameType | None], object]], ...] = (
            (signal.SIGALRM, self._on_alarm),
            (signal.SIGUSR2, self._on_order),
            (signal.SIGTERM, self._on_term),
            (signal.SIGINT, ignore),
            (signal.SIGHUP, ignore),
            (signal.SIGQUIT, exit_at_once),
        )
        self._numbers = [number for number, _ in self._installed]
        self._handlers = [handler for _, handler in self._installed]

    @property
    def forked(self) -> bool:
        """Whether this process is a copy that a handler has forked, from Python or from C.

        Such a copy must not touch anything of Jobherd.
        """
        return not self.here[0]

    def install(self) -> None:
        """Install the handlers while signals are still blocked.

        Signals sent meanwhile then reach these handlers and not the supervisor's.
        """
        for number in signal.valid_signals():
            # Reset what the supervisor handles with its own functions. Python itself ignores
            # SIGPIPE and SIGXFSZ.
            if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, ignore)
        self.restore()
        os.register_at_fork(after_in_child=self._note_fork)

    def restore(self) -> None:
        """Restore handlers that a job has changed."""
        for number, handler in self._installed:
            _signal.signal(number, handler)  # The public function compares with the previous handler.

    def begin(self, token: int, jobs: Collection[int]) -> None:
        """Begin a claim: interruptions that name `token` and one of `jobs` are for this process."""
        self._token = token
        self._batch = jobs
        self.pending.clear()
        number = self._board.times_interrupted
        if number != self._times_interrupted:
            self._times_interrupted = number
            self.read()  # An interruption may have arrived before its claim was known here.

    def end(self) -> None:
        """End the claim: it is settled, and no interruption can refer to it any more."""
        self._token = 0
        self._batch = ()
        self.pending.clear()

    def enter(
        self, job: int, deadline: float, timeout: float, lease: ControlBlock | None = None, long_at: float = FOR_EVER
    ) -> None:
        """Prepare for a job.

        The caller then sets `open`, and calls `check` if `pending` holds anything.

        deadline: monotonic seconds. timeout: its source in seconds, for the message.
        lease: for an exclusive job, which must end before the supervisor's lease can expire: holds
        the lease's deadline.
        long_at: monotonic seconds at which `on_long` is called if the job still runs.
        """
        self.raised = None
        self._job = job
        self._timeout = timeout
        self._lease = lease
        # Order: before the timer is checked. A signal in between then finds it and sets the timer
        # again.
        self._deadline = deadline
        self._long_at = long_at
        rings = min(deadline, long_at) if lease is None else min(deadline, long_at, lease.lease_deadline - self._margin)
        if rings < self.timer.rings_at:
            self.timer.arm(rings)

    def go_on(self, job: int, deadline: float) -> None:
        """Prepare for the next of several jobs, which has the options of the one that was entered."""
        self._job = job
        self._deadline = deadline

    def judge(self, seconds: float) -> JobInterrupted | None:
        """Start the time limit for judging the handler's end. `open` is false.

        No interruption refers to the judging, but it must not run indefinitely. Returns what was
        raised until now, which the caller must restore. It is reset because otherwise a second
        SIGTERM or timer signal would raise it again and interrupt the judging too, and a canceled
        job would run again.
        """
        before, self.raised = self.raised, None
        self._job = 0
        self._lease = None
        self._long_at = FOR_EVER
        self._timeout = seconds
        self._deadline = time.monotonic() + seconds
        if self._deadline < self.timer.rings_at:
            self.timer.arm(self._deadline)
        return before

    def leave(self) -> None:
        """Note that the job has ended. `open` is false."""
        self._deadline = self._long_at = FOR_EVER
        self._lease = None
        self._job = 0

    def check(self) -> None:
        """Raise an interruption of the current job that arrived just before its start."""
        reason = self.pending.pop(self._job, Reason.NONE)
        if reason is not Reason.NONE:
            self._raise(interruption_for(reason), None)

    def read(self, frame: FrameType | None = None) -> None:
        """Read the status board for an interruption of the current claim.

        frame: what the signal has interrupted, if called by one.
        """
        self.unread = False
        said = self._board.interruption()
        if said.reason is Reason.NONE or said.token != self._token or not self._token:
            return
        if said.job == self._job and self.open and not (self.together and said.reason is Reason.CANCEL):
            self._raise(interruption_for(said.reason), frame)
        elif said.job in self._batch:
            self.pending[said.job] = said.reason

    def is_cancelled(self) -> bool:
        """Return whether the running job was canceled."""
        return isinstance(self.raised, JobCancelled)

    def is_intact(self) -> bool:
        """Return whether the signal handlers are unchanged.

        This reads the interpreter's own table, without a system call.
        """
        return all(map(is_, map(_signal.getsignal, self._numbers), self._handlers))

    # -- called by signals

    def _on_alarm(self, _number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self.timer.rings_at = FOR_EVER
        if self.forked:
            return
        if now >= self._orphan_until:
            kill_own_group()
        if self._deadline == FOR_EVER:
            return  # It was set for a job that has ended.
        if now >= self._long_at:
            self._long_at = FOR_EVER
            self.on_long()
        lapses = FOR_EVER if self._lease is None else self._lease.lease_deadline - self._margin
        if self.open and (self.raised is not None or now >= self._deadline):
            self._time_out(frame)
        elif self.open and now >= lapses:
            self._raise(JobDrained("the supervisor could not renew its lease, and this kind is exclusive"), frame)
        else:
            # Too early, or just before `open` is set.
            self.timer.arm(max(min(self._deadline, lapses, self._long_at), now + 0.001))

    def _on_order(self, _number: int, frame: FrameType | None) -> None:
        if self.forked:
            return
        self.unread = True
        if self._reading:
            return  # Otherwise a flood of interruptions would nest these calls until the stack ends.
        self._reading = True
        try:
            while self.unread:
                self.read(frame)
        finally:
            self._reading = False

    def _on_term(self, _number: int, frame: FrameType | None) -> None:
        if self.forked:
            os._exit(128 + signal.SIGTERM)
        now = time.monotonic()
        if self._wake.orphaned:
            self._orphan_until = now + _LAST_WORDS
            self._wake.dismissed = True
            self._wake.poke()
            if self.open and self.raised is None:
                self._raise(JobDrained("the supervisor is dead"), frame)
            self.timer.arm(self._orphan_until)
        elif self.open and (self.raised is not None or now >= self._deadline):
            self._time_out(frame)
        else:
            self._wake.dismissed = True
            self._wake.poke()

    def _time_out(self, frame: FrameType | None) -> None:
        # A new exception each time: one raised twice keeps the frames and the context of the first
        # time.
        again = self.raised
        self._raise(
            JobTimeout(f"ran longer than {self._timeout:g} s") if again is None else type(again)(*again.args), frame
        )

    def _raise(self, interruption: JobInterrupted, frame: FrameType | None) -> None:
        self.raised = interruption
        self.timer.arm(min(time.monotonic() + AGAIN, self._orphan_until))
        interrupt(interruption, frame)

    def _note_fork(self) -> None:
        self.here[0] = 0
        self.open = False


def _do_nothing() -> None:
    """Do nothing: no callback was set."""
