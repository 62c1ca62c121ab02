"""The timer and the signals that interrupt a job, and the promise that they interrupt nothing else.

Only what runs between `alarm.open = True` and `alarm.open = False` can be interrupted. Both are plain stores: the interpreter looks for
signals where a call ends and where a loop turns, never at a store, so no exception can slip in between the handler's return and the
closing. A signal that comes while the alarm is closed is remembered, or is of no concern: it never reaches the next job, nor our own
code.

One interval timer serves all jobs, and a job costs no system call: it is armed for the earliest deadline that was asked for, and when
it rings early it is armed again for the one that is current. Once something was raised it rings each second, until the handler is out.
Whether a job has moved it is told by its interval, which is a mark of ours and never comes to pass: times differ by when they are looked at,
and a process that was held up between two looks would be taken for changed. Signal handlers are installed, never set to be ignored: that would survive an exec into grandchildren.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # fifteen times the speed of the module around it
import mmap
import os
import signal
import time
from contextlib import suppress
from operator import is_
from typing import TYPE_CHECKING, Final, NoReturn

from jobherd.handlers._run.call import interrupt
from jobherd.handlers._run.dispositions import JobCancelled, JobDrained, JobInterrupted, JobTimeout
from jobherd.workers.ipc.status_board import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.wakeup import Wake

FOR_EVER: Final = float("inf")
_EVERY: Final = 1.0
_MARK: Final = 2.0**23 + 0.125
"""The interval of our timer, 97 days, which the kernel gives back to the digit. A job that sets the timer for itself does not know it."""
_WIPE_ON_FORK: Final = 18
"""MADV_WIPEONFORK, which the module mmap does not name."""
_LAST_WORDS: Final = 1.0
"""So long an orphan may take to hand its job back. The keeper ends the process group half a second later."""


class JobLost(JobCancelled):
    """The claim is lost: somebody else has the job. Nothing is written of this run. Handlers see a JobCancelled."""


class Interrupts:
    """What can end a running job from outside.

    open: a job runs and may be interrupted. Set by whoever runs it, as a plain store.
    together: several run in one call: who cancels one of them interrupts none. Set as `open` is.
    raised: what was last raised in the current job, or None.
    told: interruptions of jobs of the current claim that do not run yet, by id.
    unheard: an interruption came while another one was raised: `hear` it before the next job.
    lease: how long the supervisor's lease lasts, in seconds; exclusive jobs are ended a fifth of it before it lapses.
    on_long: called once a job has run for as long as `enter` was told.
    here: begins with a 0 in a copy of this process, as `forked` says, for who asks after each job.
    """

    def __init__(self, board: StatusBoard, wake: Wake, *, lease: float = 15.0) -> None:
        self.open = False
        self.together = False
        self.raised: JobInterrupted | None = None
        self.told: dict[int, Reason] = {}
        self.unheard = False
        self.here = _page()
        self._hearing = False
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
        self._rings_at = FOR_EVER
        self._marked = False
        """The timer has been armed, and carries our mark."""
        self._orphan_until = FOR_EVER
        self._long_at = FOR_EVER
        self.on_long: Callable[[], None] = _nobody
        # Kept for being compared by identity after each job: a bound method is made anew at each look at it.
        self._installed: tuple[tuple[int, Callable[[int, FrameType | None], object]], ...] = (
            (signal.SIGALRM, self._ring),
            (signal.SIGUSR2, self._hear_order),
            (signal.SIGTERM, self._hear_term),
            (signal.SIGINT, _nothing),
            (signal.SIGHUP, _nothing),
            (signal.SIGQUIT, _leave_now),
        )
        self._numbers = [number for number, _ in self._installed]
        self._handlers = [handler for _, handler in self._installed]

    @property
    def forked(self) -> bool:
        """Whether this process is a copy that a handler has forked, from Python or from C; it must touch nothing of ours."""
        return not self.here[0]

    def install(self) -> None:
        """Install the handlers. Signals are still blocked then: what was sent meanwhile arrives at them and not at the parent's."""
        for number in signal.valid_signals():
            # What the parent handles it handles in functions of its own, and Python itself ignores SIGPIPE and SIGXFSZ.
            if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, _nothing)
        self.restore()
        os.register_at_fork(after_in_child=self._note_fork)

    def restore(self) -> None:
        """Put the handlers back that a job has changed."""
        for number, handler in self._installed:
            _signal.signal(number, handler)  # the module around it compares what stood there

    def begin(self, token: int, jobs: Collection[int]) -> None:
        """A claim begins: interruptions that name `token` and one of `jobs` are for us."""
        self._token = token
        self._batch = jobs
        self.told.clear()
        number = self._board.times_interrupted
        if number != self._times_interrupted:
            self._times_interrupted = number
            self.hear()  # one that came before its claim was known here

    def end(self) -> None:
        """The claim is settled: no interruption can mean it any more."""
        self._token = 0
        self._batch = ()
        self.told.clear()

    def enter(self, job: int, deadline: float, timeout: float, lease: ControlBlock | None = None, long_at: float = FOR_EVER) -> None:
        """A job is about to run; the caller opens the alarm next, and then calls `check` if `told` holds anything.

        deadline: monotonic seconds. timeout: what it came from, in seconds, for the message.
        lease: of a job that must be out before the supervisor's lease can lapse: where its end is written.
        long_at: monotonic seconds at which `on_long` is called, should it still run.
        """
        self.raised = None
        self._job = job
        self._timeout = timeout
        self._lease = lease
        self._deadline = deadline  # before the look at the timer: a ring in between then finds it and arms again
        self._long_at = long_at
        rings = min(deadline, long_at) if lease is None else min(deadline, long_at, lease.lease_deadline - self._margin)
        if rings < self._rings_at:
            self._arm(rings)

    def judge(self, seconds: float) -> JobInterrupted | None:
        """The handler is out, the alarm is closed, and its end is about to be judged: no interruption means that, but it may not last for ever.

        Returns what was raised until now. It is forgotten, or a second word of it, a SIGTERM or a ring, would tear out the judging too, and a cancelled job
        would run again. Whoever called puts it back.
        """
        before, self.raised = self.raised, None
        self._job = 0
        self._lease = None
        self._long_at = FOR_EVER
        self._timeout = seconds
        self._deadline = time.monotonic() + seconds
        if self._deadline < self._rings_at:
            self._arm(self._deadline)
        return before

    def leave(self) -> None:
        """The job is out, and the alarm is closed."""
        self._deadline = self._long_at = FOR_EVER
        self._lease = None
        self._job = 0

    def check(self) -> None:
        """Raise what was said of the current job between the look at it and its start."""
        reason = self.told.pop(self._job, Reason.NONE)
        if reason is not Reason.NONE:
            self._raise(_for_reason(reason), None)

    def hear(self, frame: FrameType | None = None) -> None:
        """Look at the board for an interruption of the current claim. `frame`: what the signal has interrupted, if it was one."""
        self.unheard = False
        said = self._board.interruption()
        if said.reason is Reason.NONE or said.token != self._token or not self._token:
            return
        if said.job == self._job and self.open and not (self.together and said.reason is Reason.CANCEL):
            self._raise(_for_reason(said.reason), frame)
        elif said.job in self._batch:
            self.told[said.job] = said.reason

    def is_intact(self) -> bool:
        """Return whether the handlers are still ours; a look into the interpreter's own table, no system call."""
        return all(map(is_, map(_signal.getsignal, self._numbers), self._handlers))

    def rearm_if_touched(self) -> bool:
        """Put the timer right if somebody stopped or set it; return whether it was as we left it. A system call: for long jobs."""
        marked = self._marked  # before the look: a ring after it may be the first to arm
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        if abs(self._rings_at - time.monotonic() - left) > _EVERY / 10:
            # Who puts back what he found puts it back late; for that alone nobody is taken for worn: see the head.
            self._rings_at = FOR_EVER
        if interval == _MARK or not (marked or interval or left):
            return True
        self._rings_at = FOR_EVER
        signal.setitimer(signal.ITIMER_REAL, _MARK, _MARK)
        self._marked = True
        return False

    # -- called by signals ------------------------------------------------------------------------------------------

    def _ring(self, _number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._rings_at = FOR_EVER
        if self.forked:
            return
        if now >= self._orphan_until:
            _end_group()
        if self._deadline == FOR_EVER:
            return  # it was armed for a job that is out
        if now >= self._long_at:
            self._long_at = FOR_EVER
            self.on_long()
        lapses = FOR_EVER if self._lease is None else self._lease.lease_deadline - self._margin
        if self.open and (self.raised is not None or now >= self._deadline):
            self._time_out(frame)
        elif self.open and now >= lapses:
            self._raise(JobDrained("the supervisor could not renew its lease, and this kind is exclusive"), frame)
        else:
            self._arm(max(min(self._deadline, lapses, self._long_at), now + 0.001))  # too early, or just before the job is open

    def _hear_order(self, _number: int, frame: FrameType | None) -> None:
        if self.forked:
            return
        self.unheard = True
        if self._hearing:
            return  # a storm of interruptions would nest one look in the other until the stack ends
        self._hearing = True
        try:
            while self.unheard:
                self.hear(frame)
        finally:
            self._hearing = False

    def _hear_term(self, _number: int, frame: FrameType | None) -> None:
        if self.forked:
            os._exit(128 + signal.SIGTERM)
        now = time.monotonic()
        if self._wake.orphaned:
            self._orphan_until = now + _LAST_WORDS
            self._wake.dismissed = True
            self._wake.poke()
            if self.open and self.raised is None:
                self._raise(JobDrained("the supervisor is dead"), frame)
            self._arm(self._orphan_until)
        elif self.open and (self.raised is not None or now >= self._deadline):
            self._time_out(frame)
        else:
            self._wake.dismissed = True
            self._wake.poke()

    def _time_out(self, frame: FrameType | None) -> None:
        # Anew each time: the same exception raised twice drags the first time's frames and context along.
        again = self.raised
        self._raise(JobTimeout(f"ran longer than {self._timeout:g} s") if again is None else type(again)(*again.args), frame)

    def _raise(self, interruption: JobInterrupted, frame: FrameType | None) -> None:
        self.raised = interruption
        self._arm(min(time.monotonic() + _EVERY, self._orphan_until))
        interrupt(interruption, frame)

    def _arm(self, at: float) -> None:
        self._rings_at = at
        signal.setitimer(signal.ITIMER_REAL, min(max(0.0005, at - time.monotonic()), _MARK), _MARK)
        self._marked = True

    def _note_fork(self) -> None:
        self.here[0] = 0
        self.open = False


def _page() -> mmap.mmap:
    """Return a page of memory that begins with a 1 here, and with a 0 in every copy of this process: Python tells of those alone that it forks itself.

    The kernel wipes it (Linux 4.14). A look at it costs a twelfth of asking for the number of the process, and it is looked at after each job.
    """
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel that cannot: then only what Python has forked is known
        page.madvise(_WIPE_ON_FORK)
    page[0] = 1
    return page


def _for_reason(reason: Reason) -> JobInterrupted:
    if reason is Reason.CANCEL:
        return JobCancelled("somebody cancelled the job")
    if reason is Reason.DRAIN:
        return JobDrained("the supervisor leaves and can wait no longer")
    return JobLost("the claim is lost")


def _nobody() -> None:
    """No one wants to know."""


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """The terminal's Ctrl-C and hang-up are the parent's business."""


def _leave_now(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + signal.SIGQUIT)


def _end_group() -> None:
    """SIGKILL our own process group, ourselves last of all. Only if we lead it: else it may be a stranger's."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)
