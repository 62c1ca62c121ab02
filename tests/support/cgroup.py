"""A control group of the test's own that limits how many processes there may be, of version 1 or 2, whichever the machine lets us make.

    with ProcessLimit() as group:
        group.take(pid, *children)
        group.set(1)                     # no fork of theirs succeeds any more: EAGAIN
        group.lift()

A process that is in it at the end goes back to where the test is. `why_not` says what is missing where
there is none.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final, Self

from tests.support.patience import LIMIT

_ROOT: Final = Path("/sys/fs/cgroup")


def _home() -> Path | None:
    """The folder of groups in which processes are counted; None where there is none."""
    with contextlib.suppress(OSError):
        if "pids" in (_ROOT / "cgroup.subtree_control").read_text().split():
            return _ROOT
    return _ROOT / "pids" if (_ROOT / "pids" / "cgroup.procs").exists() else None


def why_not() -> str:
    """Why no such group can be made here; empty if one can."""
    home = _home()
    if home is None:
        return "no control group counts processes here: the controller `pids` is not mounted"
    return "" if os.access(home, os.W_OK) else f"{home} is not ours to make a control group in"


def dissolve(group: Path, into: Path) -> None:
    """Move the processes of a group into another one, and remove it."""
    until = time.monotonic() + LIMIT
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (into / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
        except OSError:  # somebody has forked between the look and the move, or one who has just died is still counted
            if time.monotonic() >= until:
                raise
        else:
            return


class ProcessLimit:
    """The group. It limits nothing until it is told to."""

    def __enter__(self) -> Self:
        home = _home()
        assert home is not None, why_not()
        self._home = home
        self._place = home / f"jobherd-test-{os.getpid()}"
        self._place.mkdir()
        return self

    def take(self, *pids: int) -> None:
        """Move these processes into it; what they fork from now on is in it too."""
        for pid in pids:
            (self._place / "cgroup.procs").write_text(str(pid))

    def set(self, most: int) -> None:
        """Allow so many processes; those that are there go on, however many they are."""
        (self._place / "pids.max").write_text(str(most))

    def lift(self) -> None:
        """Allow any number."""
        (self._place / "pids.max").write_text("max")

    def refused(self) -> int:
        """How many forks were refused so far."""
        return int((self._place / "pids.events").read_text().split()[1])

    def __exit__(self, *_: object) -> None:
        self.lift()
        dissolve(self._place, self._home)
