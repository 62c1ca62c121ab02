"""The parent's signals: a handler that only leaves a byte, and a pipe the loop can wait on.

`signal.set_wakeup_fd` writes a byte for each signal into the pipe, from C, before any Python runs; the Python handlers only note which.
So nothing happens between two arbitrary lines of the program, and no signal can arrive just before a wait and be slept through.
"""

from __future__ import annotations

import os
import signal
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


class SignalPipe:
    """The end of the pipe that the loop waits on."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._noted: set[int] = set()

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        """Remember which; the byte is in the pipe already, unless a storm of others has filled it."""
        self._noted.add(signum)

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
        """Hear the signals inside the block, and put the former handlers back after it."""
        before = {signum: signal.signal(signum, self._note) for signum in HEARD}
        old = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old)
            for signum, handler in before.items():
                signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
