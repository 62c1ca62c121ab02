"""Restarts the embedded PostgreSQL when it has died, in a separate process next to the supervisor.

A system's PostgreSQL has a service manager; the embedded one has none, and a fleet would wait for
it indefinitely. The supervisor must not restart it: a start takes seconds, recovery longer, and the
supervisor never waits. The guard only starts the server. Apart from one short check it is not a
user of the server, so it can neither keep it running nor stop it. It ends with the process that
started it, however that dies.
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
"""Seconds between two attempts to start it: doubled each time, up to this."""
_STANDS: Final = 10.0
"""A server that has run for this many seconds is restarted at once."""


@contextlib.contextmanager
def guarded(directory: Path, *, log_format: str = "auto", log_level: str = "INFO") -> Iterator[None]:
    """Restart the server of a working directory whenever it dies, until the end of the block.

    Args:
        directory: the folder that contains `.jobherd`; the caller has joined the server already.
        log_format: the supervisor's; the guard writes to the same standard error.
        log_level: the supervisor's.

    Raises:
        OSError: the kernel refuses a process.

    >>> with guarded(Path.cwd()):  # doctest: +SKIP
    ...     work()
    """
    words = [
        f"--directory={directory.absolute()}",
        f"--format={log_format}",
        f"--level={log_level}",
        f"--parent={os.getpid()}",
    ]
    kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
    guard = subprocess.Popen(
        [sys.executable, "-m", __name__, *words], env=kept, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        guard.terminate()
        guard.wait()  # it may hold the lock under which the last user stops the server


def watch(directory: Path) -> None:
    """Start the server whenever it does not run, indefinitely."""
    rest, logged = 0.0, False
    while True:
        time.sleep(rest)
        since = time.monotonic()
        try:
            # Joining as a user starts the server if necessary. Then the guard leaves again: the
            # supervisor, also a user, decides how long the server runs.
            with lifecycle.start(directory) as server:
                pid, started = server.pid, server.started
        except lifecycle.EmbeddedUnavailable as problem:
            if not logged:
                log.error("the embedded PostgreSQL does not start: %s; trying until it does", problem)
            logged = True
        else:
            logged = False
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
    # Killed like a user that dies: its locks are released and the server continues.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != given.parent:
        return 0  # the parent died before prctl took effect
    logs.set_up(process="guard", log_format=given.format, level=given.level)
    watch(given.directory)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
