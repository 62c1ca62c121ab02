"""The handlers of the checks. No other file is copied into the containers with this one."""

from __future__ import annotations

import os
import time

from jobherd import handler

VERSION = 1


@handler("seen:parent", max_attempts=1)
def parent() -> int:
    """Return the pid of the parent process."""
    return os.getppid()


@handler("seen:version", max_attempts=1)
def version() -> int:
    """Return the version of this file that is loaded."""
    return VERSION


@handler("seen:sleep", max_attempts=5)
def sleep(seconds: float) -> None:
    """Sleep for this long."""
    time.sleep(seconds)


@handler("seen:eat", max_attempts=1, max_crashes=1)
def eat(megabytes: int) -> int:
    """Allocate this much memory, and write to it."""
    taken = [bytearray(b"x") * (1 << 20) for _ in range(megabytes)]
    return len(taken)
