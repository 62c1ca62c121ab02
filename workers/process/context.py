"""What every child process has, and its clean start.

After `start_clean`, nothing of the supervisor is left in the process that a job could be affected
by.
"""

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
"""Signals of the kernel that end a process without a stack trace by faulthandler's default: CPU
time limit exceeded, and a forbidden system call.
"""


@dataclass(slots=True)
class ChildContext:
    """What every child process has: its spec, its wake pipe, its interrupts, and its process title.

    blocked: signals that stay blocked. Empty, except at a terminal.
    """

    spec: ChildSpec
    wake: Wake
    interrupts: Interrupts
    title: Callable[[str], None]
    blocked: frozenset[int] = frozenset()


def start_clean(spec: ChildSpec) -> ChildContext:
    """Remove what a job could be affected by from this process, and unblock the signals."""
    wake = Wake(spec.wake, parent=spec.parent)
    interrupts = Interrupts(spec.board, wake, lease=spec.settings.lease)
    signal.set_wakeup_fd(-1)  # It is the supervisor's: signals of this process must not wake the supervisor's loop.
    interrupts.install()
    _enable_traces(spec)
    random.seed()
    sys.setswitchinterval(0.005)
    gc.enable()
    _close_standard_input()
    settings = spec.settings
    # The number only for workers, the only kind with several processes.
    process = f"{spec.kind} {spec.slot}" if spec.kind == "worker" else spec.kind
    logs.set_up(process=process, log_format=settings.log_format, level=settings.log_level, board=spec.board)
    for name in SECRETS:
        os.environ.pop(name, None)  # The settings hold what this process needs of them.
    # Identifies one supervisor process, not one registration: two databases on this host may both
    # have a supervisor 1.
    os.environ[MARKER] = f"{spec.control.owner}:{spec.incarnation}"
    title = _titles(spec)
    title("starts")
    blocked = _say_at_terminals()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return ChildContext(spec, wake, interrupts, title, blocked)


def _say_at_terminals() -> frozenset[int]:
    """Return the signals to keep blocked, so that output to a terminal is written.

    A child process leads its own process group in the background of that terminal: under `stty
    tostop` the kernel would stop it at its first line.
    """
    return frozenset({signal.SIGTTOU}) if os.isatty(1) or os.isatty(2) else frozenset()


def _enable_traces(spec: ChildSpec) -> None:
    # Stays open: a signal handler writes the stack, possibly while the process crashes.
    trace = spec.board.open_trace()
    faulthandler.disable()
    faulthandler.enable(file=trace, all_threads=True)
    for number in _DEADLY:
        faulthandler.register(number, file=trace, all_threads=True, chain=True)
    # Use the descriptor that the supervisor opened: both processes share its position in the file.
    # The supervisor sets that position, and reads it to see how much was written.
    faulthandler.register(signal.SIGUSR1, file=spec.board.fd, all_threads=True)


def _close_standard_input() -> None:
    """Replace standard input by /dev/null.

    The kernel would stop a handler that reads from a terminal, and its job with it.
    """
    fd = os.open(os.devnull, os.O_RDONLY)
    if fd != 0:
        os.dup2(fd, 0)
        os.close(fd)


def _titles(spec: ChildSpec) -> Callable[[str], None]:
    prefix = f"jobherd: {spec.kind} {spec.slot} " if spec.kind == "worker" else f"jobherd: {spec.kind} "
    return lambda doing: setproctitle(prefix + doing)
