"""Log output of every Jobherd process.

One event per line with its ids, as text for people or as JSON.

Ids are passed as `extra`: `logger.info("a sentence", extra={"job": 7})`. A value there that is not
a plain one is left out, so a payload cannot get into a log by accident. A password in a message is
masked here, as the last step before the line is written, because error messages of drivers quote
connection strings. Lines of a child process also go to its status board, where the supervisor finds
them once the process is dead.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from jobherd.handlers._enqueue.dsn import redact_dsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.workers.ipc.status_board import StatusBoard

_PLAIN: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
LONGEST: Final = 8192
"""Most characters of a message."""
_LONGEST_ID: Final = 200
_COLOURS: Final = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[1;31m"}


class Stream(Protocol):
    """Where log lines are written."""

    def write(self, text: str, /) -> object:
        """Write a line."""

    def flush(self) -> object:
        """Flush written lines."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""


def set_up(
    *,
    process: str,
    log_format: str = "text",
    level: str = "INFO",
    stream: Stream | None = None,
    board: StatusBoard | None = None,
    ids: Callable[[], Mapping[str, object]] = dict,
) -> None:
    """Send all log records of this process to `stream`, and to `board` if there is one.

    This replaces the previous setup.
    process: the process's name in each line, such as "worker 3".
    log_format: "text", "json", or "auto": text on a terminal and JSON otherwise.
    level: the lowest level shown, default "INFO".
    stream: default standard error.
    ids: called for each line, returns ids that belong to it, such as the running job.
    Raises ValueError for an unknown format or level.
    """
    stream = sys.stderr if stream is None else stream
    terminal = _is_terminal(stream)
    if log_format == "auto":
        log_format = "text" if terminal else "json"
    if log_format not in {"text", "json"}:
        message = f"log format {log_format!r} is not known: use text, json or auto"
        raise ValueError(message)
    if level.upper() not in logging.getLevelNamesMapping():
        message = f"log level {level!r} is not known: use DEBUG, INFO, WARNING, ERROR or CRITICAL"
        raise ValueError(message)
    formatter = make_formatter(process, log_format, ids, colour=terminal)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(_StreamHandler(stream, formatter))
    if board is not None:
        root.addHandler(_BoardHandler(board, TextFormatter(process, ids)))
    root.setLevel(level.upper())
    # Messages of the driver about a broken session would be duplicates: the owner of the session
    # logs that it broke.
    logging.getLogger("psycopg").setLevel(max(logging.ERROR, root.level))
    logging.getLogger("psycopg.pool").setLevel(logging.NOTSET if root.level > logging.WARNING else logging.WARNING)
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # A log line that cannot be written must not write a traceback instead.


def make_formatter(
    process: str, log_format: str, ids: Callable[[], Mapping[str, object]] = dict, *, colour: bool = False
) -> logging.Formatter:
    """Return the formatter of log lines: "text" or "json"."""
    return JsonFormatter(process, ids) if log_format == "json" else TextFormatter(process, ids, colour=colour)


def keep_factory_quiet() -> None:
    """Make the log record factory raise nothing. Call it once handlers are loaded.

    Their modules may have set their own factory. One that reads a tenant from a context variable
    has none while no job runs, and the log line about a lost session would end the worker.
    """
    make = logging.getLogRecordFactory()
    if make is logging.LogRecord:
        return

    def quietly(*args: Any, **kwargs: Any) -> logging.LogRecord:
        try:
            return make(*args, **kwargs)
        except Exception:  # User code may raise anything.
            return logging.LogRecord(*args, **kwargs)

    logging.setLogRecordFactory(quietly)


class TextFormatter(logging.Formatter):
    """A line for people: time, level, process name, message, ids."""

    def __init__(self, process: str, ids: Callable[[], Mapping[str, object]] = dict, *, colour: bool = False) -> None:
        super().__init__()
        self._process = process
        self._ids = ids
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by an indented traceback if there is one."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._colour and record.levelno in _COLOURS:
            level = f"{_COLOURS[record.levelno]}{level}\x1b[0m"
        ids = " ".join(f"{name}={value}" for name, value in _known(record, self._ids).items())
        line = (
            f"{clock}.{int(record.msecs):03d} {level} {self._process}: "
            f"{_one_line(_message(record))}{'  ' if ids else ''}{_one_line(ids)}"
        )
        if trace := _trace(self, record):
            line += "\n    " + _masked(trace).replace("\n", "\n    ")
        return line


class JsonFormatter(logging.Formatter):
    """A line for machines: one JSON object."""

    def __init__(self, process: str, ids: Callable[[], Mapping[str, object]] = dict) -> None:
        super().__init__()
        self._process = process
        self._ids = ids

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event: dict[str, object] = {
            "at": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": _masked(_message(record)),
            **{
                name: _masked(value) if isinstance(value, str) else value
                for name, value in _known(record, self._ids).items()
            },
        }
        if trace := _trace(self, record):
            event["traceback"] = _masked(trace)
        return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class _StreamHandler(logging.StreamHandler[Stream]):
    def __init__(self, stream: Stream, formatter: logging.Formatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Drop the line: standard error is closed or full, and work must continue."""


class _BoardHandler(logging.Handler):
    def __init__(self, board: StatusBoard, formatter: logging.Formatter) -> None:
        super().__init__()
        self._board = board
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Append the line to the status board's ring."""
        try:
            self._board.log(self.format(record).encode(errors="replace") + b"\n")
        except (ValueError, TypeError, RecursionError, MemoryError):
            return  # A message cannot be formatted, or the board is closed.


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()[:LONGEST]
    except Exception as problem:  # Arguments are user code: their __str__ may raise anything.
        return f"<a log message that cannot be shown: {type(problem).__name__}>"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    try:
        return formatter.formatException(record.exc_info)[-LONGEST:]
    except Exception as problem:  # The exception's own __str__ may raise anything.
        return f"<a traceback that cannot be shown: {type(problem).__name__}>"


def _known(record: logging.LogRecord, ids: Callable[[], Mapping[str, object]]) -> dict[str, object]:
    return {
        name: value[:_LONGEST_ID] if isinstance(value, str) else value
        for name, value in (*ids().items(), *record.__dict__.items())
        if name not in _PLAIN and not name.startswith("_") and isinstance(value, str | int | float | bool)
    }


def _masked(text: str) -> str:
    return redact_dsn(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text))


def _one_line(text: str) -> str:
    return _masked(text).replace("\n", "\\n").replace("\t", " ")


def _is_terminal(stream: Stream) -> bool:
    try:
        return stream.isatty()
    except Exception:  # It is closed, or replaced by an object of a handler's module.
        return False
