"""The test's side of `workers/system/failpoints.py`: stops a process at a named point of the code.

A token at a point tells the next process there what to do. The test waits with inotify, not by polling,
until a process has taken the token.
points = Points(tmp_path / "points")
fleet = stage.start(environment=points.environment)
held = points.hold("job.started")
pid = held.wait()                   # a process waits at the point
fleet.signal(signal.SIGTERM)
held.let_go()
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jobherd.workers.system.failpoints import VARIABLE
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from pathlib import Path

_IN_MOVED_TO: Final = 0x80
_libc = ctypes.CDLL(None, use_errno=True)


class Points:
    """The folder of tokens, which is created."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._count = 0

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a supervisor whose processes check this folder."""
        return {VARIABLE: str(self.folder)}

    def arm(self, name: str, what: str) -> Path:
        """Place a token at a point; return its path."""
        self._count += 1
        draft = self.folder / "draft"
        draft.write_text(what)
        return draft.rename(self.folder / f"{name}@{self._count}")  # atomic: no process reads a partially written token

    def taken(self, token: Path) -> int:
        """Return the pid of the process that has taken the token; 0: none yet."""
        return next((int(path.name.rpartition(":")[2]) for path in self.folder.glob(f"{token.name}:*")), 0)

    def wait_taken(self, token: Path, limit: float = LIMIT) -> int:
        """Wait until a process has taken the token; return its pid."""
        fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if fd < 0 or _libc.inotify_add_watch(fd, os.fsencode(self.folder), _IN_MOVED_TO) < 0:
                raise OSError(ctypes.get_errno(), "the folder of tokens cannot be watched")
            watch, until = select.poll(), time.monotonic() + limit
            watch.register(fd, select.POLLIN)
            while not (pid := self.taken(token)):
                if not watch.poll(max(0.0, until - time.monotonic()) * 1000):
                    raise TimeoutError(f"no process took {token.name} in {limit} s")
                os.read(fd, 65536)
            return pid
        finally:
            if fd >= 0:
                os.close(fd)

    def hold(self, name: str) -> Held:
        """Make the next process at this point wait there until `Held.let_go`."""
        return Held(self, self.arm(name, "hold"))

    def watch(self) -> None:
        """Make every process record the points that it reaches."""
        (self.folder / "seen").touch()

    def seen(self, pid: int | None = None) -> set[str]:
        """Return the points that any process, or only this one, has reached."""
        return {
            line
            for path in self.folder.glob("seen.*" if pid is None else f"seen.{pid}")
            for line in path.read_text().split()
        }


@dataclass(frozen=True, slots=True)
class Held:
    """A token that stops the process that takes it."""

    points: Points
    token: Path

    def wait(self, limit: float = LIMIT) -> int:
        """Wait until a process is stopped at the point; return its pid."""
        return self.points.wait_taken(self.token, limit)

    def let_go(self) -> None:
        """Let the process continue."""
        self.token.with_name(f"{self.token.name}:{self.points.taken(self.token)}").unlink()
