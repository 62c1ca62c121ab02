"""The only place that forks, and everything a child must let go of.

Signals are blocked around the fork until the child has handlers of its own: one that came between would run the parent's handlers in the
child, and be lost. The child never returns through the parent's frames.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from jobherd.workers import main
from jobherd.workers.ipc import pipes
from jobherd.workers.process.spec import ChildSpec
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Iterable

    from jobherd.supervisor.database.connection import DatabaseConnection
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.process.signals import SignalPipe
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.spec import ChildSettings

_PR_SET_PDEATHSIG = 1
_OUTPUT = 256 * 1024
"""Bytes that a worker may print before the parent must have looked, four times a second."""
LOOKUP_PATIENCE: Final = 8.0
"""Seconds after which what is not found is left out: a first name server that is gone costs 5 of them."""
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: loading takes locks


@dataclass(frozen=True, slots=True)
class Ends:
    """The parent's ends of a child's pipes."""

    wake: int
    report: int
    output: int = -1
    """Where a worker's output is read, if it is kept."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a child inherits and must not keep: each of these, kept, has brought a system like this one down."""

    selector: selectors.BaseSelector
    signals: SignalPipe
    db: DatabaseConnection
    ends: Iterable[Ends]
    boards: list[StatusBoard]
    others: Iterable[int] = ()
    """Further file numbers."""


def settle_heap() -> None:
    """Called once, before the first fork: what the parent has loaded stays as long as it does, and its collector need not look there again.

    Frozen at a fork and let go after it, whatever was young would count as old: the garbage between two forks would pile up.
    """
    gc.collect()
    gc.freeze()


def fork_child(
    slot: Slot, *, incarnation: int, supervisor: int, control: ControlBlock, settings: ChildSettings, inherited: Inherited, deaths: int = -1
) -> tuple[int, Ends]:
    """Fork a child into the slot. `deaths`: one of the inherited file numbers, kept by the kind that is told. Returns its pid and our ends of its pipes. Raises OSError when the system refuses a process."""
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
        deaths=deaths if slot.kind.hears_deaths else -1,
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
    """Return the ends of a pipe for what a worker prints: where the worker reads and writes, and where we read. Who prints may wait; who reads never does.

    Ours is opened once more, and not inherited: whether a read waits is a property of what was opened, and a job that changed it in its process
    would stop the parent's loop at the next read.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        ours = os.open(f"/proc/self/fd/{reading}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    os.set_blocking(reading, False)
    with suppress(OSError):  # so much is not everybody's right
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _OUTPUT)
    return reading, writing, ours


def _let_go(inherited: Inherited, *, keep: set[StatusBoard], deaths: int) -> None:
    """Called in the child: drop what is the parent's, by file number and nothing more."""
    signal.set_wakeup_fd(-1)
    # Closed, never unregistered: the epoll set is shared, and unregistering would deafen the parent.
    inherited.selector.close()
    inherited.signals.close()
    # By its number: conn.close() would say goodbye on the session that is the parent's.
    if (fd := inherited.db.forget()) >= 0:
        os.close(fd)
    # A sibling's write end kept open here would hide the parent's death from that sibling.
    for ends in inherited.ends:
        os.close(ends.wake)
        os.close(ends.report)
        if ends.output >= 0:
            os.close(ends.output)
    for fd in inherited.others:
        if fd != deaths:
            os.close(fd)
    for board in inherited.boards:
        if board not in keep:
            board.close()


def fork(life: Callable[[], NoReturn]) -> int:
    """Fork a process that lives by `life` and ends with the parent; return its pid. Raises OSError when the system refuses one."""
    parent = os.getpid()
    sys.stdout.flush()  # or the child writes what was buffered once more
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                reach("child.born")
                gc.freeze()  # what exists now is never looked at by the child's collector: looking would copy its pages
                os.setpgid(0, 0)  # its own group: Ctrl-C reaches only the parent, and a kill reaches its grandchildren
                _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
                reach("child.forked")
                if os.getppid() != parent:  # it died between fork and prctl, and nobody will tell us
                    os._exit(pipes.EXIT_LEFT)
                life()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # done on both sides: whoever needs it first finds it done
        reach("parent:forked")
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _assert_single_threaded() -> None:
    if threading.active_count() != 1 or len(os.listdir("/proc/self/task")) != 1:
        msg = "the parent has more than one thread: a lock one of them holds would stay shut in the child for ever"
        raise RuntimeError(msg)


def _look_up(host: str, write: int) -> None:
    """Called in a thread of that child: a name that nobody answers for must not hold up the others."""
    with suppress(OSError, UnicodeError):
        found = dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        os.write(write, f"{' '.join([host, *found])}\n".encode())


class Lookup:
    """Host names being looked up by a short-lived child: the C library's own look-up blocks, for half a minute if a name server is gone."""

    def __init__(self, hosts: list[str]) -> None:
        self.fd, write = pipes.open_pipe()
        self._data = b""

        def life() -> NoReturn:
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, write}:
                with suppress(OSError):  # a child that is dismissed meanwhile would not hear it while we hold the other end of its pipe
                    os.close(number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
            looks = [threading.Thread(target=_look_up, args=(host, write), daemon=True) for host in hosts]
            for look in looks:
                look.start()
            until = time.monotonic() + LOOKUP_PATIENCE
            for look in looks:
                look.join(max(until - time.monotonic(), 0.0))
            os._exit(0)

        try:
            self.pid = fork(life)
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(write)

    def read(self) -> dict[str, list[str]] | None:
        """Return the addresses by host once the child is through, else None."""
        try:
            while chunk := os.read(self.fd, 65536):
                self._data += chunk
        except BlockingIOError:
            return None
        return {host: addresses for host, *addresses in map(str.split, self._data.decode().splitlines())}

    def close(self) -> None:
        """End it, whatever it is at."""
        os.close(self.fd)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
