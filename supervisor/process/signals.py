"""The parent's signals: a handler that only leaves a byte, and a pipe the loop can wait on.

`signal.set_wakeup_fd` writes a byte for each signal into the pipe, from C, before any Python runs; the Python handlers only note which.
So nothing happens between two arbitrary lines of the program, and no signal can arrive just before a wait and be slept through.

No signal finds the process without an answer: they are held back until there are handlers, what comes before the loop stands is kept for
it, and they are held back again from its end to that of the process, when the interpreter takes the handlers away. One thing cannot wait
for the loop: to be told to stop while a database is waited for, so that raises.
"""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

HEARD: Final = (
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
)
_STOP: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})


class ToldToStop(BaseException):  # not an Exception: logging, which may be at work when it comes, swallows those
    """One of these came before the loop stood. Raised, since a connection that is being made cannot be asked to stop."""


def told_to_stop(problem: BaseException | None) -> bool:
    """Whether this is ToldToStop, or what somebody between made of it: Python 3.11 wraps whatever is raised while a class is being made.

    >>> told_to_stop(ToldToStop()), told_to_stop(ValueError())
    (True, False)
    """
    while problem is not None and not isinstance(problem, ToldToStop):
        problem = problem.__cause__
    return problem is not None


def hold() -> None:
    """Hold the signals back until somebody hears them, and whenever nobody does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)


class SignalPipe:
    """The end of the pipe that the loop waits on.

    raises: the loop does not stand yet, and the first signal that says to stop raises ToldToStop.
    """

    def __init__(self, *, raises: bool = False) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.raises = raises
        self._noted: set[int] = set()

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        """Remember which; the byte is in the pipe already, unless a storm of others has filled it."""
        self._noted.add(signum)
        if self.raises and signum in _STOP:
            self.raises = False  # what is on its way out is not torn out of that
            warnings.simplefilter("ignore", ResourceWarning)  # a connection that is torn while it is made has nobody yet to close it
            raise ToldToStop

    def check(self) -> None:
        """Raise ToldToStop if that was raised before: who heard it may have been a finalizer, of which nothing is passed on."""
        if _STOP & self._noted:
            raise ToldToStop

    def read(self) -> set[int]:
        """Return the signals that have come since the last call, each once."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
        heard, self._noted = self._noted, set()
        return heard

    def close(self) -> None:
        """Close both ends."""
        os.close(self.fd)
        os.close(self._write)

    def fileno(self) -> int:
        """Return the file number to wait on."""
        return self.fd

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear the signals inside the block; after it, former handlers are back, and held back is what was before it."""
        before = {signum: signal.signal(signum, self._note) for signum in HEARD}
        old = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
            yield
        finally:
            self.raises = False
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.set_wakeup_fd(old)
            for signum, handler in before.items():
                signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
