"""Whether the kernel killed for want of memory, and what our control group may take: counts that it keeps, in cgroup v2, v1, or for the machine.

The kernel does not say whom it has killed, only how often. So the count is looked at every other second, and a process that ended by SIGKILL
while the count had just grown is the one; a program that a handler has started, killed a while ago, is nobody's of ours.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final

EVERY: Final = 2.0
"""Seconds between two looks."""
RECENT: Final = 5.0
"""Seconds after a growth of the count in which a death may be what made it grow: taking down a large process takes its time."""
_UNLIMITED: Final = 1 << 60
_COUNT: Final = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
_NAMES: Final = {
    2: ("memory.max", "memory.peak", "memory.current"),
    1: ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes"),
}


class OomWatch:
    """The kernel's counts. root, proc: where it shows them; another folder in tests."""

    def __init__(self, *, root: str = "/sys/fs/cgroup", proc: str = "/proc") -> None:
        self._root = root
        self.version, self.folder, self._file = _place(root, proc)
        self._seen = self._count()
        self._grown: list[float] = []
        """When it has grown, once for each kill that nobody's death was taken for."""
        self._at = 0.0

    def look(self, now: float) -> None:
        """Note how much it has grown, if it is time."""
        if now >= self._at:
            self._look(now)

    def claim(self, now: float) -> bool:
        """Return whether a process that has just ended by SIGKILL was killed for want of memory. Each kill counts for one."""
        self._look(now)
        if self._grown:
            self._grown.pop()
            return True
        return False

    def evidence(self) -> dict[str, object]:
        """Return what is known: `group`, `limit`, `peak` and `used` in bytes, and how many were killed there so far. Without a control group: less."""
        known: dict[str, object] = {"counted": "control group" if self.version else "machine", "oom_kills": self._seen}
        if self.version:
            limit, peak, used = (_number(os.path.join(self.folder, name)) for name in _NAMES[self.version])
            folder = self.folder
            while len(folder) > len(self._root) + 1:  # whoever stands above may allow less
                folder = os.path.dirname(folder)
                above = _number(os.path.join(folder, _NAMES[self.version][0]))
                limit = above if limit is None else limit if above is None else min(limit, above)
            known |= {"version": self.version, "group": self.folder[len(self._root) :] or "/", "limit": limit, "peak": peak, "used": used}
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
    """Return the version of our control group (0: none is seen), its folder, and the file with the count."""
    with suppress(OSError, ValueError), open(f"{proc}/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers:
                version, top, name = 2, root, "memory.events"
            elif "memory" in controllers.split(","):
                version, top, name = 1, f"{root}/memory", "memory.oom_control"
            else:
                continue
            # A container sees its own group at the top, and may be told its name as the host knows it.
            for folder in (os.path.normpath(f"{top}/{path}"), top):
                if os.path.exists(f"{folder}/{name}"):
                    return version, folder, f"{folder}/{name}"
    return 0, "", f"{proc}/vmstat"


def _number(path: str) -> int | None:
    """Return the number in a file; None if there is none, or if it stands for no limit."""
    with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        number = int(file.read())
        return number if number < _UNLIMITED else None
    return None
