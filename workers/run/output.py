"""Captures what a job prints and logs; the end of this output is stored with the attempt.

Standard output and standard error of a worker are one pipe, so the output of C code and of programs
that a handler starts is captured too. The worker and the supervisor hold its reading end. The
worker reads the pipe when a job ends that may have printed something. A short, silent job costs no
system call. While a job runs long, the supervisor empties the pipe before it is full, because a
full pipe would block the process that prints. It leaves the end of the output on the status board.
When the worker dies, the unread rest is the last output of the job.

A line in the pipe may begin with a prefix of Jobherd: log lines, and the entries of `job.log(key,
...)`. Log lines have already been written to the real standard error. Printed text is passed on to
it when the job ends, each line as the message of a log line. Passed on unchanged, a line from a
payload could look like a log line. This module must not raise into a handler.
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
from jobherd.workers.ipc.board_memory import OUTPUT
from jobherd.workers.process.logs import LONGEST, TextFormatter, make_formatter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.spec import ChildSpec

_MUCH: Final = 16384
"""Bytes that this process prints before it reads the pipe itself. If no other process reads, this
process must not fill the pipe.
"""
_ROUNDS: Final = 64
"""Chunks read at the end of a job. A program that the job has started may print indefinitely."""
_AT_ONCE: Final = 4096
"""Bytes that a pipe takes in one piece. Lines of several processes must not be mixed up."""


class Output:
    """The worker's end of its output.

    board: where the supervisor leaves what it has read. reading, writing: the two ends of the pipe.
    size: bytes kept of one attempt. process, log_format: the format of log lines, as in `logs.set_up`.
    dirty: whether this process has printed or logged something since the last check.
    stream: the real standard error. files: file descriptors that this object holds open.
    """

    def __init__(
        self,
        board: StatusBoard,
        *,
        reading: int,
        writing: int,
        size: int = OUTPUT,
        process: str = "",
        log_format: str = "text",
    ) -> None:
        self.dirty = False
        self._board = board
        self._reading = reading
        self._size = size
        self._formatter = make_formatter(process, log_format)
        self._pid = os.getpid()
        self._kept = bytearray()
        self._drained = board.times_drained
        self._printed = 0
        self._waiting = array.array("i", [0])
        flush()
        self._real = os.dup(2)
        # open until the process exits
        self.stream: TextIO = open(  # noqa: SIM115
            self._real, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
        )
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        sys.stdout, sys.stderr = self._open(1), self._open(2)
        self.files = (reading, self._real)

    def _open(self, fd: int) -> TextIO:
        return _Text(io.BufferedWriter(_Raw(fd, self)), self)

    def handler(self, process: str, ids: Callable[[], Mapping[str, object]]) -> logging.Handler:
        """Return a handler that captures log lines while a job runs, which is when `ids` names one."""
        return _Handler(self, TextFormatter(process, ids), ids)

    # -- written to

    def note(self, size: int) -> None:
        """Note that this process is about to print this many bytes."""
        self.dirty = True
        self._printed += size
        # A copy that the handler has forked would take the output from this process.
        if self._printed > _MUCH and os.getpid() == self._pid:
            self._read()

    def enter(self, entry: Mapping[str, object]) -> None:
        """Write an entry of `job.log(key, ...)`."""
        try:
            line = orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS)
        except (TypeError, ValueError, RecursionError):
            line = orjson.dumps({"key": sanitize(entry.get("key"), 200), "out": "<an entry that is not JSON>"})
        self.write(ENTRY + line + b"\n")

    def write(self, data: bytes) -> None:
        """Write whole lines."""
        self.note(len(data))
        with suppress(OSError):
            os.write(1, data)

    # -- taken

    def is_pending(self) -> bool:
        """Return whether there is output to take. Costs a system call."""
        if self.dirty or self._kept or self._board.times_drained != self._drained:
            return True
        return self._is_waiting()

    def peek(self) -> str | None:
        """Return the output since the last `take`, as `digest` does, and keep it."""
        flush()
        self._read()
        self.dirty = False
        return digest(bytes(self._kept))

    def take(self, ids: Mapping[str, object] | None = None) -> str | None:
        """Return the output since the last call, as `digest` does.

        Printed text is passed on to the real standard error.
        ids: log fields of the job it belongs to. Default: it belongs to no job.
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
        # The supervisor pauses until this is done. Otherwise later output could end up before
        # earlier output.
        self._board.say_reading(reading=True)
        try:
            self._keep(self._board.take_output())
            self._drained = self._board.times_drained
            for _ in range(_ROUNDS):
                try:
                    # Do not read until the pipe is empty: a job may have changed it, and the last
                    # read would then block indefinitely.
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
        """Write all of it. Of data longer than an attempt may keep, only the end matters."""
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
        """Write, and mark the output as dirty: a line without an end stays in the buffer."""
        self._output.dirty = True
        return super().write(text)


class _Handler(logging.Handler):
    def __init__(self, output: Output, formatter: logging.Formatter, ids: Callable[[], Mapping[str, object]]) -> None:
        super().__init__()
        self._output = output
        self._ids = ids
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the log line to the output, if a job runs."""
        if self._ids():
            with suppress(ValueError, TypeError, RecursionError, MemoryError):
                text = self.format(record).encode(errors="replace").replace(b"\n", b"\n" + LOGGED)
                self._output.write(LOGGED + text + b"\n")


def flush() -> None:
    """Flush standard output and standard error.

    Application code may have replaced them with its own objects or with None. An exception of these
    objects must end neither the job nor the worker.
    """
    for name in ("stdout", "stderr"):
        with suppress(BaseException):
            getattr(sys, name).flush()


def output_of(spec: ChildSpec) -> Output | None:
    """Return the output of a worker's handlers, or None if it is not kept."""
    if spec.output is None:
        return None
    reading, writing = spec.output
    return Output(
        spec.board,
        reading=reading,
        writing=writing,
        size=spec.settings.log_size,
        process=f"worker {spec.slot}",
        log_format=spec.settings.log_format,
    )
