"""Handlers that damage their process in every way a handler can, and a probe that returns what the next job finds.

Each act declares the expected outcome of its job. No act may affect another job, another child process or
the supervisor.
"""

from __future__ import annotations

import _locale
import asyncio
import atexit
import contextvars
import ctypes
import decimal
import faulthandler
import gc
import io
import logging
import logging.config
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobherd import handler

if TYPE_CHECKING:
    from collections.abc import Callable

FOR_EVER = 3600
TIMEOUT = 0.3
OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33: the C library handles them once the process has threads."""
_libc = ctypes.CDLL(None)
_VARIABLE = contextvars.ContextVar("hostile", default="nothing")


class Act(NamedTuple):
    """What a handler does, and the expected outcome of its job."""

    do: Callable[[], object]
    state: str
    code: str | None
    crashes: int


ACTS: dict[str, Act] = {}


def act(
    state: str = "completed", code: str | None = None, crashes: int = 0
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def take(do: Callable[[], object]) -> Callable[[], object]:
        ACTS[do.__name__] = Act(do, state, code, crashes)
        return do

    return take


fails = act("failed", "UNHANDLED_ERROR")
dies = act("failed", "WORKER_CRASHED", 1)
is_late = act("failed", "JOB_TIMEOUT")


@handler("h:does", timeout=60, max_attempts=1, max_crashes=1)
def does(what: str) -> object:
    return ACTS[what].do()


@handler("h:late", timeout=TIMEOUT, max_attempts=1, max_crashes=1)
def late(what: str) -> object:
    return ACTS[what].do()


@handler("h:probe", timeout=60, max_attempts=1, max_crashes=1)
def probe() -> dict[str, object]:
    """Return the state of a process that a job may have changed.

    A fresh worker and one that has run a bad job must return the same.
    """
    with open("/proc/self/status", encoding="ascii") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    umask = os.umask(0)
    os.umask(umask)
    seen = subprocess.run(["/usr/bin/env"], check=True, capture_output=True).stdout.splitlines()
    numbers = decimal.getcontext()
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    print("the probe prints \u20ac \ud800")
    return {
        "cwd": os.getcwd(), "umask": umask, "environment": {n: v for n, v in sorted(os.environ.items()) if n != "JOBHERD_CHILD"},
        "mark": "JOBHERD_CHILD" in os.environ, "seen by programs": sorted(line.decode() for line in seen if not line.startswith(b"JOBHERD_CHILD")),
        "locale": _locale.setlocale(_locale.LC_ALL, None), "zone": time.tzname, "limits": limits, "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)), "blocked": status["SigBlk"], "ignored": status["SigIgn"], "caught": int(status["SigCgt"], 16) & ~OF_THE_C_LIBRARY,
        "handlers": [str(signal.getsignal(number)).split(" at ")[0] for number in range(1, 32)],
        "timers": [signal.getitimer(which)[1] for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "depth": sys.getrecursionlimit(), "interval": sys.getswitchinterval(), "collects": (gc.isenabled(), gc.get_threshold()),
        "trace": repr((sys.gettrace(), sys.getprofile())), "streams": (type(sys.stdout).__name__, sys.stdout.closed), "patience": socket.getdefaulttimeout(),
        "policy": os.sched_getscheduler(0), "oom": Path("/proc/self/oom_score_adj").read_text(), "root": os.stat("/").st_ino,
        "text": (sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering), "digits": sys.get_int_max_str_digits(),
        "generators": repr(sys.get_asyncgen_hooks()), "faulthandler": faulthandler.is_enabled(), "waits": [os.get_blocking(fd) for fd in range(3)],
        "levels": [(name, logging.getLogger(name).level) for name in ("jobherd.worker", "jobherd.settle")],
        "numbers": (numbers.prec, numbers.Emax, numbers.capitals), "variable": _VARIABLE.get(), "group": os.getpgrp() == os.getpid(), "users": os.getresuid() + os.getresgid(),
        "wakeup": signal.set_wakeup_fd(-1), "threads": len([one for one in threading.enumerate() if not one.daemon]),
        "app": (_APP.isEnabledFor(logging.WARNING), _APP.disabled, _APP.propagate, len(_APP.handlers), len(_APP.filters)), "loop": _loop(),
        "warnings": len(warnings.filters), "path": sys.path, "hook": repr(sys.excepthook), "argv": sys.argv,
        "clock": repr(time.monotonic), "logging": logging.getLogger().isEnabledFor(logging.CRITICAL),
    }  # fmt: skip


_APP = logging.getLogger("app")


def _loop() -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop = asyncio.get_event_loop()
            loop.close()
    except RuntimeError as problem:
        return str(problem)
    return type(asyncio.get_event_loop_policy()).__name__


class Kindless(BaseException):
    """Code that reads its class runs this property."""

    @property
    def __class__(self) -> type:
        raise SystemExit(0)


@dataclass
class Bound:
    what: str

    def __post_init__(self) -> None:
        raise Kindless


@handler("h:bound", timeout=60, max_attempts=1, max_crashes=1)
def bound(payload: Bound) -> None: ...


@handler("h:alone", timeout=20, max_attempts=1, max_crashes=1)
def alone():
    """Wait until this process has one thread: `threading` does not list the watchdog's thread."""
    while len(os.listdir("/proc/self/task")) > 1:
        os.sched_yield()


# -- damage that the worker repairs


@act()
def moves_away():
    os.chdir("/")


@act()
def opens_the_umask():
    os.umask(0)


@act()
def changes_the_environment():
    os.environ["HOSTILE"] = "yes"
    os.environ["PATH"] = "/nowhere:" + os.environ["PATH"]
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    del os.environ["JOBHERD_CHILD"]


@act()
def empties_the_environment():
    os.environ.clear()


@act()
def replaces_the_environment():
    os.environ = {"HOSTILE": "yes"}  # noqa: B003


@act()
def speaks_another_language():
    _locale.setlocale(_locale.LC_ALL, "C")


@act()
def raises_the_recursion_limit():
    sys.setrecursionlimit(10**6)


@act()
def collects_no_garbage():
    gc.disable()
    gc.set_threshold(0)


@act()
def switches_seldom():
    sys.setswitchinterval(1.0)


@act()
def traces():
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)


@act()
def takes_the_streams():
    sys.stdout = sys.stderr = None


class Unequal:
    """An object that raises SystemExit when it is compared."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise SystemExit

    def __call__(self, *_: object) -> None: ...


@act()
def puts_in_their_place_what_nobody_may_compare():
    sys.stdout = sys.stderr = Unequal()
    signal.signal(signal.SIGWINCH, Unequal())


@act()
def takes_a_handler_by_what_nobody_may_compare():
    signal.signal(signal.SIGHUP, Unequal())


@act()
def gives_sockets_no_time():
    socket.setdefaulttimeout(0.001)


@act()
def reckons_with_three_digits():
    decimal.getcontext().prec = 3


@act()
def reckons_with_small_numbers():
    decimal.getcontext().Emax = 5
    decimal.getcontext().capitals = 0


@act()
def reads_no_long_numbers():
    sys.set_int_max_str_digits(640)


@act()
def writes_ascii():
    sys.stdout.reconfigure(encoding="ascii", errors="strict", line_buffering=False)


@act()
def does_not_wait_to_print():
    os.set_blocking(1, False)


@act()
def tells_programs_what_python_does_not_see():
    os.putenv("HOSTILE", "yes")
    os.unsetenv("PATH")


@act()
def hooks_generators():
    sys.set_asyncgen_hooks(print, print)


@act()
def loses_the_streams():
    del sys.stdout, sys.stderr


@act()
def loses_the_environment():
    del os.environ


@act()
def binds_a_context_variable():
    _VARIABLE.set("a secret of another job")


@act()
def lowers_soft_limits():
    for limit in {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")} - {
        resource.RLIMIT_STACK
    }:
        _, hard = resource.getrlimit(limit)
        size = {resource.RLIMIT_NOFILE: 64, resource.RLIMIT_AS: 1 << 40, resource.RLIMIT_DATA: 1 << 40}.get(limit, 1000)
        resource.setrlimit(limit, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


@act()
def is_nice():
    os.nice(3)


@act()
def runs_in_batches():
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@act()
def is_killed_first():
    Path("/proc/self/oom_score_adj").write_text("900")


@act()
def keeps_to_one_processor():
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


@act()
def ignores_what_a_shell_ignores():
    for number in (signal.SIGCHLD, signal.SIGWINCH, signal.SIGTSTP, signal.SIGPROF, signal.SIGVTALRM):
        signal.signal(number, signal.SIG_IGN)


@act()
def profiles_by_a_timer():
    signal.signal(signal.SIGPROF, lambda *_: None)
    signal.setitimer(signal.ITIMER_PROF, 1000, 1000)


@act()
def leaves_a_wakeup_file():
    _, write = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(write)


@act()
def joins_its_parents_group():
    os.setpgid(0, os.getpgid(os.getppid()))


@act()
def leaves_a_child_behind():
    subprocess.Popen(["sleep", str(FOR_EVER)])


@act()
def leaves_a_daemon_thread():
    threading.Thread(target=time.sleep, args=(FOR_EVER,), daemon=True).start()


@act()
def sets_a_watchdog():
    faulthandler.dump_traceback_later(FOR_EVER, exit=True)


@act()
def registers_at_exit():
    atexit.register(time.sleep, FOR_EVER)


@act()
def forks_and_comes_back_twice():
    if os.fork() == 0:
        return
    os.wait()


@act()
def forks_behind_python_and_comes_back_twice():
    """Fork in C, which Python does not notice.

    Jobherd must not record the outcome that the copy reports.
    """
    if (pid := _libc.fork()) == 0:
        raise ValueError
    os.waitpid(pid, 0)


@act()
def silences_logging():
    logging.disable(logging.CRITICAL)
    logging.getLogger().handlers.clear()
    logging.getLogger("jobherd.worker").setLevel(logging.CRITICAL)


@act()
def configures_logging():
    logging.config.dictConfig(
        {"version": 1, "handlers": {"c": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["c"]}}
    )


@act()
def configures_a_logger():
    _APP.addHandler(logging.StreamHandler())
    _APP.setLevel(logging.CRITICAL)
    _APP.propagate = False


@act()
def runs_a_loop():
    asyncio.run(asyncio.sleep(0))


@act()
def makes_warnings_errors():
    warnings.simplefilter("error")
    sys.path.insert(0, "/nowhere")
    sys.excepthook = print
    sys.argv = ["x"]


@act()
def floods():
    for _ in range(40):
        os.write(1, b"\0\xff\x1e\x1f" * 16384)
    sys.stdout.write("y" * 3_000_000)


@act()
def leaves_finalizers_that_raise():
    ring: list[object] = [Complains()]
    ring.append(ring)
    Complains()


@act()
def leaves_a_generator_in_the_middle():
    def generator():
        try:
            yield 1
        finally:
            raise KeyboardInterrupt

    next(generator())


def _make_every_file_wait():
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_blocking(int(name), True)
        except OSError:
            continue


@act()
def makes_every_file_wait():
    _make_every_file_wait()
    print("and says so")


# -- damage after which the process is replaced


@act()
def turns_the_clock_back():
    time.monotonic = float


@act()
def puts_the_clock_forward():
    time.monotonic = lambda: 1e300


@act()
def stops_the_timer():
    signal.setitimer(signal.ITIMER_REAL, 0)


@act()
def takes_the_alarm():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.alarm(1)


@act()
def takes_every_signal():
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)


@act()
def blocks_every_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


@act()
def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(FOR_EVER,)).start()


@act()
def lowers_hard_limits():
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))


@act()
def detaches_standard_output():
    """Do what programs do to change the encoding."""
    sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8")


@act()
def turns_faulthandler_off():
    faulthandler.disable()


@act()
def closes_standard_output():
    sys.stdout.close()
    os.close(1)
    os.close(2)


@act()
def closes_every_file():
    os.closerange(0, 4096)


@act()
def puts_files_of_its_own_in_every_place():
    os.closerange(0, 4096)
    for _ in range(40):
        os.open("/dev/zero", os.O_RDWR)


@act()
def writes_nonsense_everywhere():
    """Write into every open file of this process.

    These include the status board, what the supervisor reads, and the session with the database.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_blocking(int(name), False)
            os.write(int(name), b"S\xff\xff\x00P\x00\xf0" + bytes(range(256)) * 8)
        except OSError:
            continue


@act()
def cuts_every_file_off():
    for name in os.listdir("/proc/self/fd"):
        try:
            os.ftruncate(int(name), 0)
        except OSError:
            continue


# -- acts that fail


class Lies(Exception):
    """An exception whose text has the wrong type, and whose repr and attributes raise."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307

    def __repr__(self) -> str:
        raise MemoryError

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


class Gigabyte(BaseException):
    def __str__(self) -> str:
        return "x" * (1 << 26)


class Hides(type):
    def __getattribute__(cls, name: str) -> object:
        raise KeyError(name)


class Masked(Exception, metaclass=Hides): ...


@fails
def raises_lies():
    raise Lies


@fails
def raises_a_gigabyte():
    raise Gigabyte


class Deaf(Exception):
    """An exception whose text never arrives, and which suppresses every interrupt."""

    def __str__(self) -> str:  # noqa: PLE0307
        while True:
            try:
                while True:
                    pass
            except BaseException:  # noqa: BLE001
                pass


class Leaves(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)

    __repr__ = __str__


@fails
def raises_what_leaves_when_it_is_shown():
    raise Leaves from Leaves()


@act("failed", "WORKER_SERIALIZATION_ERROR")
def returns_what_is_a_hundred_megabytes():
    return "x" * 100_000_000


@fails
def raises_a_hundred_megabytes():
    raise ValueError("x" * 100_000_000)


@fails
def raises_by_a_class_that_hides():
    raise Masked("\0\ud800\x1b[2J\u202e<script>")


@fails
def raises_to_the_interpreter():
    raise GeneratorExit


@fails
def leaves_politely():
    sys.exit("\0\ud800")


@fails
def raises_a_deep_group():
    inner: BaseException = ValueError("the innermost")
    for _ in range(5000):
        inner = BaseExceptionGroup("one\0", [inner, KeyError("\ud800")])
    raise inner


@fails
def raises_a_ring():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


@fails
def recurses():
    recurses()


@fails
def runs_out_of_memory():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), hard))
    bytearray(1 << 30)


@fails
def runs_out_of_files():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    kept = [os.dup(0) for _ in range(1000)]
    assert kept


# -- acts that end the process


@dies
def leaves_with_0():
    os._exit(0)


@dies
def leaves_with_our_codes():
    os._exit(75)


@dies
def aborts():
    os.abort()


@dies
def reads_nowhere():
    ctypes.string_at(0)


@dies
def overflows_the_stack():
    # A small stack and a callback from C: Python 3.12 and newer stop deep recursion in Python itself.
    sys.setrecursionlimit(10**6)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def again(*_):
        ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, compare(again))
        return 0

    again()


@dies
def becomes_another_program():
    os.execv("/bin/true", ["/bin/true"])


@dies
def kills_its_group():
    os.killpg(0, signal.SIGKILL)


@dies
def spends_its_processor_time():
    resource.setrlimit(resource.RLIMIT_CPU, (0, 1))
    while True:
        pass


# -- acts that do not end


@is_late
def sleeps():
    time.sleep(FOR_EVER)


@is_late
def swallows_everything():
    while True:
        try:
            time.sleep(FOR_EVER)
        except BaseException:  # noqa: BLE001
            pass


@is_late
def sleeps_in_c_with_signals_blocked():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(FOR_EVER)


class Lingers:
    """An object whose finalizer never ends."""

    def __del__(self) -> None:
        while True:
            time.sleep(FOR_EVER)


class Complains:
    def __del__(self) -> None:
        raise SystemExit("\0\ud800")


@is_late
def leaves_a_finalizer_that_never_ends():
    lingers = Lingers()
    raise ValueError(lingers)


@is_late
def never_cleans_up():
    try:
        time.sleep(FOR_EVER)
    finally:
        time.sleep(FOR_EVER)


@is_late
def raises_what_hears_nothing_when_it_is_shown():
    raise Deaf


class Spins:
    """A result whose attributes cannot be read: each access spins."""

    def __getattribute__(self, name: str) -> object:
        while True:
            pass


@is_late
def returns_what_spins_when_it_is_looked_at():
    return Spins()


@is_late
def stops_itself():
    os.kill(os.getpid(), signal.SIGSTOP)


@is_late
def stops_the_timer_and_sleeps():
    signal.setitimer(signal.ITIMER_REAL, 0)
    while True:
        time.sleep(FOR_EVER)


@is_late
def makes_every_file_wait_and_says_much():
    """The supervisor reads this output through the same open file, and must not block there."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _make_every_file_wait()
    os.write(1, b"x" * 50_000)
    while True:
        time.sleep(FOR_EVER)


LATE = {name for name, one in ACTS.items() if one.code == "JOB_TIMEOUT"}
HERE = Path(__file__)
