"""Reads a worker's output from its pipe.

The supervisor empties the pipe before it is full, and reads it to its end once the worker is dead.
It writes the latest output to the status board, where the worker finds it when its job ends. A check
costs one system call for each worker, four times a second. Only a large backlog is read here, a
bounded part of it in each turn. Nothing here blocks.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jobherd.workers.inspect.captured import CHUNK
from jobherd.workers.ipc.board_memory import OUTPUT

if TYPE_CHECKING:
    from jobherd.workers.ipc.status_board import StatusBoard

_HALF: Final = 32768
"""Bytes, half of the smallest pipe: less than that is left for the worker to read."""
_TURN: Final = 16
"""Chunks in one turn of the loop: a megabyte, some tenths of a millisecond."""


class OutputPipes:
    """Reads the output pipes of all workers, by slot number."""

    def __init__(self) -> None:
        self._pipes: dict[int, OutputPipe] = {}

    def open(self, number: int, fd: int, board: StatusBoard) -> None:
        """Start reading the output of a slot's new worker."""
        self._pipes[number] = OutputPipe(fd, board)

    def read(self, now: float) -> bool:
        """Empty pipes that need it; return whether to check again at once."""
        again = False
        for pipe in self._pipes.values():
            again = pipe.look(now) or again
        return again

    def close(self, number: int) -> bytes:
        """Return what a dead worker printed after its last finished job."""
        pipe = self._pipes.pop(number, None)
        return b"" if pipe is None else pipe.rest()


class OutputPipe:
    """The output of one worker.

    Attributes:
        fd: the read end of its pipe, closed by this object.
    """

    def __init__(self, fd: int, board: StatusBoard) -> None:
        self.fd = fd
        self._board = board
        self._total = 0
        self._tail = bytearray()
        self._waiting = array.array("i", [0])

    def look(self, now: float = 0.0) -> bool:
        """Empty the pipe if it is half full, or holds anything while a user watches the output.

        Args:
            now: the monotonic time.

        Returns:
            Whether to check again at once.
        """
        with suppress(OSError):
            fcntl.ioctl(self.fd, termios.FIONREAD, self._waiting)
            if self._waiting[0] >= (1 if now < self._board.watched else _HALF):
                return self._empty()
        return False

    def rest(self) -> bytes:
        """Return what a dead worker printed after its last finished job.

        Call it once; it closes the pipe.
        """
        self._read()
        self._board.publish_output(self._total, bytes(self._tail))
        os.close(self.fd)
        left = self._total - self._board.output_taken
        return bytes(self._tail[-left:]) if left > 0 else b""

    def _empty(self) -> bool:
        """Read, unless the worker is reading.

        The worker then reads on, and the pipe is checked again later: the worker may be stopped
        halfway.
        """
        free = not self._board.say_draining(draining=True)
        if free:
            self._read()
        self._board.say_draining(draining=False)
        return free

    def _read(self) -> None:
        before = self._total
        for _ in range(_TURN):
            try:
                chunk = os.read(self.fd, CHUNK)
            except OSError:
                break
            if not chunk:
                break
            self._total += len(chunk)
            self._tail += chunk
            if len(self._tail) > OUTPUT:
                del self._tail[:-OUTPUT]
        if self._total > before:
            self._board.publish_output(self._total, bytes(self._tail))
