"""Writes the supervisor's standard error without blocking.

A reader that stops must not stop the supervisor. Output that cannot be written at once is kept, up
to a limit, and tried again in each turn of the loop. Lines beyond that are dropped and counted. A
slow reader loses nothing; a reader that has stopped does not delay a kill, a reap or a wake-up. A
file is written directly: there is no non-blocking write to a file, and a write to the page cache
does not wait long for the disk.
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
"""Bytes that are kept for a slow reader."""


class LogStream:
    """The stream for the log of this process.

    Attributes:
        dropped: number of lines dropped so far.
    """

    def __init__(self, fd: int = 2) -> None:
        self.dropped = 0
        self.fds: list[int] = []
        """Descriptors that a child must close."""
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._socket: socket.socket | None = None
        self._send = self._sender(fd)

    def write(self, text: str) -> int:
        """Write the text, now or when there is room."""
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
        """Write as much as there is room for."""
        lines = self._lines
        try:
            while lines:
                line = lines.popleft()  # remove it first: after a signal that raises, the line would be written twice
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
        except OSError:  # the reader is gone
            self.dropped += 1 + len(lines)
            lines.clear()
            self._size = 0

    @property
    def waits(self) -> bool:
        """Whether some output is still to be written."""
        return bool(self._lines)

    def isatty(self) -> bool:
        """Whether the output is a terminal."""
        return os.isatty(self._fd)

    def close(self) -> None:
        """Close the stream; nothing more is written."""
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
            # Open it again: the inherited one shares its flags with child processes and the shell.
            own_fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:  # it belongs to another user, or has no reader yet
            return lambda data: _write_if_free(fd, data)
        self.fds.append(own_fd)
        return (
            (lambda data: _write_to_terminal(own_fd, data)) if os.isatty(fd) else (lambda data: os.write(own_fd, data))
        )


def _write_to_terminal(fd: int, data: bytes) -> int:
    """Write to a terminal, even from a background process.

    Under `stty tostop` the kernel would send SIGTTOU instead, on each attempt.
    """
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
