"""Forks child processes, and closes in the child what belongs to the supervisor.

No other module forks. Signals are blocked around the fork until the child has its own handlers. A
signal in between would run the supervisor's handlers in the child, and be lost. The child never
returns through the supervisor's frames.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol

from jobherd.workers import main
from jobherd.workers.ipc import pipes
from jobherd.workers.process.spec import ChildSpec
from jobherd.workers.system.failpoints import reach
from jobherd.workers.system.procfs import open_descriptors

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Sequence

    from jobherd.supervisor.database.interface import Connection
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.process.signals import SignalPipe
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.spec import ChildSettings

_PR_SET_PDEATHSIG = 1
_OUTPUT = 256 * 1024
"""Bytes that a worker may print between two reads by the supervisor, which reads four times a
second."""
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: loading takes locks


@dataclass(frozen=True, slots=True)
class Ends:
    """The supervisor's ends of a child's pipes."""

    wake: int
    report: int
    output: int = -1
    """Where the supervisor reads a worker's output, if it is captured."""


class HasDescriptors(Protocol):
    """A part of the supervisor with file descriptors that a child must close."""

    @property
    def fds(self) -> Sequence[int]:
        """The descriptors."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """The descriptors that a child inherits and must close.

    Each of these, kept open, has broken systems like this one.
    """

    selector: selectors.BaseSelector
    signals: SignalPipe
    db: Connection
    boards: list[StatusBoard]
    others: Sequence[HasDescriptors] = ()
    deaths: int = -1
    """A descriptor among those of `others`; the kind of child that receives deaths keeps it."""
    ends: dict[int, Ends] = field(default_factory=dict)
    """The pipes of the other children, by slot number."""


def settle_heap() -> None:
    """Exempt the objects loaded so far from garbage collection. Called once, before the first fork.

    They live as long as the supervisor, so its collector need not scan them. With a freeze and
    unfreeze at each fork, young objects would count as old, and the garbage between two forks would
    pile up.
    """
    gc.collect()
    gc.freeze()


def fork_child(
    slot: Slot,
    *,
    incarnation: int,
    supervisor: int,
    control: ControlBlock,
    settings: ChildSettings,
    inherited: Inherited,
) -> tuple[int, Ends]:
    """Fork a child into the slot.

    Args:
        slot: the slot to fill.
        incarnation: the number of this child in this run.
        supervisor: the supervisor id.
        control: the control block.
        settings: the settings for the child.
        inherited: what the child must close.

    Returns:
        The child's pid and the supervisor's ends of its pipes.

    Raises:
        OSError: the kernel refuses a process.
    """
    _assert_single_threaded()
    wake_read, wake_write = pipes.open_pipe()
    try:
        report_read, report_write = pipes.open_pipe()
    except OSError:
        os.close(wake_read)
        os.close(wake_write)
        raise
    try:
        output = _open_output() if slot.kind.works and settings.log_capture else None
    except OSError:
        for fd in (wake_read, wake_write, report_read, report_write):
            os.close(fd)
        raise
    board = inherited.boards[slot.number]
    spec = ChildSpec(
        kind=slot.kind.name,
        slot=slot.number,
        incarnation=incarnation,
        supervisor=supervisor,
        parent=os.getpid(),
        wake=wake_read,
        report=report_write,
        board=board,
        control=control,
        settings=settings,
        output=None if output is None else output[:2],
        boards=tuple(inherited.boards) if slot.kind.sees_all else (),
        deaths=inherited.deaths if slot.kind.receives_deaths else -1,
    )

    def life() -> NoReturn:
        os.close(wake_write)
        os.close(report_read)
        if output is not None:
            os.close(output[2])
        _let_go(inherited, keep=set(inherited.boards) if slot.kind.sees_all else {board}, deaths=spec.deaths)
        main.main(spec)

    try:
        pid = fork(life)
    except OSError:
        for fd in (wake_read, wake_write, report_read, report_write, *(output or ())):
            os.close(fd)
        raise
    os.close(wake_read)
    os.close(report_write)
    if output is None:
        return pid, Ends(wake_write, report_read)
    os.close(output[0])
    os.close(output[1])
    return pid, Ends(wake_write, report_read, output[2])


def _open_output() -> tuple[int, int, int]:
    """Open a pipe for a worker's output.

    Return the worker's read and write ends, and the supervisor's read end. A write may block, a
    read never does. The supervisor's end is opened again and not inherited: O_NONBLOCK belongs to
    the open file. If they shared it, a job could clear the flag in its process and block the
    supervisor's loop at the next read.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        ours = os.open(f"/proc/self/fd/{reading}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    os.set_blocking(reading, False)
    with suppress(OSError):  # an unprivileged user may not be allowed this size
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _OUTPUT)
    return reading, writing, ours


def _let_go(inherited: Inherited, *, keep: set[StatusBoard], deaths: int) -> None:
    """Close in the child what belongs to the supervisor, without any protocol."""
    signal.set_wakeup_fd(-1)
    # Close, never unregister: the epoll set is shared, and the supervisor would no longer receive
    # its events.
    inherited.selector.close()
    inherited.signals.close()
    # Close by descriptor: conn.close() would end the supervisor's session.
    if (fd := inherited.db.forget()) >= 0:
        os.close(fd)
    # Another child's write end, kept open here, would hide the supervisor's death from that child.
    for ends in inherited.ends.values():
        os.close(ends.wake)
        os.close(ends.report)
        if ends.output >= 0:
            os.close(ends.output)
    for part in inherited.others:
        for number in part.fds:
            if number != deaths:
                os.close(number)
    for board in inherited.boards:
        if board not in keep:
            board.close()


def fork(life: Callable[[], NoReturn]) -> int:
    """Fork a process that runs `life` and ends with the supervisor; return its pid.

    Raises:
        OSError: the kernel refuses a process.
    """
    parent = os.getpid()
    sys.stdout.flush()  # otherwise the child writes the buffered text a second time
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                reach("child.born")
                gc.freeze()  # the child's collector never scans what exists now: that would copy the shared pages
                # A group of its own: Ctrl-C reaches only the supervisor, and a kill also reaches
                # the child's own processes.
                os.setpgid(0, 0)
                _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
                reach("child.forked")
                if os.getppid() != parent:  # it died between fork and prctl, so no signal will come
                    os._exit(pipes.EXIT_REQUESTED)
                life()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # set on both sides: whichever needs it first finds it set
        reach("parent:forked")
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _assert_single_threaded() -> None:
    if threading.active_count() != 1 or len(os.listdir("/proc/self/task")) != 1:
        msg = "the supervisor has more than one thread: a lock of another thread would stay locked in the child"
        raise RuntimeError(msg)


def start_helper(*, keep: int) -> None:
    """Restore the signals of a helper process without a slot, and close what it inherited.

    The pipe of another child, kept open here, would hide that child's dismissal from it.

    Args:
        keep: the descriptor that it writes to.
    """
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    for number in open_descriptors() - {0, 1, 2, keep}:
        with suppress(OSError):
            os.close(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
