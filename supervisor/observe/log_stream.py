"""The parent's standard error, written without ever waiting: for nobody may stop the parent by not reading what it says.

What does not go at once is kept, so much of it, and tried again in each turn of the loop; what comes beyond that is dropped and counted.
Who reads slowly loses nothing; who has stopped reading does not stop a kill, a reap or a wake-up. A file is written as it is: there is no
way to write one without waiting, and no disk that keeps a page in memory waiting for long.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MOST: Final = 64 * 1024
"""Bytes that are kept for a reader that is slow."""


class LogStream:
    """Where the log of this process goes. dropped: how many lines were, so far."""

    def __init__(self, fd: int = 2) -> None:
        self.dropped = 0
        self.fds: list[int] = []
        """What a child must close."""
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._socket: socket.socket | None = None
        self._send = self._sender(fd)

    def write(self, text: str) -> int:
        """Say it, now or when there is room."""
        line = text.encode(errors="backslashreplace")
        if self._size + len(line) > MOST:
            self.flush()
        if self._size + len(line) > MOST:
            self.dropped += 1
        else:
            self._lines.append(line)
            self._size += len(line)
        return len(text)

    def flush(self) -> None:
        """Say what there is room for."""
        lines = self._lines
        try:
            while lines:
                line = lines.popleft()  # before it is said: a signal that raises right after would have it said again
                self._size -= len(line)
                try:
                    sent = self._send(line)
                except BlockingIOError:
                    sent = 0
                if rest := line[sent:]:
                    lines.appendleft(rest)
                    self._size += len(rest)
                if not sent:
                    return
        except OSError:  # nobody is there any more
            self.dropped += 1 + len(lines)
            lines.clear()
            self._size = 0

    @property
    def waits(self) -> bool:
        """Whether there is something that was not read yet."""
        return bool(self._lines)

    def isatty(self) -> bool:
        """Whether people look at it."""
        return os.isatty(self._fd)

    def close(self) -> None:
        """Say nothing more."""
        if self._socket is not None:
            self._socket.close()
        else:
            for fd in self.fds:
                os.close(fd)

    def _sender(self, fd: int) -> Callable[[bytes], int]:
        kind = os.fstat(fd).st_mode
        if stat.S_ISSOCK(kind):
            own = self._socket = socket.socket(fileno=os.dup(fd))
            self.fds.append(own.fileno())
            return lambda data: own.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        if not (stat.S_ISFIFO(kind) or os.isatty(fd)):
            return lambda data: os.write(fd, data)
        try:
            # Opened anew: that what we have shares its flags with our children, and with the shell that started us.
            own_fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:  # it belongs to another user, or nobody reads it yet
            return lambda data: _write_if_free(fd, data)
        self.fds.append(own_fd)
        return (lambda data: _write_to_terminal(own_fd, data)) if os.isatty(fd) else (lambda data: os.write(own_fd, data))


def _write_to_terminal(fd: int, data: bytes) -> int:
    """Write to it, in the background too: under `stty tostop` the kernel says SIGTTOU instead, and as often as the write is tried again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        return os.write(fd, data)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _write_if_free(fd: int, data: bytes) -> int:
    """Write a part that fits whenever there is room at all."""
    room = select.poll()
    room.register(fd, select.POLLOUT)
    if not room.poll(0):
        raise BlockingIOError
    return _write_to_terminal(fd, data[: select.PIPE_BUF])
