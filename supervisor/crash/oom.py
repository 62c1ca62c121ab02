"""Finds out whether the kernel killed a process because memory ran out.

It reads the kernel's counters in cgroup v2, v1 or for the machine, and how much memory the
supervisor's control group may use.

The kernel only counts its kills and does not name the process. So the counter is read every two
seconds, and a process that ended by SIGKILL right after it rose counts as the victim. A kill longer
ago was of another program, such as one that a handler had started.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final

EVERY: Final = 2.0
"""Seconds between two reads."""
RECENT: Final = 5.0
"""Seconds after a rise of the counter in which a death may be the cause: ending a large process
takes time."""
_UNLIMITED: Final = 1 << 60
_COUNT: Final = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
_NAMES: Final = {
    2: ("memory.max", "memory.peak", "memory.current"),
    1: ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes"),
}


class OomWatch:
    """Reads the kernel's counters of out-of-memory kills, and attributes each kill to one dead child.

    `root` and `proc` are the folders that have them; tests pass others.
    """

    def __init__(self, *, root: str = "/sys/fs/cgroup", proc: str = "/proc") -> None:
        self._root = root
        self.version, self.folder, self._file = _place(root, proc)
        self._seen = self._count()
        self._grown: list[float] = []
        """Times at which it rose, one for each kill that was not yet assigned to a death."""
        self._at = 0.0

    def look(self, now: float) -> None:
        """Record how much the counter has grown, if a read is due."""
        if now >= self._at:
            self._look(now)

    def claim(self, now: float) -> bool:
        """Return whether a process that has just ended by SIGKILL was a victim of the kernel.

        Each kill counts for one process.
        """
        self._look(now)
        if self._grown:
            self._grown.pop()
            return True
        return False

    def evidence(self) -> dict[str, object]:
        """Return `group`, the bytes `limit`, `peak` and `used`, and the number of kills so far.

        Without a control group, some of these are missing.
        """
        known: dict[str, object] = {"counted": "control group" if self.version else "machine", "oom_kills": self._seen}
        if self.version:
            limit, peak, used = (_number(os.path.join(self.folder, name)) for name in _NAMES[self.version])
            folder = self.folder
            while len(folder) > len(self._root) + 1:  # a group further up may have a lower limit
                folder = os.path.dirname(folder)
                above = _number(os.path.join(folder, _NAMES[self.version][0]))
                limit = above if limit is None else limit if above is None else min(limit, above)
            known |= {
                "version": self.version,
                "group": self.folder[len(self._root) :] or "/",
                "limit": limit,
                "peak": peak,
                "used": used,
            }
        return known

    def _look(self, now: float) -> None:
        self._at = now + EVERY
        count = self._count()
        self._grown = [at for at in self._grown if at > now - RECENT] + [now] * min(count - self._seen, 100)
        self._seen = count

    def _count(self) -> int:
        with suppress(OSError), open(self._file, encoding="ascii") as file:
            if match := _COUNT.search(file.read()):
                return int(match[1])
        return 0


def _place(root: str, proc: str) -> tuple[int, str, str]:
    """Return the control group's version (0.

    None is visible), its folder, and the counter's file.
    """
    with suppress(OSError, ValueError), open(f"{proc}/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers:
                version, top, name = 2, root, "memory.events"
            elif "memory" in controllers.split(","):
                version, top, name = 1, f"{root}/memory", "memory.oom_control"
            else:
                continue
            # A container sees its own group at the top, but may get its name as on the host.
            for folder in (os.path.normpath(f"{top}/{path}"), top):
                if os.path.exists(f"{folder}/{name}"):
                    return version, folder, f"{folder}/{name}"
    return 0, "", f"{proc}/vmstat"


def _number(path: str) -> int | None:
    """Return the number in a file; None if there is none, or if it means "no limit"."""
    with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        number = int(file.read())
        return number if number < _UNLIMITED else None
    return None
