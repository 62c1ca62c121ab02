"""A control group that limits the number of processes, of version 1 or 2, whichever the host allows.
with ProcessLimit() as group:
        group.take(pid, *children)
        group.set(1)                     # each further fork of these processes fails with EAGAIN
        group.lift()

At the end, its processes move to the root of the hierarchy. If no such group can be made, `why_not`
returns the reason.
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
    """Return the folder of the control groups that count processes, or None."""
    with contextlib.suppress(OSError):
        if "pids" in (_ROOT / "cgroup.subtree_control").read_text().split():
            return _ROOT
    return _ROOT / "pids" if (_ROOT / "pids" / "cgroup.procs").exists() else None


def why_not() -> str:
    """Return why such a group cannot be made here; empty if it can."""
    home = _home()
    if home is None:
        return "no control group counts processes on this host: the controller `pids` is not mounted"
    return "" if os.access(home, os.W_OK) else f"no permission to create a control group in {home}"


def dissolve(group: Path, into: Path) -> None:
    """Move the processes of a group into another one, and remove it."""
    until = time.monotonic() + LIMIT
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (into / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
        except OSError:  # a process forked between the read and the move, or a dead one is still counted
            if time.monotonic() >= until:
                raise
        else:
            return


class ProcessLimit:
    """The control group. There is no limit until `set`."""

    def __enter__(self) -> Self:
        home = _home()
        assert home is not None, why_not()
        self._home = home
        self._place = home / f"jobherd-test-{os.getpid()}"
        self._place.mkdir()
        return self

    def take(self, *pids: int) -> None:
        """Move these processes into the group; processes that they fork later are in it too."""
        for pid in pids:
            (self._place / "cgroup.procs").write_text(str(pid))

    def set(self, most: int) -> None:
        """Allow at most this many processes; existing ones continue, even if there are more."""
        (self._place / "pids.max").write_text(str(most))

    def lift(self) -> None:
        """Remove the limit."""
        (self._place / "pids.max").write_text("max")

    def refused(self) -> int:
        """Return how many forks have failed so far because of the limit."""
        return int((self._place / "pids.events").read_text().split()[1])

    def __exit__(self, *_: object) -> None:
        self.lift()
        dissolve(self._place, self._home)
