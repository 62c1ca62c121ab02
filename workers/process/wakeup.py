"""Where a child waits: the wake pipe, and what ends a wait.

A signal by itself may arrive just before the wait and be slept through; a byte in a pipe cannot. So a signal handler that wants the
loop's attention calls `poke`, and the wait looks at both pipes. Nothing here knows what is waited for.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import Final

_MOST: Final = 4096
_ROUNDS: Final = 64


class Wake:
    """The child's end of its wake pipe.

    dismissed: the parent has closed its end, or somebody sent SIGTERM to this process: finish what you hold and leave.
    files: the numbers of what it holds open.
    ended: the parent has closed its end, or is dead. The kernel closes what the dead had open a moment before their children change
        parents: whoever looks at `orphaned` in that moment takes the dead for alive.
    """

    def __init__(self, fd: int, *, parent: int) -> None:
        self.dismissed = False
        self.ended = False
        self._fd = fd
        self._parent = parent
        self._poked, self._poke = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._poked, select.POLLIN)
        self.files = (fd, self._poked, self._poke)

    @property
    def orphaned(self) -> bool:
        """Whether the parent is dead: whoever it was that forked us is not our parent any more."""
        return os.getppid() != self._parent

    def poke(self) -> None:
        """End the wait, from a signal handler; a full pipe has been poked already."""
        with suppress(OSError):
            os.write(self._poke, b"\1")

    def wait(self, seconds: float) -> bool:
        """Wait until a nudge, a poke, the end of the pipe, or for so long. Return whether a nudge came."""
        nudged = False
        for fd, events in self._poll.poll(max(0.0, seconds) * 1000):
            if events & select.POLLNVAL:
                # A job has closed it. What is held is still ended in order; with nothing to wait on, nothing more is begun.
                self._poll.unregister(fd)
                self.dismissed = True
                continue
            data = _drain(fd)
            if fd == self._fd and (data is None or events & select.POLLHUP):
                # The end of a file can be read for ever: a loop that still holds outcomes would spin on it.
                self._poll.unregister(self._fd)
                self.dismissed = self.ended = True
            elif fd == self._fd and data:
                nudged = True
        return nudged

    def look(self) -> bool:
        """Look without waiting, between two jobs of a batch. Return whether a nudge came."""
        return self.wait(0.0)


def _drain(fd: int) -> bytes | None:
    """Return what can be read, or None at the end of the file."""
    data = b""
    for _ in range(_ROUNDS):  # what a job has put in the pipe's place may have no end
        try:
            part = os.read(fd, _MOST)
        except BlockingIOError:
            return data
        if not part:
            return None
        if len(part) < _MOST:
            return part
        data = part
    return data
