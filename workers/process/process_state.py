"""Saves the state of the process before the first job and restores it after each.

A handler may change any of it: a umask, a working folder, an environment variable, a limit, or
garbage collection. The next job, of another kind and perhaps another tenant, would then run with
that change. Imported modules and everything they keep stay, because reusing them is why a process
runs more than one job. Python's own tables (logging, asyncio, warnings, hooks) are in
`interpreter.py`. This module ends no job and decides nothing: it names what it cannot restore.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # fifteen times as fast as the module around it
import decimal
import faulthandler
import gc
import io
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.process.environment import Environment
from jobherd.workers.process.interpreter import Interpreter
from jobherd.workers.process.priority import read_priority, set_priority

if TYPE_CHECKING:
    from collections.abc import Iterable

_LIMITS: Final = sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})
_NUMBERS: Final = [
    number
    for number in signal.valid_signals()
    if number < signal.SIGRTMIN and number not in (signal.SIGKILL, signal.SIGSTOP)
]
_OTHER_TIMERS: Final = (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_TRACED: Final = frozenset(
    (
        signal.SIGUSR1,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGXCPU,
        signal.SIGSYS,
    )
)
"""Signals that faulthandler handles. A job that takes one of them removes the stack from a
post-mortem, and Python cannot restore the previous handler.
"""


class ProcessState:
    """The state of this process before its first job.

    files: file descriptors of Jobherd, which must not change.
    shared: those of them that other processes have open too. Their blocking mode is left alone.
    """

    def __init__(self, files: Iterable[int], shared: Iterable[int] = ()) -> None:
        self._home = _here()
        self._home_fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._environment = Environment()
        self._depth = sys.getrecursionlimit()
        self._collects = gc.isenabled()
        self._threshold = gc.get_threshold()
        self._interval = sys.getswitchinterval()
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._streams = (sys.stdout, sys.stderr)
        self._texts = [(stream, _manner(stream)) for stream in self._streams if isinstance(stream, io.TextIOWrapper)]
        self._patience = socket.getdefaulttimeout()
        self._digits = sys.get_int_max_str_digits()
        self._generators = sys.get_asyncgen_hooks()
        self._decimals = decimal.getcontext().copy()
        self._reckons = _reckoning(self._decimals)
        self._timers = [signal.getitimer(which) for which in _OTHER_TIMERS]
        self._interpreter = Interpreter()
        self._locale = _locale.setlocale(_locale.LC_ALL, None)
        self._limits = [resource.getrlimit(limit) for limit in _LIMITS]
        self._priority = read_priority()
        self._root = _identity("/")
        self._processors = self._allowed = os.sched_getaffinity(0)
        self._handlers: list[Any] = list(map(_signal.getsignal, _NUMBERS))
        self._users = (os.getresuid(), os.getresgid())
        self._group = os.getpgrp()
        self._files = {fd: _identity(fd) for fd in files}
        self._waits = {
            fd: os.get_blocking(fd) for fd in self._files.keys() - set(shared) if self._files[fd] is not None
        }
        self._writes_stacks = faulthandler.is_enabled()

    def restore_for_next_job(self) -> bool:
        """Restore what would affect the next job of the same claim, in a few microseconds.

        Return whether anything had changed.
        """
        found = False
        if _here() != self._home:
            found = True
            os.fchdir(self._home_fd)
            # The folder may have been renamed or removed. It is still the right one, and no job has
            # changed it.
            self._home = _here()
        if os.umask(self._umask) != self._umask:
            found = True
        if self._environment.is_changed():
            found = True
            self._environment.restore()
        if sys.getrecursionlimit() != self._depth:
            found = True
            sys.setrecursionlimit(self._depth)
        if gc.isenabled() is not self._collects:
            found = True
            (gc.enable if self._collects else gc.disable)()
        if gc.get_threshold() != self._threshold:
            found = True
            gc.set_threshold(*self._threshold)
        if _reckoning(decimal.getcontext()) != self._reckons:
            found = True
            decimal.setcontext(self._decimals.copy())
        if self._is_moved():
            found = True
            sys.settrace(self._trace)
            sys.setprofile(self._profile)
            sys.setswitchinterval(self._interval)
            sys.stdout, sys.stderr = self._streams
            socket.setdefaulttimeout(self._patience)
            sys.set_int_max_str_digits(self._digits)
            sys.set_asyncgen_hooks(*self._generators)
        # It may be set to end the process, and Python cannot tell whether it is.
        faulthandler.cancel_dump_traceback_later()
        found = self._interpreter.restore() or found
        return self._restore_texts() or found

    def restore(self) -> tuple[bool, str]:
        """Restore everything, between two claims.

        Return whether anything had changed, and what could not be restored, in words that follow "a
        job".
        """
        found = self.restore_for_next_job()
        if self._environment.is_changed_for_programs():
            found = True
            self._environment.restore_for_programs()
        if _locale.setlocale(_locale.LC_ALL, None) != self._locale:
            found = True
            _locale.setlocale(_locale.LC_ALL, self._locale)
        if os.sched_getaffinity(0) != self._allowed:
            found = True
            # The container was given other processors, and none of the old ones. No job has done
            # that.
            with suppress(OSError):
                os.sched_setaffinity(0, self._processors)
            self._allowed = os.sched_getaffinity(0)
        moved, lost = self._restore_signals()
        if not lost:
            also, lost = self._restore_rights()
            moved = moved or also
        return found or moved, lost or self._look_at_files()

    def _is_moved(self) -> bool:
        """Return whether any of these objects was replaced.

        They are compared by identity: an object that a job has put there may define its own
        equality.
        """
        generators = sys.get_asyncgen_hooks()
        return (
            sys.gettrace() is not self._trace
            or sys.getprofile() is not self._profile
            or getattr(sys, "stdout", None) is not self._streams[0]
            or getattr(sys, "stderr", None) is not self._streams[1]
            or sys.getswitchinterval() != self._interval
            or socket.getdefaulttimeout() != self._patience
            or sys.get_int_max_str_digits() != self._digits
            or generators.firstiter is not self._generators.firstiter
            or generators.finalizer is not self._generators.finalizer
        )

    def _restore_texts(self) -> bool:
        """Restore how standard output and standard error encode text.

        With a job's other encoding or error handling, the next job's output could raise an error.
        """
        moved = False
        for stream, was in self._texts:
            now = _manner(stream)
            if now is not None and was is not None and now != was:
                moved = True
                with suppress(OSError, ValueError):  # The stream is flushed first, possibly into a closed file.
                    stream.reconfigure(encoding=was[0], errors=was[1], line_buffering=was[2], write_through=was[3])
        return moved

    def _restore_signals(self) -> tuple[bool, str]:
        moved = _signal.set_wakeup_fd(-1) != -1
        for which, was in zip(_OTHER_TIMERS, self._timers, strict=True):
            if was == (0.0, 0.0) != signal.getitimer(which):
                moved = True
                signal.setitimer(which, 0)
        now = list(map(_signal.getsignal, _NUMBERS))
        if all(map(is_, now, self._handlers)):
            return moved, ""
        changed = [number for number, one, was in zip(_NUMBERS, now, self._handlers, strict=True) if one is not was]
        if taken := _TRACED.intersection(changed):
            return True, f"replaced the handler of {signal.Signals(min(taken)).name}"
        for number in changed:
            _signal.signal(number, self._handlers[_NUMBERS.index(number)])  # as in interrupt.py
        return True, ""

    def _restore_rights(self) -> tuple[bool, str]:
        moved = False
        try:
            for limit, was in zip(_LIMITS, self._limits, strict=True):
                if resource.getrlimit(limit) != was:
                    moved = True
                    resource.setrlimit(limit, was)
        except (OSError, ValueError):
            return True, "lowered a limit of its process"
        try:
            if read_priority() != self._priority:
                moved = True
                set_priority(self._priority)
            if os.getpgrp() != self._group:
                moved = True
                os.setpgid(0, self._group)
        except OSError:
            return True, "gave up its priority or its process group"
        if faulthandler.is_enabled() is not self._writes_stacks:
            return True, "turned faulthandler off"
        if _identity("/") != self._root:
            return True, "changed the root of its files"
        return moved, "" if (os.getresuid(), os.getresgid()) == self._users else "became another user"

    def _look_at_files(self) -> str:
        changed = [fd for fd, file in self._files.items() if _identity(fd) != file]
        if any(_manner(stream) is None for stream, _ in self._texts):
            return "closed standard output"
        for fd, waits in self._waits.items():
            if fd not in changed and os.get_blocking(fd) is not waits:
                os.set_blocking(fd, waits)
        return f"closed files that were not its own: {', '.join(map(str, changed))}" if changed else ""


def _here() -> str:
    """Return the working folder, or an empty string if it was removed.

    A deployment may remove the folder of an old release, and a worker must start all the same.
    """
    try:
        return os.getcwd()
    except OSError:
        return ""


def _identity(file: int | str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _manner(stream: io.TextIOWrapper) -> tuple[str, str | None, bool, bool] | None:
    """Return how a stream writes text, or None if it is closed."""
    try:
        return None if stream.closed else (stream.encoding, stream.errors, stream.line_buffering, stream.write_through)
    except ValueError:  # Its buffer was detached.
        return None


def _reckoning(context: decimal.Context) -> tuple[object, ...]:
    return context.prec, context.rounding, context.traps, context.Emin, context.Emax, context.capitals, context.clamp
