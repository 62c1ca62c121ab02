"""Starts processes with a wrong wall clock, by libfaketime, which `make faketime` installs.

The monotonic clock is not changed.

    with Clock() as clock:
        environment = clock.environment     # for a process that the test starts
        clock.jump(3600)                    # from now on, its clock is an hour ahead"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

LIBRARY = next((str(found) for found in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), "")


class Clock:
    """The clock of all processes that are started with its environment, including their children."""

    def __init__(self) -> None:
        assert LIBRARY, "libfaketime is not installed: make faketime"
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-clock-", dir="/tmp"))
        self._folder.chmod(0o755)  # the server may run as another OS user
        self._file = self._folder / "clock"
        self.file = str(self._file)
        self.jump(0)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": self.file,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
        }

    def jump(self, seconds: float) -> None:
        """Set the clock this many seconds ahead of the true time; a negative number sets it behind."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+.3f}s\n")
        fresh.chmod(0o644)
        os.replace(fresh, self._file)  # atomic: no process reads a partially written file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)
