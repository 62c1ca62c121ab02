"""Provides a full memory barrier: memory shared without locks needs it between a store and the next load."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ORDERED: Final = ("x86_64", "i686", "i386")
"""Processors on which an atomic exchange, as a lock makes it, orders all memory accesses before and
after it.
"""
_lock = threading.Lock()


def barrier_of(machine: str) -> Callable[[], object]:
    """Return a full memory barrier for that machine: it makes a store visible before the next load.

    A processor may reorder the two. A worker shows itself idle and then reads the epoch. The
    supervisor changes the epoch and then reads which workers are idle. If either pair were
    reordered, both could miss each other, and the wake would be lost. The same holds for the flag
    that says whether notifications are on.

    On ARM, a lock orders only what is inside it: a store before it and a load after it may both
    move into it. There the kernel's scheduler provides the barrier, because it is entered through a
    full one (`__schedule` in kernel/sched/core.c; membarrier(2) relies on it). It costs 0.3 µs
    more.
    """
    return _lock_and_unlock if machine in _ORDERED else os.sched_yield


def _lock_and_unlock() -> None:
    with _lock:
        pass


barrier: Final = barrier_of(os.uname().machine)
