"""Records the users of the embedded server by locks, and has the lock for starting and stopping it.

The kernel releases a lock with its holder, so a killed user needs no cleanup.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from jobherd.supervisor.embedded.binaries import EmbeddedUnavailable
from jobherd.supervisor.embedded.server import GLANCE, locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class User:
    """One user of the server: the descriptors whose locks prove that it exists."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.fds: list[int] = []
        self.link: Path | None = None
        """A short link to the data, if its own path is too long for a socket or is not valid text."""

    def is_ours(self) -> bool:
        """Return whether this process holds it: forked children must not release a shared lock."""
        return bool(self.fds) and self.process == os.getpid()

    def close(self) -> None:
        """Release the locks."""
        while self.fds:
            fd = self.fds.pop()
            # closing alone would leave the lock with children that inherited the descriptor
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def open_private(path: Path) -> int:
    """Return a descriptor of a lock file, which only its owner can open."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def lock(fd: int, how: int, path: Path, until: float) -> None:
    """Lock the file, or raise EmbeddedUnavailable once it is too late."""
    while not locked(fd, how):
        if time.monotonic() > until:
            raise EmbeddedUnavailable(f"Another process holds {path} while it starts or stops the database. Try again.")
        time.sleep(GLANCE)


@contextlib.contextmanager
def alone(folder: Path, until: float) -> Iterator[int]:
    """Hold the lock for joining, leaving, starting and stopping; yield its descriptor."""
    path = folder / "postgres.lock"
    fd = open_private(path)
    try:
        lock(fd, fcntl.LOCK_EX, path, until)
        yield fd
    finally:
        os.close(fd)
