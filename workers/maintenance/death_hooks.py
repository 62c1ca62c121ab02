"""Calls the `on_death` hooks for jobs whose process died.

The maintenance process runs no user code itself. It forks a process that loads the modules, calls
the hooks for all waiting deaths one after the other, runs the `atexit` callbacks and exits. If a
hook does not return, the kernel's timer ends that process, and the maintenance process kills its
group as well. A hook that raises, hangs or crashes costs a line in the log.

A death is delivered at most once: a death for which a hook was begun is not repeated, and a waiting
one is lost with its supervisor.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import orjson

from jobherd.handlers._define.hook_calls import Hooks
from jobherd.handlers._define.hooks import on_death
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import configure
from jobherd.handlers._load.registry import HOOKS, all_hooks, load
from jobherd.handlers._run.job import Job
from jobherd.handlers._values.sanitize import describe_exception
from jobherd.workers.process import logs
from jobherd.workers.process.exits import forget_inherited, run_exits
from jobherd.workers.run.hooks import LIMIT
from jobherd.workers.run.loading import put_on_path
from jobherd.workers.run.output import flush
from jobherd.workers.system.procfs import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.workers.process.spec import ChildSettings, ChildSpec

_log = logging.getLogger("jobherd.hooks")

LOADING: Final = 30.0
"""Seconds that the modules may take to load."""
_PR_SET_PDEATHSIG: Final = 1
_IGNORED: Final = frozenset({signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU})
"""The first two as in every Python program. The last one would stop this process at its first line
of output to a terminal.
"""
_LOOK: Final = 0.05
_MOST: Final = 1000
"""DeathHooks that wait. With more, the oldest are dropped."""
_LONGEST: Final = 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


class DeathHooks:
    """The deaths that wait for their hooks, and the process that calls them.

    find: returns queue, priority, payload as JSON text, and the creation and scheduled times of a
    job; None if it is gone.
    """

    def __init__(self, spec: ChildSpec, find: Callable[[int], Sequence[Any] | None]) -> None:
        self._spec = spec
        self._find = find
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MOST)
        """DeathHooks that no process was given yet."""
        self._called: deque[dict[str, Any]] = deque()
        """DeathHooks that the running process was given and whose hooks have not all been called."""
        self._pid = 0
        self._progress = -1
        self._ends_at = 0.0

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called again."""
        return now + _LOOK if self._pid else float("inf")

    def step(self, now: float) -> None:
        """Receive the supervisor's messages and check on the process that calls the hooks.

        If deaths wait and no such process runs, start one.
        """
        with suppress(BlockingIOError):
            while self._spec.deaths >= 0 and (data := os.read(self._spec.deaths, _LONGEST)):
                self._waiting.append(orjson.loads(data))
        if self._pid:
            self._check(now)
        if not self._pid and self._waiting:
            for death in self._waiting:
                if "row" not in death:
                    death["row"] = self._find(death["job"]) if death["payload"] else None
            self._start(now)

    def finish(self) -> None:
        """Wait for the hooks of all received deaths, for as long as one hook may take."""
        until = time.monotonic() + LIMIT
        self.step(time.monotonic())
        while self._pid and time.monotonic() < until:
            time.sleep(_LOOK)
            self.step(time.monotonic())
        if self._pid:
            self._kill()
            self._check(time.monotonic())

    def _check(self, now: float) -> None:
        self._count_called(now)
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid and now >= self._ends_at:
            self._kill()
            pid, status = os.waitpid(self._pid, 0)
        if not pid:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)  # processes that a hook has left behind
        self._count_called(now)  # Race: the process may have called more hooks before it ended.
        os.close(self._progress)
        self._pid = 0
        # The process ended in the hooks of the first death that is left. They are not called again,
        # whatever the exit code: a hook may have called os._exit(0).
        died_in = self._called.popleft() if self._called else None
        if status or died_in is not None:
            code = os.waitstatus_to_exitcode(status)
            how = f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
            extra = {} if died_in is None else {"job": died_in["job"]}
            _log.error("the process that calls on_death hooks %s", how, extra=extra)
        self._waiting = deque([*self._called, *self._waiting], maxlen=_MOST)
        self._called.clear()

    def _count_called(self, now: float) -> None:
        """Drop the deaths whose hooks have all been called since the last count."""
        with suppress(BlockingIOError):
            for _ in os.read(self._progress, _MOST):
                self._called.popleft()
                self._ends_at = now + 2 * LIMIT

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _start(self, now: float) -> None:
        deaths, self._waiting = self._waiting, deque(maxlen=_MOST)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _live(parent, writing, list(deaths), self._spec.settings)
        except OSError as problem:
            os.close(reading)
            os.close(writing)
            _log.error("on_death hooks are not called: %s", problem.strerror)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
        self._called = deaths
        self._pid, self._progress, self._ends_at = pid, reading, now + LOADING + 2 * LIMIT


def _live(parent: int, progress: int, deaths: Sequence[Mapping[str, Any]], settings: ChildSettings) -> NoReturn:
    """Live as the process that calls the hooks.

    It never returns through the frames of the maintenance process.
    """
    code = 70
    try:
        os.setpgid(0, 0)
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() == parent:
            _drop_inherited(progress)
            logs.set_up(process="on_death", log_format=settings.log_format, level=settings.log_level)
            _call(progress, deaths, settings)
        code = 0
    except BaseException as problem:  # It must not unwind into the frames of the maintenance process.
        with suppress(BaseException):
            message, trace = describe_exception(problem)
            _log.error("on_death hooks are not called: %s\n%s", message, trace)
    finally:
        with suppress(BaseException):
            flush()
        os._exit(code)


def _drop_inherited(progress: int) -> None:
    """Drop what belongs to the maintenance process.

    Its files, its signal handlers and its crash traces.
    """
    faulthandler.disable()
    for number in open_descriptors() - {0, 1, 2, progress}:
        with suppress(OSError):
            os.close(number)
    for signum in signal.valid_signals():
        if signum not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_IGN if signum in _IGNORED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())


def _call(progress: int, deaths: Sequence[Mapping[str, Any]], settings: ChildSettings) -> None:
    # The timer's signal has its default effect: it ends this process, whatever the hook does.
    signal.setitimer(signal.ITIMER_REAL, LOADING)
    forget_inherited()
    configure(client=Client(settings.dsn, schema=settings.schema, max_size=1))
    put_on_path(settings.app_dir)
    found, more = load(settings.handlers), load(settings.hooks, named=HOOKS)
    for problem in found.problems + more.problems:
        _log.error("%s", problem)
    hooks = Hooks(all_hooks(more, found)).at(on_death)
    for death in deaths:
        job = _job(death)
        for hook in hooks:
            if hook.kinds and job.kind not in hook.kinds:
                continue
            signal.setitimer(signal.ITIMER_REAL, LIMIT)
            try:
                hook.call_with(job, death["post_mortem"])
            except BaseException as problem:  # A hook that raises must not prevent the calls of the others.
                message, trace = describe_exception(problem)
                _log.error("%r raised: %s\n%s", hook, message, trace)
        os.write(progress, b"\1")
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    run_exits()


def _job(death: Mapping[str, Any]) -> Job:
    job = Job(
        id=death["job"],
        kind=death["kind"],
        attempt=death["attempt"],
        max_attempts=death["max_attempts"],
        crashes=death["crashes"],
        token=death["token"],
    )
    if (row := death["row"]) is not None:
        job.queue, job.priority, payload, job.created, job.run = row
        job.payload = orjson.loads(payload)
    return job
