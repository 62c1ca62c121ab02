"""The parent's end of a child's output: emptied before it is full, and read to its end once the child is dead.

What is read goes onto the board, the latest of it, where the child finds it when its job ends. A look costs one system call for each
child that works, four times a second; only a flood is read here, a bounded part of it in each turn. It never waits.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jobherd.workers.inspect.captured import CHUNK
from jobherd.workers.ipc.status_board import OUTPUT

if TYPE_CHECKING:
    from jobherd.workers.ipc.status_board import StatusBoard

_HALF: Final = 32768
"""Of the smallest pipe there is: what is less is left for the child."""
_TURN: Final = 16
"""Chunks in one turn of the loop: a megabyte, some tenths of a millisecond."""


class OutputPipe:
    """One child's output. fd: the reading end of its pipe, ours to close."""

    def __init__(self, fd: int, board: StatusBoard) -> None:
        self.fd = fd
        self._board = board
        self._total = 0
        self._tail = bytearray()
        self._waiting = array.array("i", [0])

    def look(self, now: float = 0.0) -> bool:
        """Empty the pipe if it is half full, or if somebody watches and it holds anything; return whether to look again at once.

        now: monotonic.
        """
        with suppress(OSError):
            fcntl.ioctl(self.fd, termios.FIONREAD, self._waiting)
            if self._waiting[0] >= (1 if now < self._board.watched else _HALF):
                return self._empty()
        return False

    def rest(self) -> bytes:
        """Return what a dead child has said since its last job was through. Read once, and close."""
        self._read()
        self._board.hand_output(self._total, bytes(self._tail))
        os.close(self.fd)
        left = self._total - self._board.output_taken
        return bytes(self._tail[-left:]) if left > 0 else b""

    def _empty(self) -> bool:
        """Read, unless the child is at it; then it is left to it, and looked at again in a while: it may have been stopped in the middle."""
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
            self._board.hand_output(self._total, bytes(self._tail))
