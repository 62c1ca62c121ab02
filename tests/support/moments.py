"""Runs tests at chosen moments of the wall clock: `make moments`.

    python -m tests.support.moments 2026-11-30T23:59:59.5 tests/sql/test_rollup.py ...

The clock of pytest, of its PostgreSQL and of what both start is set to that moment (UTC) each time
a test begins, after its fixtures, by a library that is loaded before all others (`moments.c`).
Other clocks stay as they are. So a test sees midnight, the end of a month, or the end of a
ten-minute slice pass by while it runs, as it does by chance in one run of many.
"""

from __future__ import annotations

import datetime as dt
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from jobherd.supervisor.embedded import binaries

AHEAD = "JOBHERD_TEST_AHEAD"
MOMENT = "JOBHERD_TEST_MOMENT"
EARLIER = 600
"""Seconds before the moment at which is made what is made for all tests."""


def set_clock(moment: float) -> None:
    """Set the clock of this process, and of all that have its environment."""
    with open(os.environ[AHEAD], "r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        ahead = struct.unpack("q", memory[:8])[0] / 1e9
        memory[:8] = struct.pack("q", int((moment - time.time() + ahead) * 1e9))


def pytest_configure() -> None:
    """Have servers, which get no environment but their own, start with that clock too."""
    environment = binaries.environment
    ours = {name: os.environ[name] for name in ("LD_PRELOAD", AHEAD)}
    binaries.environment = lambda: environment() | ours


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Set the clock before each test."""
    set_clock(float(os.environ[MOMENT]))


def main(moment: str, *words: str) -> int:
    """Run pytest with these words at that moment."""
    at = dt.datetime.fromisoformat(moment).replace(tzinfo=dt.UTC).timestamp()
    with tempfile.TemporaryDirectory(prefix="jobherd-moments-") as folder:
        os.chmod(folder, 0o755)  # a server has a user of its own
        library, ahead = Path(folder, "moments.so"), Path(folder, "ahead")
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", library, Path(__file__).with_suffix(".c"), "-ldl"], check=True
        )
        ahead.write_bytes(struct.pack("q", int((at - EARLIER - time.time()) * 1e9)))
        ahead.chmod(0o644)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.support.moments", *words],
            env=os.environ | {"LD_PRELOAD": str(library), AHEAD: str(ahead), MOMENT: repr(at)},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
