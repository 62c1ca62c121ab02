"""Records the supervisor's signals, and writes a byte for each into a pipe that the loop waits on.

`signal.set_wakeup_fd` writes a byte for each signal into the pipe, from C, before any Python code
runs. The Python handlers only record which signal it was. So no handler interrupts the program
between two arbitrary lines, and a signal just before a wait ends that wait.

The process always handles these signals. They are blocked until there are handlers, and signals
from before the loop are kept for it. They are blocked again from the end of the loop to the end of
the process, when the interpreter removes the handlers. One case cannot wait for the loop: a signal
to stop while the process waits for a database raises `StopRequested`.
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

HANDLED: Final = (
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


class StopRequested(BaseException):  # not an Exception: logging, which may be running at that time, swallows those
    """A signal to stop came before the loop started.

    Raised because a connection attempt cannot be interrupted in another way.
    """


def is_stop_request(problem: BaseException | None) -> bool:
    """Return whether this is StopRequested, or an exception that wraps it.

    Python 3.11 wraps any exception that is raised while a class is being created.

    >>> is_stop_request(StopRequested()), is_stop_request(ValueError())
    (True, False)
    """
    while problem is not None and not isinstance(problem, StopRequested):
        problem = problem.__cause__
    return problem is not None


def hold() -> None:
    """Block the signals until handlers are installed, and whenever there are none."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


class SignalPipe:
    """The end of the pipe that the loop waits on.

    Attributes:
        raises: the loop does not run yet, and the first signal to stop raises StopRequested.
    """

    def __init__(self, *, raises: bool = False) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.raises = raises
        self._noted: set[int] = set()

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        """Record the signal.

        Its byte is in the pipe already, unless many other signals have filled it.
        """
        self._noted.add(signum)
        if self.raises and signum in _STOP:
            self.raises = False  # do not interrupt code that is already unwinding
            # a connection that is interrupted while it is created has no owner yet to close it
            warnings.simplefilter("ignore", ResourceWarning)
            raise StopRequested

    def check(self) -> None:
        """Raise StopRequested if a signal to stop has already come.

        It may have been raised inside a finalizer, which swallows exceptions.
        """
        if _STOP & self._noted:
            raise StopRequested

    def read(self) -> set[int]:
        """Return the signals since the last call, each once."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
        noted, self._noted = self._noted, set()
        return noted

    def close(self) -> None:
        """Close both ends."""
        os.close(self.fd)
        os.close(self._write)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.fd

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals inside the block; then restore the former handlers and mask."""
        before = {signum: signal.signal(signum, self._note) for signum in HANDLED}
        old = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            yield
        finally:
            self.raises = False
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.set_wakeup_fd(old)
            for signum, handler in before.items():
                signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
