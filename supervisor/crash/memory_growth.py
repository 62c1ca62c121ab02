"""Records the stacks of a job while its memory grows, for the case that the kernel kills it later.

A process that ran out of memory can no longer report anything. So the supervisor reads the sizes of
processes whose job has run for 0.25 s, and signals a process that has grown much to write its
stacks. They stay on its status board, which outlives it. This module ends no process and decides
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from jobherd.supervisor.crash.stack_signal import signal_for_stacks
from jobherd.workers.system import procfs

if TYPE_CHECKING:
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.workers.ipc.current_work import CurrentWork
    from jobherd.workers.ipc.status_board import StatusBoard

LEAST: Final = 64 * 2**20
STEP: Final = 1.25
"""A process must write its stacks when it has grown by `LEAST` bytes and by the factor `STEP`
since the last signal or since its job began. A job that takes 2 GiB gets about fifteen signals."""
AFTER: Final = 0.25
"""Seconds that a job must have run before its size is read: short jobs cost no read of /proc."""


class StackRequests(Protocol):
    """The open requests of users for stacks (`observe/sampler.py`)."""

    def has_open_request(self, number: int) -> bool:
        """Return whether a request for the stacks of that slot's child is open."""


class Seen(NamedTuple):
    """The last observation of a growing job.

    Attributes:
        at: the monotonic time.
        rss: its size then, in bytes.
        stacks: the stacks as they were written.
    """

    at: float
    rss: int
    stacks: bytes


@dataclass(slots=True)
class _Size:
    incarnation: int
    latest: int
    asked_from: int
    """The size from which growth is measured."""
    claim: tuple[int, int] = (0, 0)
    """Token and id of the job that was observed last."""
    asked_at: float = 0.0
    """0: no stacks of that job were requested."""


class MemoryGrowth:
    """Reads the sizes of children with long-running jobs, and requests stacks of those that grow."""

    def __init__(self, requests: StackRequests) -> None:
        self._requests = requests
        self._sizes: dict[int, _Size] = {}

    def begin(self, slot: Slot) -> None:
        """Read the size of a child that is READY and has run nothing yet.

        Growth of its first job is measured from here.
        """
        rss = procfs.rss(slot.process.pid)
        self._sizes[slot.number] = _Size(slot.process.incarnation, rss, rss)

    def look(self, slot: Slot, board: StatusBoard, record: CurrentWork, now: float) -> None:
        """Read the size of a child with a running job; request its stacks if it has grown much."""
        size = self._sizes.get(slot.number)
        if size is None or size.incarnation != slot.process.incarnation:
            return  # it was not seen READY, so its size before the job is not known
        rss = procfs.rss(slot.process.pid)
        if size.claim != (record.token, record.job):
            size.claim, size.asked_from, size.asked_at = (record.token, record.job), min(size.latest, rss), 0.0
        size.latest = rss
        if (
            rss >= max(size.asked_from + LEAST, size.asked_from * STEP)
            and not self._requests.has_open_request(slot.number)
            and signal_for_stacks(slot.process.pid, board)
        ):
            size.asked_from, size.asked_at = rss, now

    def seen(self, slot: Slot, board: StatusBoard, record: CurrentWork) -> Seen | None:
        """Return the last observation of the job that a child ran when it died, if there is one."""
        size = self._sizes.pop(slot.number, None)
        if (
            size is None
            or not size.asked_at
            or (size.incarnation, size.claim) != (slot.process.incarnation, (record.token, record.job))
        ):
            return None
        return Seen(size.asked_at, size.asked_from, board.stacks())
