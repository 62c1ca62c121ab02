"""The test's side of `workers/system/failpoints.py`.

Tokens at named points, and waiting until somebody has taken one, by the kernel's word and not by a
poll.

points = Points(tmp_path / "points")
fleet = stage.start(environment=points.environment)
held = points.hold("job.started")
pid = held.wait()                   # somebody stands there
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
    """The folder of tokens, which is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._count = 0

    @property
    def environment(self) -> dict[str, str]:
        """Of a supervisor whose processes are to look here."""
        return {VARIABLE: str(self.folder)}

    def arm(self, name: str, what: str) -> Path:
        """Put a token at a point."""
        self._count += 1
        draft = self.folder / "draft"
        draft.write_text(what)
        return draft.rename(self.folder / f"{name}@{self._count}")  # whole, or not there at all

    def taken(self, token: Path) -> int:
        """Who has taken it; 0: nobody yet."""
        return next((int(path.name.rpartition(":")[2]) for path in self.folder.glob(f"{token.name}:*")), 0)

    def wait_taken(self, token: Path, limit: float = LIMIT) -> int:
        """Wait until somebody has taken it; return who."""
        fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if fd < 0 or _libc.inotify_add_watch(fd, os.fsencode(self.folder), _IN_MOVED_TO) < 0:
                raise OSError(ctypes.get_errno(), "the folder of tokens cannot be watched")
            watch, until = select.poll(), time.monotonic() + limit
            watch.register(fd, select.POLLIN)
            while not (pid := self.taken(token)):
                if not watch.poll(max(0.0, until - time.monotonic()) * 1000):
                    raise TimeoutError(f"nobody took {token.name} in {limit} s")
                os.read(fd, 65536)
            return pid
        finally:
            if fd >= 0:
                os.close(fd)

    def hold(self, name: str) -> Held:
        """Have the next process at that point wait there until it is released."""
        return Held(self, self.arm(name, "hold"))

    def watch(self) -> None:
        """Have every process note what it reaches."""
        (self.folder / "seen").touch()

    def seen(self, pid: int | None = None) -> set[str]:
        """What was reached, by anybody or by that process."""
        return {
            line
            for path in self.folder.glob("seen.*" if pid is None else f"seen.{pid}")
            for line in path.read_text().split()
        }


@dataclass(frozen=True, slots=True)
class Held:
    """A token that holds the process that takes it."""

    points: Points
    token: Path

    def wait(self, limit: float = LIMIT) -> int:
        """Wait until somebody stands there; return who."""
        return self.points.wait_taken(self.token, limit)

    def let_go(self) -> None:
        """Let it go on."""
        self.token.with_name(f"{self.token.name}:{self.points.taken(self.token)}").unlink()
