"""Where a job stood as its memory grew: whoever the kernel kills for want of memory can say nothing any more.

The sizes of processes whose jobs have run for a moment are looked at, and one that has grown much is asked for its stacks: the answer stays on its
board, which outlives it. It ends nobody and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from jobherd.supervisor.crash import orphans
from jobherd.supervisor.observe.sampler import ask_stacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.policy.slot import Slot
    from jobherd.workers.ipc.status_board import CurrentWork, StatusBoard

LEAST: Final = 64 * 2**20
STEP: Final = 1.25
"""A process is asked when it has grown by so many bytes, and to so many times its size, since it was asked last or its job began: a job that
takes 2 GiB is asked some fifteen times."""
AFTER: Final = 0.25
"""Seconds that a job has run before its size is looked at: nobody reads /proc for short ones."""


class Seen(NamedTuple):
    """What was seen of a job that grew. at: monotonic time. rss: its size then, in bytes. stacks: as they were written."""

    at: float
    rss: int
    stacks: bytes


@dataclass(slots=True)
class _Size:
    incarnation: int
    latest: int
    asked_from: int
    """The size from which growth is reckoned."""
    claim: tuple[int, int] = (0, 0)
    """Token and id of the job that was looked at last."""
    asked_at: float = 0.0
    """0: that job was not asked."""


class MemoryGrowth:
    """The sizes of all children that run jobs for long. engaged: whether a child is asked by somebody else at this moment."""

    def __init__(self) -> None:
        self.engaged: Callable[[int], bool] = lambda _: False
        self._sizes: dict[int, _Size] = {}

    def begin(self, slot: Slot) -> None:
        """A child is ready, and has run nothing yet: its first job is reckoned from here."""
        rss = orphans.rss(slot.pid)
        self._sizes[slot.number] = _Size(slot.incarnation, rss, rss)

    def look(self, slot: Slot, board: StatusBoard, record: CurrentWork, now: float) -> None:
        """Look at the size of a child that has run a job for a moment, and ask it where it stands if it has grown much."""
        size = self._sizes.get(slot.number)
        if size is None or size.incarnation != slot.incarnation:
            return  # not known to be ready: what it was like before its job is not known either
        rss = orphans.rss(slot.pid)
        if size.claim != (record.token, record.job):
            size.claim, size.asked_from, size.asked_at = (record.token, record.job), min(size.latest, rss), 0.0
        size.latest = rss
        if rss >= max(size.asked_from + LEAST, size.asked_from * STEP) and not self.engaged(slot.number) and ask_stacks(slot.pid, board):
            size.asked_from, size.asked_at = rss, now

    def seen(self, slot: Slot, board: StatusBoard, record: CurrentWork) -> Seen | None:
        """Return what was last seen of the job that a child ran when it died, if it was asked."""
        size = self._sizes.pop(slot.number, None)
        if size is None or not size.asked_at or (size.incarnation, size.claim) != (slot.incarnation, (record.token, record.job)):
            return None
        return Seen(size.asked_at, size.asked_from, board.stacks())
