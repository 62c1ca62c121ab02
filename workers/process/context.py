"""What every child process has, and the clean start: nothing of the supervisor's stays in it that a job could trip over."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from setproctitle import setproctitle

from jobherd.workers.process import logs
from jobherd.workers.process.interrupt import Interrupts
from jobherd.workers.process.spec import MARKER, SECRETS
from jobherd.workers.process.wakeup import Wake

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.workers.process.spec import ChildSpec


_DEADLY: Final = (signal.SIGXCPU, signal.SIGSYS)
"""Signals of the kernel that end a process, of which faulthandler by itself writes nothing: too much processor time, a forbidden call."""


@dataclass(slots=True)
class ChildContext:
    """What every child has: its seat, the place where it waits, its alarm, and a name in the list of processes.

    blocked: signals that stay blocked, which is none but at a terminal.
    """

    spec: ChildSpec
    wake: Wake
    interrupts: Interrupts
    title: Callable[[str], None]
    blocked: frozenset[int] = frozenset()


def start_clean(spec: ChildSpec) -> ChildContext:
    """Leave nothing of the parent's in this process that a job could trip over, and unblock the signals."""
    wake = Wake(spec.wake, parent=spec.parent)
    interrupts = Interrupts(spec.board, wake, lease=spec.settings.lease)
    signal.set_wakeup_fd(-1)  # the parent's: what arrives here is not to wake its loop
    interrupts.install()
    _enable_traces(spec)
    random.seed()
    sys.setswitchinterval(0.005)
    gc.enable()
    _close_standard_input()
    settings = spec.settings
    who = f"{spec.kind} {spec.slot}" if spec.kind == "worker" else spec.kind  # a number only where there can be several
    logs.set_up(who=who, log_format=settings.log_format, level=settings.log_level, board=spec.board)
    for name in SECRETS:
        os.environ.pop(name, None)  # what this child needs of them is in its settings
    # Of one parent process, not of one registration: two databases on this machine both have a supervisor 1.
    os.environ[MARKER] = f"{spec.control.owner}:{spec.incarnation}"
    title = _titles(spec)
    title("boots")
    blocked = _say_at_terminals()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return ChildContext(spec, wake, interrupts, title, blocked)


def _say_at_terminals() -> frozenset[int]:
    """Return the signals to keep blocked, so that what we and our jobs say is written where it goes to a terminal.

    A child leads a group of its own, in the background of that terminal: under `stty tostop` the kernel would stop it at its first line.
    """
    return frozenset({signal.SIGTTOU}) if os.isatty(1) or os.isatty(2) else frozenset()


def _enable_traces(spec: ChildSpec) -> None:
    trace = spec.board.open_trace()  # stays open: a stack is written by a signal handler in the worst of moments
    faulthandler.disable()
    faulthandler.enable(file=trace, all_threads=True)
    for number in _DEADLY:
        faulthandler.register(number, file=trace, all_threads=True, chain=True)
    # The number that the parent opened and not another: it moves the position that both have in the file, and reads how far we are.
    faulthandler.register(signal.SIGUSR1, file=spec.board.fd, all_threads=True)


def _close_standard_input() -> None:
    """A handler that reads a terminal would be stopped by the kernel, and its job with it."""
    fd = os.open(os.devnull, os.O_RDONLY)
    if fd != 0:
        os.dup2(fd, 0)
        os.close(fd)


def _titles(spec: ChildSpec) -> Callable[[str], None]:
    prefix = f"jobherd: {spec.kind} {spec.slot} " if spec.kind == "worker" else f"jobherd: {spec.kind} "
    return lambda doing: setproctitle(prefix + doing)
