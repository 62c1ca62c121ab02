"""The priority of this process for processors, disks and the kernel's out-of-memory killer."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_IOPRIO: Final = {"x86_64": (252, 251), "aarch64": (31, 30)}.get(os.uname().machine)
"""System call numbers of ioprio_get and ioprio_set, for which the C library has no functions."""
_OOM: Final = "/proc/self/oom_score_adj"


def read_priority() -> tuple[int, int, int, bytes]:
    """Return the priority for processors and disks, and the out-of-memory score."""
    disks = 0 if _IOPRIO is None else _libc.syscall(_IOPRIO[0], 1, 0)
    try:
        with open(_OOM, "rb", buffering=0) as file:
            memory = file.read()
    except OSError:
        memory = b""
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), disks, memory


def set_priority(priority: tuple[int, int, int, bytes]) -> None:
    """Set these priorities. Raises OSError if the OS user may not."""
    policy, nice, disks, memory = priority
    if os.sched_getscheduler(0) != policy:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if _IOPRIO is not None:
        _libc.syscall(_IOPRIO[1], 1, 0, disks)
    if memory:
        with open(_OOM, "wb", buffering=0) as file:
            file.write(memory)
