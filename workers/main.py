"""Where a child begins: the clean slate, then the life of its kind, then `os._exit`.

The parent calls `main` in the forked child once everything of the parent's is let go of, with all signals blocked. From here on nothing
returns: frames below belong to the parent. Kinds are a table; the modules behind it are imported in the child that lives by them.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import random
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from setproctitle import setproctitle

from handlers._dsn import redact_dsn
from workers import logs
from workers.alarm import Alarm
from workers.link import EXIT_LEFT
from workers.output import flush
from workers.points import reach
from workers.seat import MARKER, SECRETS
from workers.wake import Wake

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.seat import Seat

EXIT_BROKEN: Final = 70
"""An error of our own that nobody expected."""
_DEADLY: Final = (signal.SIGXCPU, signal.SIGSYS)
"""Signals of the kernel that end a process, of which faulthandler by itself writes nothing: too much processor time, a forbidden call."""

_log = logging.getLogger("jobherd.child")


@dataclass(slots=True)
class Body:
    """What every child has: its seat, the place where it waits, its alarm, and a name in the list of processes.

    blocked: signals that stay blocked, which is none but at a terminal.
    """

    seat: Seat
    wake: Wake
    alarm: Alarm
    title: Callable[[str], None]
    blocked: frozenset[int] = frozenset()


def main(seat: Seat) -> NoReturn:
    """Live as the child of that seat, and end the process with an exit code from `link`. Never returns.

    seat: from the parent. All signals must be blocked; they are unblocked once this child has handlers of its own.
    """
    code = EXIT_BROKEN
    try:
        code = _live(seat)
    except SystemExit as problem:  # a module of ours called exit: still no way through the parent's frames
        code = problem.code if isinstance(problem.code, int) else EXIT_BROKEN
    except BaseException:  # what nobody expected must be seen, in the log and by the parent
        _show_last_words(seat)
    finally:
        reach("child.leaving")
        flush()
        os._exit(code)


def _live(seat: Seat) -> int:
    body = start_clean(seat)
    if os.getppid() != seat.parent:
        return EXIT_LEFT  # before it connects: nobody would ever know of it
    reach("child.clean")
    try:
        return KINDS[seat.kind](body)
    except Exception:
        if body.wake.orphaned:
            return EXIT_LEFT
        raise


def _worker(body: Body) -> int:
    from workers.start import run  # noqa: PLC0415 - only in such a child

    return run(body)


def _keeper(body: Body) -> int:
    from workers.keeper import run  # noqa: PLC0415 - only in such a child

    return run(body)


def _resetter(body: Body) -> int:
    from workers.resetter import run  # noqa: PLC0415 - only in such a child

    return run(body)


def _web(body: Body) -> int:
    from workers.web import run  # noqa: PLC0415 - only in such a child

    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_LEFT))  # it holds nothing that could be finished
    run(body.seat, title=body.title)
    return EXIT_LEFT


KINDS: Final[dict[str, Callable[[Body], int]]] = {"worker": _worker, "keeper": _keeper, "web": _web, "resetter": _resetter}
"""The kinds of children, and where the life of each begins. Each returns the exit code."""


def start_clean(seat: Seat) -> Body:
    """Leave nothing of the parent's in this process that a job could trip over, and unblock the signals."""
    wake = Wake(seat.wake, parent=seat.parent)
    alarm = Alarm(seat.board, wake, lease=seat.settings.lease)
    signal.set_wakeup_fd(-1)  # the parent's: what arrives here is not to wake its loop
    alarm.install()
    _enable_traces(seat)
    random.seed()
    sys.setswitchinterval(0.005)
    gc.enable()
    _close_standard_input()
    settings = seat.settings
    who = f"{seat.kind} {seat.slot}" if seat.kind == "worker" else seat.kind  # a number only where there can be several
    logs.set_up(who=who, log_format=settings.log_format, level=settings.log_level, board=seat.board)
    for name in SECRETS:
        os.environ.pop(name, None)  # what this child needs of them is in its settings
    # Of one parent process, not of one registration: two databases on this machine both have a supervisor 1.
    os.environ[MARKER] = f"{seat.notice.owner}:{seat.incarnation}"
    title = _titles(seat)
    title("boots")
    blocked = _say_at_terminals()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Body(seat, wake, alarm, title, blocked)


def _say_at_terminals() -> frozenset[int]:
    """Return the signals to keep blocked, so that what we and our jobs say is written where it goes to a terminal.

    A child leads a group of its own, in the background of that terminal: under `stty tostop` the kernel would stop it at its first line.
    """
    return frozenset({signal.SIGTTOU}) if os.isatty(1) or os.isatty(2) else frozenset()


def _enable_traces(seat: Seat) -> None:
    trace = seat.board.open_trace()  # stays open: a stack is written by a signal handler in the worst of moments
    faulthandler.disable()
    faulthandler.enable(file=trace, all_threads=True)
    for number in _DEADLY:
        faulthandler.register(number, file=trace, all_threads=True, chain=True)
    # The number that the parent opened and not another: it moves the position that both have in the file, and reads how far we are.
    faulthandler.register(signal.SIGUSR1, file=seat.board.fd, all_threads=True)


def _close_standard_input() -> None:
    """A handler that reads a terminal would be stopped by the kernel, and its job with it."""
    fd = os.open(os.devnull, os.O_RDONLY)
    if fd != 0:
        os.dup2(fd, 0)
        os.close(fd)


def _titles(seat: Seat) -> Callable[[str], None]:
    prefix = f"jobherd: {seat.kind} {seat.slot} " if seat.kind == "worker" else f"jobherd: {seat.kind} "
    return lambda doing: setproctitle(prefix + doing)


def _show_last_words(seat: Seat) -> None:
    text = traceback.format_exc()
    try:
        text = redact_dsn(text)
        _log.critical("an error of Jobherd's own ended this process", exc_info=True)
        fd = seat.board.open_trace()
        os.write(fd, text.encode(errors="replace")[-30_000:])
    except BaseException:  # the last way to be heard
        os.write(2, text.encode(errors="replace"))
