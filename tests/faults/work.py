"""Handlers of the fault campaigns: jobs of mixed length, and some that resist being stopped."""

from __future__ import annotations

import ctypes
import os
import random
import secrets
import select
import signal
import sys
import time
import uuid

from jobherd import Job, handler

if "FAULT_CLOCK" in os.environ:  # Only workers import this module: their clock differs from the supervisor's.
    os.environ["FAKETIME_TIMESTAMP_FILE"] = os.environ["FAULT_CLOCK"]


signal.signal(signal.SIGURG, lambda *_: None)  # A signal without a handler interrupts no wait: see `stress storm`.


@handler("fault:quick", max_attempts=1000, max_crashes=1000, backoff="1s")
def quick() -> None:
    """Do nothing."""


@handler("fault:wear", max_attempts=1000, max_crashes=1000, backoff="1s")
def wear() -> str:
    """Change the process state so that the worker must be replaced.

    Return random values that no other worker may return.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return f"{random.random()} {secrets.token_hex(8)} {uuid.uuid4()} {uuid.uuid1()}"


@handler("fault:pours", max_attempts=1, timeout="10m")
def pours(megabytes: int) -> None:
    """Write `megabytes` blocks of 1 MB to both streams: no line ends, and not valid text."""
    block = bytes(range(11, 256)) * 4096
    for _ in range(megabytes):
        os.write(1, block)
        os.write(2, block)


@handler("fault:sleep", max_attempts=1000, max_crashes=1000, backoff="1s")
def sleep(seconds: float) -> str:
    """Sleep, as a job does that waits for another service."""
    time.sleep(seconds)
    return "slept"


@handler("fault:wait", max_attempts=1000, max_crashes=1000, backoff="1s")
def wait(seconds: float) -> str:
    """Wait in a way that works under a wrong clock.

    There `time.sleep` fails with an invalid argument.
    """
    select.select([], [], [], seconds)
    return "waited"


@handler("fault:edge", timeout="5ms", max_attempts=1, keep_completed=0)
def edge(seconds: float) -> None:
    """Compute for `seconds`, which ends at the timeout or 1 ms before or after it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@handler("fault:brief", timeout="1m", max_attempts=1, keep_completed=0)
def brief(seconds: float) -> None:
    """Return at once."""


@handler("fault:alone", exclusive=True, max_attempts=1000, max_crashes=1000, backoff="1s", timeout="10m")
def alone(seconds: float) -> str:
    """Sleep, as an exclusive job: never while another host may run it."""
    time.sleep(seconds)
    return "alone"


@handler("fault:burn", max_attempts=1000, max_crashes=1000, backoff="1s", timeout="10m")
def burn(seconds: float) -> int:
    """Compute for `seconds`."""
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        rounds += sum(number * number % 7 for number in range(1000)) > 0
    return rounds


@handler("fault:effect", transactional=True, max_attempts=1000, max_crashes=1000, backoff="10ms")
def effect(job: Job) -> None:
    """Write a row in the transaction that completes the job."""
    job.connection.execute("INSERT INTO audit.effects (job, attempt) VALUES (%s, %s)", [job.id, job.attempt])


@handler("fault:flaky", max_attempts=1000, max_crashes=1000, backoff="10ms")
def flaky(job: Job, times: int = 1) -> None:
    """Fail `times` times, then succeed; print a line each time."""
    print(f"attempt {job.attempt} of {job.id}")
    if job.attempt <= times:
        raise ConnectionError("not yet")


@handler("fault:line", max_attempts=1000, max_crashes=1000, backoff="10ms")
def line(job: Job, path: str) -> None:
    """Append a line to a file at the start and at the end, each with one write: a kill leaves no partial line."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"start %d %d\n" % (os.getpid(), job.id))
    time.sleep(0.0003)
    os.write(fd, b"end %d %d\n" % (os.getpid(), job.id))
    os.close(fd)


@handler("fault:plain", max_attempts=1000, max_crashes=1000, backoff="10ms")
def plain(path: str, n: int) -> None:
    """Append the same lines, as a job that the loop of short jobs accepts, and record which loop ran it."""
    way = b"short" if sys._getframe(1).f_code.co_filename.endswith("short_jobs.py") else b"ordinary"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"start %d %d %s\n" % (os.getpid(), n, way))
    time.sleep(0.0003)
    os.write(fd, b"end %d %d\n" % (os.getpid(), n))
    os.close(fd)


@handler("fault:noted", max_attempts=1000, max_crashes=1000, backoff="10ms")
def noted(job: Job, path: str, seconds: float) -> None:
    """Sleep, and record when the run began and ended: see `runs.py`."""
    _tell_run(job, path, seconds)


@handler("fault:noted-alone", exclusive=True, max_attempts=1000, max_crashes=1000, backoff="10ms", timeout="10m")
def noted_alone(job: Job, path: str, seconds: float) -> None:
    """Do the same as an exclusive job: never while another host may run it."""
    _tell_run(job, path, seconds)


@handler("fault:deadly", backoff="10ms")
def deadly() -> None:
    """Crash the worker, as a library with a bug does."""
    os.kill(os.getpid(), signal.SIGSEGV)


@handler("fault:stubborn", max_attempts=1000, max_crashes=1000, timeout="1h")
def stubborn(path: str) -> None:
    """Ignore SIGTERM and every exception, as does a process that it forks; both write their pids to a file."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note(path, os.getpid())
    if os.fork() == 0:
        _note(path, os.getpid())
        _sit()
    _sit()


@handler("fault:deaf", max_attempts=1, timeout="2s")
def deaf(path: str, escape: bool = False) -> None:
    """Block every signal and call a C function that never returns, as does a process that it forks.

    With `escape` the forked process has its own session.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _note(path, os.getpid())
    if os.fork() == 0:
        if escape:
            os.setsid()
        _note(path, os.getpid())
        _sit()
    _sit()


def _tell_run(job: Job, path: str, seconds: float) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"start %d %d %.6f\n" % (job.id, os.getpid(), time.monotonic()))
    try:
        time.sleep(seconds)
    finally:
        os.write(fd, b"end %d %d %.6f\n" % (job.id, os.getpid(), time.monotonic()))
        os.close(fd)


def _sit() -> None:
    # PyDLL keeps the interpreter's lock: no Python code runs meanwhile, not even a signal handler.
    libc = ctypes.PyDLL(None)
    while True:
        try:
            libc.sleep(3600)
        except BaseException:
            pass


def _note(path: str, pid: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"%d\n" % pid)
    os.close(fd)
