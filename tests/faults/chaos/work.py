"""Handlers of the chaos campaign.

There are jobs of every kind. What each does outside the database is recorded in a file, which no
fault of the database affects.

A record is one line, appended to one file with one write, so a kill cannot leave a partial line. A
lock that the kernel releases when the process ends shows whether two runs of a job overlap. Waits
between attempts are short; otherwise a campaign would end hours after its last fault.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobherd import Job, Nack, Snooze, handler

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = os.environ.get("CHAOS_FOLDER", "/nonexistent")
AGAIN = ["50ms"]


@contextmanager
def _noted(job: Job) -> Iterator[None]:
    """Record the start and the end of a run, and whether another run of the same job overlaps."""
    lock = os.open(f"{FOLDER}/locks", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, job.id)
        except OSError:
            _note("overlap", job)
        _note("start", job)
        yield
        _note("end", job)
    finally:
        os.close(lock)


def _note(what: str, job: Job) -> None:
    fd = os.open(f"{FOLDER}/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"%s %d %d %d\n" % (what.encode(), job.id, job.attempt, os.getpid()))
    os.close(fd)


@handler("chaos:quick", max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def quick(secret: str = "") -> None:
    """Do nothing."""


@handler("chaos:line", max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def line(job: Job, seconds: float = 0.002) -> str:
    """Record a run outside the database that takes `seconds`."""
    with _noted(job):
        time.sleep(seconds)
    return "done"


@handler("chaos:burn", max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def burn(job: Job, seconds: float = 0.02) -> None:
    """Compute for `seconds`."""
    with _noted(job):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sum(number * number for number in range(1000))


@handler("chaos:effect", transactional=True, max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def effect(job: Job) -> None:
    """Write a row in the transaction that completes the job."""
    job.connection.execute("INSERT INTO audit.effects (job, attempt) VALUES (%s, %s)", [job.id, job.attempt])


@handler("chaos:halfway", max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def halfway(job: Job) -> None:
    """Begin the transaction late.

    The work before the transaction may happen twice, but not the work in it.
    """
    with _noted(job):
        time.sleep(0.005)
        with job.transaction() as connection:
            connection.execute("INSERT INTO audit.effects (job, attempt) VALUES (%s, %s)", [job.id, job.attempt])


@handler("chaos:capped", max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def capped(job: Job) -> None:
    """Run under a concurrency limit."""
    with _noted(job):
        time.sleep(0.01)


@handler("chaos:exclusive", exclusive=True, max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def exclusive(job: Job) -> None:
    """Run exclusively: never on two hosts at once."""
    with _noted(job):
        time.sleep(0.05)


@handler("chaos:flaky", max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def flaky(job: Job, times: int = 1, secret: str = "") -> None:
    """Fail `times` times, then succeed; print a line each time."""
    print(f"attempt {job.attempt} of {job.id}")
    if job.attempt <= times:
        raise ConnectionError("not yet")


@handler("chaos:undecided", max_attempts=1000, max_crashes=1000, backoff=AGAIN)
def undecided(job: Job) -> None:
    """Postpone the first attempt, with Nack or sometimes Snooze."""
    if job.attempt == 1 and job.id % 2:
        raise Nack("50ms", "not now")
    if job.attempt == 1 and time.time() % 1 < 0.5:
        raise Snooze("50ms")


@handler("chaos:brittle", max_attempts=2, max_crashes=1, backoff=AGAIN)
def brittle(job: Job) -> None:
    """Allow one failed attempt and no crash."""
    with _noted(job):
        time.sleep(0.01)


@handler("chaos:crash", max_attempts=6, max_crashes=3, backoff=AGAIN)
def crash(job: Job, times: int = 1) -> None:
    """Crash the worker in the first `times` attempts, each time in another way."""
    if job.attempt <= times:
        match (job.id + job.attempt) % 4:
            case 0:
                os.kill(os.getpid(), signal.SIGKILL)
            case 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 2:
                os._exit(0)
            case _:
                os.abort()


@handler("chaos:stuck", max_attempts=2, max_crashes=1000, timeout="500ms", backoff=AGAIN)
def stuck() -> None:
    """Never return.

    Every signal that can be blocked is blocked, and C code keeps the interpreter's lock.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(3600)
