"""Processes whose wall clock is wrong, by libfaketime, which `make faketime` installs.

The monotonic clock stays as it is.

    with Clock() as clock:
        environment = clock.environment     # of a process that is to be started
        clock.jump(3600)                    # from now on it is an hour ahead of the truth

Nothing here knows what is started.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

LIBRARY = next((str(found) for found in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), "")


class Clock:
    """The clock of whatever is started with its environment, children included."""

    def __init__(self) -> None:
        assert LIBRARY, "libfaketime is not installed: make faketime"
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-clock-", dir="/tmp"))
        self._folder.chmod(0o755)  # a server has a user of its own
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
        """Set it to the true time and so many seconds."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+.3f}s\n")
        fresh.chmod(0o644)
        os.replace(fresh, self._file)  # nobody reads half of it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)
