"""A process beside a supervisor that starts the embedded PostgreSQL again when it has died.

A server of the system has its service manager; this one has nobody, and a fleet would wait for it for ever. The supervisor itself must not
do it: a start takes seconds, recovery longer, and the parent never waits. The guard starts and nothing else: it is no user of the server
beyond one look, so it can neither keep it running nor stop it, and it ends with whoever started it, by whatever death.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.embedded import lifecycle
from jobherd.workers.process import logs
from jobherd.workers.process.spec import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("jobherd.embedded")

_PR_SET_PDEATHSIG: Final = 1
_REST_FIRST: Final = 0.5
_REST_MOST: Final = 30.0
"""Seconds between two tries to start it: doubling."""
_STANDS: Final = 10.0
"""A server that lived for so many seconds is started again at once."""


@contextlib.contextmanager
def guarded(directory: Path, *, log_format: str = "auto", log_level: str = "INFO") -> Iterator[None]:
    """Have the server of a working directory started again whenever it dies, until the end of the block.

    directory: whose `.jobherd` it is; the caller has joined it already.
    log_format, log_level: as of the supervisor, whose standard error the guard writes to.
    Raises OSError when the system refuses a process.

    >>> with guarded(Path.cwd()):  # doctest: +SKIP
    ...     work()
    """
    words = [f"--directory={directory.absolute()}", f"--format={log_format}", f"--level={log_level}", f"--parent={os.getpid()}"]
    kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
    guard = subprocess.Popen([sys.executable, "-m", __name__, *words], env=kept, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        guard.terminate()
        guard.wait()  # it may hold the lock under which the last user stops the server


def watch(directory: Path) -> None:
    """Start the server whenever it is not there, for ever."""
    rest, told = 0.0, False
    while True:
        time.sleep(rest)
        since = time.monotonic()
        try:
            # As a user it joins, and the server is there; then it leaves: the supervisor, which is a user too, decides how long it stays.
            with lifecycle.start(directory) as server:
                pid, started = server.pid, server.started
        except lifecycle.EmbeddedUnavailable as problem:
            if not told:
                log.error("the embedded PostgreSQL does not start: %s; trying until it does", problem)
            told = True
        else:
            told = False
            if started:
                log.warning("the embedded PostgreSQL had ended and was started again", extra={"postmaster": pid})
            _wait_for_end(pid)
        rest = 0.0 if time.monotonic() - since > _STANDS else min(_REST_MOST, max(_REST_FIRST, rest * 2))


def _wait_for_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            select.select([fd], [], [])
        finally:
            os.close(fd)


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--format")
    parser.add_argument("--level")
    parser.add_argument("--parent", type=int)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # killed like a user that dies: the locks go with it, the server stays
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != given.parent:
        return 0  # it died before we could ask to be told
    logs.set_up(who="guard", log_format=given.format, level=given.level)
    watch(given.directory)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
