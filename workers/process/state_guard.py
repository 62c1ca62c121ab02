"""Restores what a job may have changed in its process, or marks the worker as due for replacement.

It ends no job and writes nothing. What is restored, and where:

    interpreter.py      Python's own tables: logging, asyncio, warnings, hooks, `sys.path`
    process_state.py    the process: folder, umask, environment, locale, limits, priority, garbage
                        collection, streams, decimals, signals
    here                replaced: blocked signals, the interval timer, the clock, a thread that is
                        not a daemon, a closed session, and what the two others cannot restore
    not restored        imported modules and their attributes; docs/explanation/process-state.md names what
                        else stays
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


CLEAN: Final = 100
"""Consecutive checks without a change after which a kind counts as clean."""
SELDOM: Final = 0.25
"""Seconds between two checks while only clean kinds run. After each job of a few microseconds, a
check would take a third of the time. Between two claims of longer jobs, with cold caches, the whole
check was measured to take 0.7 ms, one part in eighty of three jobs of 20 ms.
"""


class StateGuard:
    """Detects and restores what a job may have changed in its process.

    whole: returns whether the database session is still the one that was opened.
    files: further file descriptors of Jobherd. shared: those that other processes have open too.
    recycle_reason: why this worker takes no more jobs, in words. Empty while it does.
    clean: kinds whose jobs have changed nothing so far. due: when the next check is made for every
    kind.
    """

    def __init__(
        self,
        context: ChildContext,
        *,
        whole: Callable[[], bool] = lambda: True,
        files: Iterable[int] = (),
        shared: Iterable[int] = (),
    ) -> None:
        self.recycle_reason = ""
        self._interrupts = context.interrupts
        self._blocked = context.blocked
        self._threads = _thread._count()  # noqa: SLF001 - all alternatives build a list
        self._known = set(threading.enumerate())
        wake, spec = context.wake, context.spec
        self._belongings = ProcessState(
            (0, 1, 2, *wake.files, spec.report, spec.control.fd, spec.board.fd, *files), shared
        )
        self._whole = whole
        self._clock = time.monotonic
        self.clean: set[str] = set()
        self.due = 0.0
        self._found_nothing: dict[str, int] = {}
        self._ran = True
        """Whether a job may have changed something since the last full check."""

    def restore(self, kind: str, now: float) -> None:
        """Restore what would affect the next job of the same claim.

        Called after each job, but seldom while only clean kinds run. After a change is found, every
        kind is checked after each job again: another kind may have caused it.
        """
        self.due, self._ran = now + SELDOM, True
        if self._belongings.restore_for_next_job():
            self._found_nothing.clear()
            self.clean.clear()
            return
        looks = self._found_nothing[kind] = self._found_nothing.get(kind, 0) + 1
        if looks >= CLEAN:
            self.clean.add(kind)

    def look(self, now: float) -> None:
        """Restore what can be restored, between two claims.

        Costs a few system calls, and many if a full check is due.
        """
        if self.recycle_reason:
            return
        whole = self._whole()  # First: if the session is not whole, another file has its descriptor.
        if (mask := signal.pthread_sigmask(signal.SIG_BLOCK, ())) != self._blocked:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
            changed = ", ".join(getattr(number, "name", f"signal {number}") for number in sorted(mask ^ self._blocked))
            self.recycle_reason = f"a job {'blocked' if mask - self._blocked else 'unblocked'} signals: {changed}"
        elif not self._interrupts.timer.rearm_if_touched():
            self.recycle_reason = "a job moved the interval timer"
        elif not whole:
            self.recycle_reason = "a job closed the session of its worker"
        elif self._ran or now >= self.due:
            self._ran = False
            found, lost = self._belongings.restore()
            if lost:
                self.recycle_reason = f"a job {lost}"
            elif found:
                self._found_nothing.clear()
                self.clean.clear()

    def examine(self) -> None:
        """Check whether the job has left this process unchanged.

        Cheap, because it runs after each job; among short jobs of clean kinds, every 0.2 ms (`LOOK`).
        """
        interrupts = self._interrupts
        if interrupts.raised is not None:
            self.recycle_reason = f"a job was interrupted by {type(interrupts.raised).__name__}"
        elif not interrupts.is_intact():
            interrupts.restore()
            self.recycle_reason = "a job changed signal handlers"
        elif time.monotonic is not self._clock:
            # With another clock every deadline is wrong: the next job would be ended when it
            # begins, or a lease be held indefinitely.
            time.monotonic = self._clock
            self.recycle_reason = "a job replaced time.monotonic"
        elif _thread._count() != self._threads and (left := self._threads_left()):  # noqa: SLF001 - all alternatives build a list
            self.recycle_reason = f"a job left a thread behind: {left}"

    def _threads_left(self) -> str:
        """Return the names of threads that a job left behind, or an empty string if all are daemons.

        Libraries keep daemon threads for as long as the process lives, for example a connection
        pool. A worker that was replaced for one would be replaced after each job.
        """
        now = set(threading.enumerate())
        left = [thread.name for thread in now - self._known if not thread.daemon]
        self._known = now
        self._threads = _thread._count()  # noqa: SLF001
        return ", ".join(left)
