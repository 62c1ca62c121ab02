"""The control block: shared memory that the supervisor writes and every child process reads.

It says whether there may be work and whether a worker may claim, and holds what the supervisor
knows of the fleet.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from typing import Final

from jobherd.workers.ipc.double_buffer import DoubleBuffer
from jobherd.workers.ipc.memory_barrier import barrier
from jobherd.workers.system.procfs import pid_namespace, started

NAME: Final = "jobherd-notice:"
"""Name of the memory, followed by its owner. It shows in the memory maps of every process that
descends from that supervisor.
"""
_F_SEAL_FUTURE_WRITE: Final = 0x0010
"""Available since Linux 5.1. The `fcntl` module of Python 3.11 does not define it."""


class ControlBlock:
    """The supervisor writes, every child process reads.

    `epoch` grows with everything that may mean work. A worker reads it before it claims. If the
    claim was empty and the epoch has changed since, the worker claims again instead of sleeping, so
    no wake is lost between its claim and its sleep. `notified` says that everything committed from
    now on changes the epoch. A worker that goes idle while it is off reports so, and is woken once
    notifications are on.

    owner: pid, start time and pid namespace of the process that created it.
    """

    _EPOCH, _DRAINING, _LOOP, _LEASE, _DATABASE, _NOTIFIED, _GATES = range(7)
    _FACTS = 64 * 1024

    def __init__(self) -> None:
        self.owner = f"{os.getpid()}/{started(os.getpid())}/{pid_namespace()}"
        self.fd = os.memfd_create(NAME + self.owner, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._size = 4096 + DoubleBuffer.size(self._FACTS)
        os.ftruncate(self.fd, self._size)
        self._view = memoryview(mmap.mmap(self.fd, self._size))
        # A job that writes into every file it finds must not reach all processes, and one that
        # truncates files must not end the supervisor by SIGBUS.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | _F_SEAL_FUTURE_WRITE)
        self._words = self._view[:256].cast("Q")
        self._times = self._view[256:512].cast("d")
        self._facts = DoubleBuffer(self._view, 4096, self._FACTS)

    def bump(self) -> None:
        """Called in the supervisor: there may be work."""
        self._words[self._EPOCH] += 1
        barrier()

    def gates_changed(self) -> None:
        """Called in the supervisor: a pause or a limit has changed, so there may also be work."""
        self._words[self._GATES] += 1
        self.bump()

    @property
    def gates(self) -> int:
        """Grows with each change of a pause or a limit."""
        return int(self._words[self._GATES])

    @property
    def epoch(self) -> int:
        """Grows with everything that may mean work."""
        return int(self._words[self._EPOCH])

    @property
    def notified(self) -> bool:
        """Whether producers notify the supervisor."""
        return bool(self._words[self._NOTIFIED])

    @notified.setter
    def notified(self, value: bool) -> None:
        self._words[self._NOTIFIED] = value

    @property
    def lease_deadline(self) -> float:
        """Monotonic time after which no worker may claim: the lease may have expired."""
        return float(self._times[self._LEASE])

    @lease_deadline.setter
    def lease_deadline(self, value: float) -> None:
        self._times[self._LEASE] = value

    @property
    def loop_at(self) -> float:
        """Monotonic time of the latest turn of the supervisor's loop."""
        return float(self._times[self._LOOP])

    @loop_at.setter
    def loop_at(self, value: float) -> None:
        self._times[self._LOOP] = value

    @property
    def draining(self) -> bool:
        """Whether the supervisor drains."""
        return bool(self._words[self._DRAINING])

    @draining.setter
    def draining(self, value: bool) -> None:
        self._words[self._DRAINING] = value

    def publish(self, facts: dict[str, object]) -> None:
        """Called in the supervisor: publish what it knows of the fleet, for the dashboard and the metrics.

        If there is not enough space, the longest fields are shortened.
        """
        self._facts.write(_fitted(facts, self._FACTS))

    def facts(self) -> dict[str, object]:
        """Return what the supervisor published last."""
        record = self._facts.read()
        found = json.loads(record) if record else {}
        return found if isinstance(found, dict) else {}


def _fitted(facts: dict[str, object], most: int) -> bytes:
    """Return facts as JSON of at most `most` bytes.

    A cut record would be invalid, and its readers would get nothing.
    The longest field is halved until all fit. The first entries of a field stay, so a counter that
    was shown continues to be shown.
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
