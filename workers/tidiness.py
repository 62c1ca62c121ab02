"""What a job may have left changed in its process, put right where that can be done; where it cannot, the child is worn and will be replaced.

It ends no job and writes nothing.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.main import Body


class Tidiness:
    """What a job may have left changed in its process.

    worn: why this child takes no more jobs, in words; empty while it does.
    """

    def __init__(self, body: Body) -> None:
        self.worn = ""
        self._alarm = body.alarm
        self._threads = _thread._count()  # noqa: SLF001 - all others make a list
        self._known = set(threading.enumerate())
        self._home = os.getcwd()
        self._home_fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._depth = sys.getrecursionlimit()

    def look(self) -> None:
        """Put right what can be put right; once for each claim, a few system calls."""
        if self.worn:
            return
        try:
            moved = os.getcwd() != self._home
        except OSError:
            moved = True
        if moved:
            os.fchdir(self._home_fd)
        sys.setrecursionlimit(self._depth)
        if blocked := signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            self.worn = f"a job blocked signals: {', '.join(signal.Signals(number).name for number in sorted(blocked))}"
        elif not self._alarm.rearm_if_touched():
            self.worn = "a job moved the interval timer"

    def examine(self) -> None:
        """Look whether the job has left this process as it found it; cheap, for it is done after each."""
        alarm = self._alarm
        if alarm.raised is not None:
            self.worn = f"a job was torn out by {type(alarm.raised).__name__}"
        elif not alarm.is_intact():
            alarm.restore()
            self.worn = "a job changed signal handlers"
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
