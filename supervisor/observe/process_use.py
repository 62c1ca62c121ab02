"""Reads what a process uses and what it waits for, from /proc."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from jobherd.workers.system import procfs

_CHANNELS: Final = (
    ("a lock", ("futex",)),
    ("a sleep", ("nanosleep",)),
    ("a pipe", ("pipe_",)),
    ("a process", ("do_wait", "wait4")),
    ("a disk", ("io_schedule", "folio_wait", "wait_on_page", "rq_qos", "jbd2", "ext4", "xfs", "btrfs")),
    ("the network", ("poll", "select", "sk_", "skb", "recv", "inet_", "tcp_", "unix_", "sock")),
)
"""What a sleeping process waits for, by the name of the kernel function that it sleeps in."""


class Look(NamedTuple):
    """The facts of /proc about a process."""

    at: float
    letter: str
    """R: it runs, or waits for a processor; S: it sleeps; D: it waits for a disk."""
    ticks: int
    rss: int


def look(pid: int, now: float) -> Look | None:
    """Return the state of a process, from one file of /proc; None if it is gone."""
    with suppress(OSError):
        found = procfs.stat(pid)
        return None if found is None else Look(now, found.state, found.ticks, found.rss)
    return None


def share(before: Look | None, after: Look | None) -> float | None:
    """Return the part of one core that a process has used between two looks.

    None if a look is missing, or they are too close together.
    """
    if before is None or after is None or after.at - before.at < 2 / procfs.TICKS_PER_SECOND:
        return None
    return max(0.0, (after.ticks - before.ticks) / procfs.TICKS_PER_SECOND / (after.at - before.at))


def channel(pid: int) -> str | None:
    """Return what a sleeping process waits for, in words; None if that is not known."""
    name = procfs.wait_channel(pid) or ""
    return next((words for words, parts in _CHANNELS if any(part in name for part in parts)), None)
