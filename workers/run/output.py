"""What a handler prints and logs while it runs, kept with the attempt: the latest of it, whoever in the process wrote it.

Standard output and standard error of a worker are one pipe, so C code and programs that a handler starts are heard too. Its reading end is
here and in the parent. The child reads it when a job ends that may have said something; a job that is short and silent costs no system
call. While a job runs long, the parent drains the pipe before it is full (nobody who prints may be stopped by it) and leaves the end of it
on the board; and when the child dies, what was not read yet is the last that the job said.

In the pipe a line may begin with a mark of ours: what went through `logging`, and the entries of `job.log(key, ...)`. Log lines have
gone to the real standard error already; what was printed is passed on to it when the job ends, each line as the message of a log line: printed as it
is, a line from a payload could pass for one of the log. This module must not raise into a handler.
"""

from __future__ import annotations

import array
import fcntl
import io
import logging
import os
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

import orjson

from jobherd.handlers._values.sanitize import sanitize
from jobherd.workers.inspect.captured import CHUNK, ENTRY, LOGGED, digest
from jobherd.workers.ipc.status_board import OUTPUT
from jobherd.workers.process.logs import LONGEST, TextFormatter, make_formatter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.workers.ipc.status_board import StatusBoard

_MUCH: Final = 16384
"""Bytes that this process prints before it reads the pipe itself: with nobody else reading, it must not fill it."""
_ROUNDS: Final = 64
"""Chunks read at the end of a job: what it has started may print for ever."""
_LONGEST_ENTRY: Final = 16384
_AT_ONCE: Final = 4096
"""Bytes that a pipe takes in one piece: lines of several processes must not be mixed up."""


class Output:
    """The child's end of its output.

    board: where the parent leaves what it has drained. reading, writing: the two ends of the pipe. size: bytes kept of one attempt.
    who, log_format: how lines of the log look, as in `logs.set_up`.
    dirty: this process has printed or logged something since the last look.
    stream: the real standard error. files: the numbers of what it holds open.
    """

    def __init__(
        self, board: StatusBoard, *, reading: int, writing: int, size: int = OUTPUT, who: str = "", log_format: str = "text"
    ) -> None:
        self.dirty = False
        self._board = board
        self._reading = reading
        self._size = size
        self._formatter = make_formatter(who, log_format)
        self._pid = os.getpid()
        self._kept = bytearray()
        self._drained = board.times_drained
        self._printed = 0
        self._waiting = array.array("i", [0])
        flush()
        self._real = os.dup(2)
        self.stream: TextIO = open(self._real, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115  # for life
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        sys.stdout, sys.stderr = self._open(1), self._open(2)
        self.files = (reading, self._real)

    def _open(self, fd: int) -> TextIO:
        return _Text(io.BufferedWriter(_Raw(fd, self)), self)

    def handler(self, who: str, ids: Callable[[], Mapping[str, object]]) -> logging.Handler:
        """Return what sends log lines here while a job runs, which is when `ids` names one."""
        return _Handler(self, TextFormatter(who, ids), ids)

    # -- written to ---------------------------------------------------------------------------------------------------

    def note(self, size: int) -> None:
        """This process is about to print so many bytes."""
        self.dirty = True
        self._printed += size
        if self._printed > _MUCH and os.getpid() == self._pid:  # a copy that the handler has forked would take it from us
            self._read()

    def enter(self, entry: Mapping[str, object]) -> None:
        """Put down an entry of `job.log(key, ...)`."""
        try:
            line = orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS)
        except (TypeError, ValueError, RecursionError):
            line = orjson.dumps({"key": sanitize(entry.get("key"), 200), "out": "<an entry that is no JSON>"})
        self.write(ENTRY + line + b"\n")

    def write(self, data: bytes) -> None:
        """Put down whole lines."""
        self.note(len(data))
        with suppress(OSError):
            os.write(1, data)

    # -- taken ----------------------------------------------------------------------------------------------------------

    def is_pending(self) -> bool:
        """Return whether there is something to take. A system call."""
        if self.dirty or self._kept or self._board.times_drained != self._drained:
            return True
        return self._is_waiting()

    def peek(self) -> str | None:
        """Return what was said since the last `take`, as `digest` does, and keep it."""
        flush()
        self._read()
        self.dirty = False
        return digest(bytes(self._kept))

    def take(self, ids: Mapping[str, object] | None = None) -> str | None:
        """Return what was said since the last call, as `digest` does, and pass on what was printed to the real standard error.

        ids: whose it is, for the log; default nobody's.
        """
        said = self.peek()
        if said is not None:
            printed = [line for line in bytes(self._kept).split(b"\n") if line and line[:1] not in (ENTRY, LOGGED)]
            self._kept.clear()
            if printed:
                self._pass_on(printed, ids or {})
        return said

    def _pass_on(self, lines: list[bytes], ids: Mapping[str, object]) -> None:
        record = logging.LogRecord("jobherd.output", logging.INFO, "", 0, "", None, None)
        record.__dict__.update(ids)
        waiting = b""
        with suppress(OSError):
            for line in lines:
                text = line.decode(errors="replace").removesuffix("\r")
                for start in range(0, len(text), LONGEST):
                    record.msg = text[start : start + LONGEST]
                    said = self._formatter.format(record).encode(errors="backslashreplace") + b"\n"
                    if waiting and len(waiting) + len(said) > _AT_ONCE:
                        os.write(self._real, waiting)
                        waiting = b""
                    waiting += said
            os.write(self._real, waiting)

    def _read(self) -> None:
        self._printed = 0
        self._board.say_reading(reading=True)  # the parent gives way until it is through, or later words came before earlier ones
        try:
            self._keep(self._board.take_output())
            self._drained = self._board.times_drained
            for _ in range(_ROUNDS):
                try:
                    # Not read until it is empty: a job may have changed it so that the last read waits for ever.
                    chunk = os.read(self._reading, CHUNK) if self._is_waiting() else b""
                except OSError:
                    break
                if not chunk:
                    break
                self._keep(chunk)
        finally:
            self._board.say_reading(reading=False)

    def _is_waiting(self) -> bool:
        self._waiting[0] = 0
        with suppress(OSError):
            fcntl.ioctl(self._reading, termios.FIONREAD, self._waiting)
        return self._waiting[0] > 0

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > self._size:
            del self._kept[: -self._size]


class _Raw(io.FileIO):
    """Standard output or error of this process, as Python code writes to it."""

    def __init__(self, fd: int, output: Output) -> None:
        super().__init__(fd, "w", closefd=False)
        self._output = output

    def write(self, data: Any) -> int:
        """Write all of it; of what is longer than an attempt keeps only the end is of use."""
        view = memoryview(data).cast("B")
        total = len(view)
        view = view[-OUTPUT:]
        while view:
            part = view[:_MUCH]
            self._output.note(len(part))
            view = view[super().write(part) or len(part) :]
        return total


class _Text(io.TextIOWrapper):
    def __init__(self, buffer: io.BufferedWriter, output: Output) -> None:
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self._output = output

    def write(self, text: str) -> int:
        """Write, and be looked for: a line without an end stays in the buffer."""
        self._output.dirty = True
        return super().write(text)


class _Handler(logging.Handler):
    def __init__(self, output: Output, formatter: logging.Formatter, ids: Callable[[], Mapping[str, object]]) -> None:
        super().__init__()
        self._output = output
        self._ids = ids
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Put the line down, if a job runs."""
        if self._ids():
            with suppress(ValueError, TypeError, RecursionError, MemoryError):
                text = self.format(record).encode(errors="replace").replace(b"\n", b"\n" + LOGGED)
                self._output.write(LOGGED + text + b"\n")


def flush() -> None:
    """Flush standard output and error. By now they may be somebody's own objects, or nothing: what those raise must end neither job nor worker."""
    for name in ("stdout", "stderr"):
        with suppress(BaseException):
            getattr(sys, name).flush()
