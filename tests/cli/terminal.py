"""A command on its own pseudo-terminal. Tests read the text on the screen, not the bytes written."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pyte

from tests.cli.shell import COMMAND, LIMIT, environment

if TYPE_CHECKING:
    from collections.abc import Callable


class Terminal:
    """A terminal of `columns` by `lines`, with a command in the foreground.

    tostop: the kernel stops background processes that write to it, as after `stty tostop`.
    """

    def __init__(
        self, *words: object, dsn: str, columns: int = 80, lines: int = 24, tostop: bool = False, **more: str
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.code: int | None = None
        self.raw = b""
        # Unlike openpty, this makes it the controlling terminal: the kernel signals a new size.
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
                if tostop:
                    modes = termios.tcgetattr(0)
                    modes[3] |= termios.TOSTOP
                    termios.tcsetattr(0, termios.TCSANOW, modes)
                os.execve(COMMAND[0], [*COMMAND, *map(str, words)], environment(dsn, TERM="xterm-256color", **more))
            finally:
                os._exit(127)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            os.kill(self._pid, 9)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def line(self, start: str) -> str:
        """Return the first line of the screen that begins with this text."""
        return next((line for line in self.lines if line.startswith(start)), "")

    def on_key(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def tell(self, signum: int) -> None:
        os.kill(self._pid, signum)

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self.screen.reset()
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait(self, *wanted: str | Callable[[], object]) -> None:
        """Wait until the screen shows all these texts, and all these functions return true."""
        until = time.monotonic() + LIMIT
        while not all(each in self.text if isinstance(each, str) else each() for each in wanted):
            assert select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0], (
                f"the screen does not show {wanted}:\n{self.text}"
            )
            assert self._take(), f"the command ended before {wanted}:\n{self.text}"

    def wait_exit(self) -> int:
        """Wait for the command's end and return its exit code."""
        until = time.monotonic() + LIMIT
        while select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0] and self._take():
            pass
        assert time.monotonic() < until, f"the command does not end:\n{self.text}"
        _, status = os.waitpid(self._pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def _take(self) -> bool:
        data = b""
        with suppress(OSError):  # how a terminal reports that no process has its other end open
            data = os.read(self._fd, 65536)
        self.raw += data
        self._stream.feed(data)
        return bool(data)
