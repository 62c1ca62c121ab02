"""The notice: what the parent says to every child, in memory that it alone writes. Whether there may be work, whether one may claim, what it knows."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from typing import Final

from jobherd.workers.ipc.record import DoubleBuffer, barrier
from jobherd.workers.system.procfs import space, started

NAME: Final = "jobherd-notice:"
"""What the system calls that memory, with its owner behind: it shows in the maps of every process that came from that parent."""
_F_SEAL_FUTURE_WRITE: Final = 0x0010
"""Of Linux 5.1; the module of Python 3.11 does not know it."""


class ControlBlock:
    """The parent writes, every child reads.

    `epoch` grows with everything that may mean work. A child notes it before it claims; if the claim was empty and the epoch has moved
    since, it claims again instead of sleeping: between its claim and its sleep nothing can slip through. `hearing` says that whatever
    is committed from now on moves the epoch; a child that goes idle without it says so, and is called once the parent hears.

    owner: pid, start and pid namespace of the process that made it.
    """

    _EPOCH, _DRAINING, _LOOP, _LEASE, _DATABASE, _HEARING = range(6)
    _FACTS = 64 * 1024

    def __init__(self) -> None:
        self.owner = f"{os.getpid()}/{started(os.getpid())}/{space()}"
        self.fd = os.memfd_create(NAME + self.owner, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._size = 4096 + DoubleBuffer.size(self._FACTS)
        os.ftruncate(self.fd, self._size)
        self._view = memoryview(mmap.mmap(self.fd, self._size))
        # A job that writes into every file it finds must not be heard by all, and one that cuts them off must not end the parent by SIGBUS.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | _F_SEAL_FUTURE_WRITE)
        self._words = self._view[:256].cast("Q")
        self._times = self._view[256:512].cast("d")
        self._facts = DoubleBuffer(self._view, 4096, self._FACTS)

    def bump(self) -> None:
        """Called in the parent: there may be work."""
        self._words[self._EPOCH] += 1
        barrier()

    @property
    def epoch(self) -> int:
        """Grows with everything that may mean work."""
        return int(self._words[self._EPOCH])

    @property
    def hearing(self) -> bool:
        """Whether producers notify the parent."""
        return bool(self._words[self._HEARING])

    @hearing.setter
    def hearing(self, value: bool) -> None:
        self._words[self._HEARING] = value

    @property
    def lease_deadline(self) -> float:
        """Monotonic time past which nobody may claim: the lease may have lapsed."""
        return float(self._times[self._LEASE])

    @lease_deadline.setter
    def lease_deadline(self, value: float) -> None:
        self._times[self._LEASE] = value

    @property
    def loop_at(self) -> float:
        """Monotonic time at which the parent's loop last turned."""
        return float(self._times[self._LOOP])

    @loop_at.setter
    def loop_at(self, value: float) -> None:
        self._times[self._LOOP] = value

    @property
    def draining(self) -> bool:
        """Whether the supervisor is on its way out."""
        return bool(self._words[self._DRAINING])

    @draining.setter
    def draining(self, value: bool) -> None:
        self._words[self._DRAINING] = value

    def publish(self, facts: dict[str, object]) -> None:
        """Called in the parent: what it knows of the fleet, for the page and the metrics. Of more than there is room for, the longest lose their end."""
        self._facts.write(_fitted(facts, self._FACTS))

    def facts(self) -> dict[str, object]:
        """Return what the parent last published."""
        record = self._facts.read()
        found = json.loads(record) if record else {}
        return found if isinstance(found, dict) else {}


def _fitted(facts: dict[str, object], most: int) -> bytes:
    """Return facts as JSON of at most so many bytes: a record that is cut is none at all, and its readers would know nothing.

    The longest field is halved until all fit. What stands first stays: a counter that was shown goes on being shown.
    """
    text = json.dumps(facts).encode()
    while len(text) > most:
        name = max(facts, key=lambda name: len(json.dumps(facts[name])))
        match facts[name]:
            case dict() as value if len(value) > 1:
                shorter: object = dict(list(value.items())[: len(value) // 2])
            case list() | str() as value if len(value) > 1:
                shorter = value[: len(value) // 2]
            case _:
                shorter = None
        facts = facts | {name: shorter}
        text = json.dumps(facts).encode()
    return text
