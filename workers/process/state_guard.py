"""What a job may have left changed in its process, put right where that can be done; where it cannot, the child is worn and will be replaced.

It ends no job and writes nothing. What is put back, by whom:

    interpreter.py      Python's own tables: logging, asyncio, warnings, hooks, `sys.path`
    belongings.py       the process: folder, umask, environment, locale, limits, priority, garbage collection, streams, decimals, signals
    here                replaced: blocked signals, the interval timer, the clock, a thread that is no daemon, a closed session, and what
                        the two others cannot put back
    nobody              imported modules and their attributes; docs/writing-handlers.md names what else stays
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from jobherd.workers.process.process_state import ProcessState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jobherd.workers.process.context import ChildContext


TIDY: Final = 100
"""Looks in a row that found nothing, after which a kind counts as tidy."""
SELDOM: Final = 0.25
"""Seconds between two looks while only tidy kinds run. After each job of a few microseconds a look would take a third of the time; between two
claims of longer jobs, which leave no cache warm, the whole of it was measured to take 0.7 ms, one part in eighty of three jobs of 20 ms."""


class StateGuard:
    """What a job may have left changed in its process.

    whole: says whether the session with the database is still the one that was opened. files: further files of ours. shared: those that strangers have open too.
    worn: why this child takes no more jobs, in words; empty while it does.
    tidy: kinds whose jobs have left nothing so far. due: when it is looked in any case, whoever ran.
    """

    def __init__(
        self, context: ChildContext, *, whole: Callable[[], bool] = lambda: True, files: Iterable[int] = (), shared: Iterable[int] = ()
    ) -> None:
        self.worn = ""
        self._interrupts = context.interrupts
        self._blocked = context.blocked
        self._threads = _thread._count()  # noqa: SLF001 - all others make a list
        self._known = set(threading.enumerate())
        wake, spec = context.wake, context.spec
        self._belongings = ProcessState((0, 1, 2, *wake.files, spec.report, spec.control.fd, spec.board.fd, *files), shared)
        self._whole = whole
        self._clock = time.monotonic
        self.tidy: set[str] = set()
        self.due = 0.0
        self._found_nothing: dict[str, int] = {}
        self._ran = True
        """Something may have been left since it was last looked at everything."""

    def put_back(self, kind: str, now: float) -> None:
        """Put right what the next job of the same claim would trip over. After each job, but seldom while kinds run that are tidy.

        Whoever is found out is looked after each time again, and so are all the others: it may have been one of them.
        """
        self.due, self._ran = now + SELDOM, True
        if self._belongings.put_back_soon():
            self._found_nothing.clear()
            self.tidy.clear()
            return
        looks = self._found_nothing[kind] = self._found_nothing.get(kind, 0) + 1
        if looks >= TIDY:
            self.tidy.add(kind)

    def look(self, now: float) -> None:
        """Put right what can be put right; between two claims, a few system calls, and many where that is due."""
        if self.worn:
            return
        whole = self._whole()  # first: what stands at its place is somebody else's
        if (mask := signal.pthread_sigmask(signal.SIG_BLOCK, ())) != self._blocked:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
            changed = ", ".join(getattr(number, "name", f"signal {number}") for number in sorted(mask ^ self._blocked))
            self.worn = f"a job {'blocked' if mask - self._blocked else 'unblocked'} signals: {changed}"
        elif not self._interrupts.rearm_if_touched():
            self.worn = "a job moved the interval timer"
        elif not whole:
            self.worn = "a job closed the session of its worker"
        elif self._ran or now >= self.due:
            self._ran = False
            found, lost = self._belongings.put_back()
            if lost:
                self.worn = f"a job {lost}"
            elif found:
                self._found_nothing.clear()
                self.tidy.clear()

    def examine(self) -> None:
        """Look whether the job has left this process as it found it; cheap, for it is done after each."""
        interrupts = self._interrupts
        if interrupts.raised is not None:
            self.worn = f"a job was torn out by {type(interrupts.raised).__name__}"
        elif not interrupts.is_intact():
            interrupts.restore()
            self.worn = "a job changed signal handlers"
        elif time.monotonic is not self._clock:
            # By another one no deadline is right: the next job would be ended in the moment it begins, or a lease be held for ever.
            time.monotonic = self._clock
            self.worn = "a job put another clock in the place of time.monotonic"
        elif _thread._count() != self._threads and (left := self._threads_left()):  # noqa: SLF001 - all others make a list
            self.worn = f"a job left a thread behind: {left}"

    def _threads_left(self) -> str:
        """Return the names of threads that a job left behind, or nothing if what it left are daemons.

        Libraries keep daemons for as long as the process lives, a pool of connections is one: a child that was replaced for it would be
        replaced after each job.
        """
        now = set(threading.enumerate())
        left = [thread.name for thread in now - self._known if not thread.daemon]
        self._known = now
        self._threads = _thread._count()  # noqa: SLF001
        return ", ".join(left)
