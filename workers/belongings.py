"""What belongs to a process and to no job: remembered before the first one, and put back after each.

A handler may change any of it, and the next one, of another kind and perhaps another tenant, would run under it: a umask, a working folder, a
variable of the environment, a limit, no garbage collection. What stays is what a process is used twice for: imported modules, with all that
they keep or have set up in Python (caches, `sys.path`, filters of warnings). This module ends no job and decides nothing: what it cannot put
back it names.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # fifteen times the speed of the module around it
import decimal
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_LIMITS: Final = (
    resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_NOFILE, resource.RLIMIT_STACK,
    resource.RLIMIT_CORE, resource.RLIMIT_NPROC,
)  # fmt: skip
_NUMBERS: Final = [
    number for number in signal.valid_signals() if number < signal.SIGRTMIN and number not in (signal.SIGKILL, signal.SIGSTOP)
]
_OTHER_TIMERS: Final = (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_TRACED: Final = frozenset(
    (signal.SIGUSR1, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGXCPU, signal.SIGSYS)
)
"""Signals that faulthandler has: who takes one of them takes the stack from a post-mortem, and Python cannot say how it was before."""


class Belongings:
    """How this process was before its first job. files: the numbers of our own files, which must stay what they are."""

    def __init__(self, files: Iterable[int]) -> None:
        self._home = _here()
        self._home_fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._environ = os.environ
        self._variables: dict[bytes, bytes] = dict(_data(os.environ))
        self._depth = sys.getrecursionlimit()
        self._collects = gc.isenabled()
        self._threshold = gc.get_threshold()
        self._interval = sys.getswitchinterval()
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._streams = (sys.stdout, sys.stderr)
        self._patience = socket.getdefaulttimeout()
        self._quickly = self._quick()
        self._decimals = decimal.getcontext().copy()
        self._timers = [signal.getitimer(which) for which in _OTHER_TIMERS]
        self._logs = list(logging.root.handlers)
        self._level = logging.root.level
        self._loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("jobherd")]
        self._locale = _locale.setlocale(_locale.LC_ALL, None)
        self._limits = [resource.getrlimit(limit) for limit in _LIMITS]
        self._priority = os.getpriority(os.PRIO_PROCESS, 0)
        self._processors = self._allowed = os.sched_getaffinity(0)
        self._handlers: list[Any] = list(map(_signal.getsignal, _NUMBERS))
        self._users = (os.getresuid(), os.getresgid())
        self._group = os.getpgrp()
        self._files = {fd: _file(fd) for fd in files}

    def put_back_soon(self) -> bool:
        """Put back what the next job of the same claim would trip over, in a few microseconds; return whether anything was moved."""
        found = False
        if _here() != self._home:
            found = True
            os.fchdir(self._home_fd)
            self._home = _here()  # somebody may have renamed or removed it: it is ours all the same, and no job has moved
        if os.umask(self._umask) != self._umask:
            found = True
        if os.environ is not self._environ or _data(os.environ) != self._variables:
            found = True
            self._put_back_variables()
        if sys.getrecursionlimit() != self._depth:
            found = True
            sys.setrecursionlimit(self._depth)
        if gc.isenabled() is not self._collects:
            found = True
            (gc.enable if self._collects else gc.disable)()
        if gc.get_threshold() != self._threshold:
            found = True
            gc.set_threshold(*self._threshold)
        now, was = decimal.getcontext(), self._decimals
        if now.prec != was.prec or now.rounding != was.rounding or now.traps != was.traps:
            found = True
            decimal.setcontext(was.copy())
        return found

    def put_back(self) -> tuple[bool, str]:
        """Put everything back; return whether anything was moved, and what could not be put back, in words that follow "a job". Between two claims."""
        found = self.put_back_soon()
        before = self._quick()
        if before != self._quickly:
            found = True
            sys.setswitchinterval(self._interval)
            sys.settrace(self._trace)
            sys.setprofile(self._profile)
            sys.stdout, sys.stderr = self._streams
            socket.setdefaulttimeout(self._patience)
        if _locale.setlocale(_locale.LC_ALL, None) != self._locale:
            found = True
            _locale.setlocale(_locale.LC_ALL, self._locale)
        if os.sched_getaffinity(0) != self._allowed:
            found = True
            with suppress(OSError):  # its container was given others, and none of ours: nobody's job has done that
                os.sched_setaffinity(0, self._processors)
            self._allowed = os.sched_getaffinity(0)
        found = self._put_back_logging() or found
        moved, lost = self._put_back_signals()
        if not lost:
            also, lost = self._put_back_rights()
            moved = moved or also
        return found or moved, lost or self._look_at_files()

    def _quick(self) -> tuple[object, ...]:
        return sys.getswitchinterval(), sys.gettrace(), sys.getprofile(), sys.stdout, sys.stderr, socket.getdefaulttimeout()

    def _put_back_variables(self) -> None:
        os.environ = self._environ  # noqa: B003  # a job has put a mere dictionary there
        present = _data(os.environ)
        for name in present.keys() - self._variables.keys():
            os.unsetenv(name)
            del present[name]
        for name, value in self._variables.items():
            if present.get(name) != value:
                os.putenv(name, value)
                present[name] = value
        time.tzset()

    def _put_back_logging(self) -> bool:
        """What a job configures may be for its own lines; ours must still be heard, and its successor's be kept."""
        root = logging.root
        moved = root.manager.disable != logging.NOTSET or root.level != self._level or root.handlers != self._logs
        if moved:
            root.manager.disable = logging.NOTSET
            root.setLevel(self._level)
            root.handlers[:] = self._logs
        for logger in self._loggers:
            moved = moved or logger.disabled
            logger.disabled = False
        return moved

    def _put_back_signals(self) -> tuple[bool, str]:
        moved = _signal.set_wakeup_fd(-1) != -1
        for which, was in zip(_OTHER_TIMERS, self._timers, strict=True):
            if was == (0.0, 0.0) != signal.getitimer(which):
                moved = True
                signal.setitimer(which, 0)
        now = list(map(_signal.getsignal, _NUMBERS))
        if now == self._handlers:
            return moved, ""
        changed = [number for number, is_, was in zip(_NUMBERS, now, self._handlers, strict=True) if is_ != was]
        if taken := _TRACED.intersection(changed):
            return True, f"took the handler of {signal.Signals(min(taken)).name}"
        for number in changed:
            signal.signal(number, self._handlers[_NUMBERS.index(number)])
        return True, ""

    def _put_back_rights(self) -> tuple[bool, str]:
        moved = False
        try:
            for limit, was in zip(_LIMITS, self._limits, strict=True):
                if resource.getrlimit(limit) != was:
                    moved = True
                    resource.setrlimit(limit, was)
        except (OSError, ValueError):
            return True, "lowered a limit of its process"
        try:
            if os.getpriority(os.PRIO_PROCESS, 0) != self._priority:
                moved = True
                os.setpriority(os.PRIO_PROCESS, 0, self._priority)
            if os.getpgrp() != self._group:
                moved = True
                os.setpgid(0, self._group)
        except OSError:
            return True, "gave up its priority or its process group"
        return moved, "" if (os.getresuid(), os.getresgid()) == self._users else "became another user"

    def _look_at_files(self) -> str:
        changed = [fd for fd, file in self._files.items() if _file(fd) != file]
        if any(getattr(stream, "closed", False) for stream in self._streams):
            return "closed standard output"
        return f"closed files that were not its own: {', '.join(map(str, changed))}" if changed else ""


def _here() -> str:
    """Return the working folder, or nothing if it was removed, as a deploy does with an old release: a worker must start all the same."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _data(environ: object) -> dict[bytes, bytes]:
    """Return the dictionary behind `os.environ`: comparing the mapping itself would decode each value."""
    return environ._data  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


def _file(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
