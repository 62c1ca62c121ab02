"""The handlers of the runs. Copied beside nothing else, into the containers."""

from __future__ import annotations

import os
import time

from jobherd import handler

VERSION = 1


@handler("seen:parent", max_attempts=1)
def parent() -> int:
    """Return which process is the parent of this one."""
    return os.getppid()


@handler("seen:version", max_attempts=1)
def version() -> int:
    """Return which version of this file is loaded."""
    return VERSION


@handler("seen:sleep", max_attempts=5)
def sleep(seconds: float) -> None:
    """Take this long."""
    time.sleep(seconds)


@handler("seen:eat", max_attempts=1, max_crashes=1)
def eat(megabytes: int) -> int:
    """Take this much memory, and write into it."""
    taken = [bytearray(b"x") * (1 << 20) for _ in range(megabytes)]
    return len(taken)
