"""Where a child process waits: the wake pipe, and what ends a wait.

A signal may arrive just before the wait and not end it. A byte in a pipe cannot be missed like
that. So a signal handler that must end the wait calls `poke`, and the wait polls both pipes. This
module does not know what is waited for.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import Final, Protocol

_MOST: Final = 4096
_ROUNDS: Final = 64


class Source(Protocol):
    """Something from which jobs come without a wake."""

    @property
    def has_arrived(self) -> bool:
        """Whether it has something to take without waiting."""

    def fileno(self) -> int:
        """Return the file that can be read when something comes."""


class Wake:
    """The child process's end of its wake pipe.

    dismissed: the supervisor has closed its end, or this process got a SIGTERM: finish what is held
    and exit.
    files: the file descriptors that this object holds open.
    source: where jobs come from to a worker without a database.
    ended: the supervisor has closed its end, or is dead. The kernel closes the files of a dead
    process just before its child processes get another parent. A check of `orphaned` in between
    takes the dead supervisor for alive.
    """

    def __init__(self, fd: int, *, parent: int) -> None:
        self.dismissed = False
        self.ended = False
        self._fd = fd
        self._parent = parent
        self.source: Source | None = None
        self._source_fd = -1
        self._poked, self._poke = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._poked, select.POLLIN)
        self.files = (fd, self._poked, self._poke)

    @property
    def orphaned(self) -> bool:
        """Whether the supervisor is dead: then this process has another parent."""
        return os.getppid() != self._parent

    def rest(self, seconds: float) -> bool:
        """Wait as `wait` does, and also until jobs come from `source`, which counts as a wake."""
        source = self.source
        if source is None:
            return self.wait(seconds)
        if source.has_arrived:
            return True
        self._source_fd = source.fileno()
        self._poll.register(self._source_fd, select.POLLIN)
        try:
            return self.wait(seconds)
        finally:
            self._poll.unregister(self._source_fd)
            self._source_fd = -1

    def poke(self) -> None:
        """End the wait, from a signal handler. A full pipe ends it already."""
        with suppress(OSError):
            os.write(self._poke, b"\1")

    def wait(self, seconds: float) -> bool:
        """Wait for a wake, a poke or the end of the pipe, at most `seconds`.

        Return whether a wake arrived.
        """
        woken = False
        for fd, events in self._poll.poll(max(0.0, seconds) * 1000):
            if fd == self._source_fd:
                woken = True  # Its reader reads it, and finds out if it is closed.
                continue
            if events & select.POLLNVAL:
                # A job has closed it. Held jobs are still finished in order, but nothing new
                # begins, because no wait is possible.
                self._poll.unregister(fd)
                self.dismissed = True
                continue
            data = _drain(fd)
            if fd == self._fd and (data is None or events & select.POLLHUP):
                # The end of a file is always readable: a loop that still holds outcomes would spin
                # on it.
                self._poll.unregister(self._fd)
                self.dismissed = self.ended = True
            elif fd == self._fd and data:
                woken = True
        return woken

    def look(self) -> bool:
        """Check without waiting, between two jobs of a claim. Return whether a wake arrived."""
        return self.wait(0.0)


def _drain(fd: int) -> bytes | None:
    """Return what can be read, or None at the end of the file."""
    data = b""
    for _ in range(_ROUNDS):  # A job may have put an endless file in the pipe's place.
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
