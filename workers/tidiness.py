"""What a job may have left changed in its process, put right where that can be done. It ends no job and writes nothing."""

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
