"""Runs tests at chosen moments of the wall clock: `make moments`.

    python -m tests.support.moments 2026-11-30T23:59:59.5 tests/sql/test_rollup.py ...

The preloaded library `moments.c` sets the wall clock of pytest, its PostgreSQL servers and all their
child processes to that moment (UTC). It does so at the beginning of each test, after the fixtures.
Other clocks are not changed. So midnight, the end of a month or of a ten-minute slice passes during
each test, as otherwise happens rarely and by chance.
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
"""Seconds before the moment at which the clock starts, for fixtures that all tests share."""


def set_clock(moment: float) -> None:
    """Set the clock of this process and of all processes with its environment."""
    with open(os.environ[AHEAD], "r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        ahead = struct.unpack("q", memory[:8])[0] / 1e9
        memory[:8] = struct.pack("q", int((moment - time.time() + ahead) * 1e9))


def pytest_configure() -> None:
    """Pass the clock to servers too, which otherwise get a minimal environment."""
    environment = binaries.environment
    ours = {name: os.environ[name] for name in ("LD_PRELOAD", AHEAD)}
    binaries.environment = lambda: environment() | ours


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Set the clock before each test."""
    set_clock(float(os.environ[MOMENT]))


def main(moment: str, *words: str) -> int:
    """Run pytest with these arguments at that moment; return its exit code."""
    at = dt.datetime.fromisoformat(moment).replace(tzinfo=dt.UTC).timestamp()
    with tempfile.TemporaryDirectory(prefix="jobherd-moments-") as folder:
        os.chmod(folder, 0o755)  # the server may run as another OS user
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
