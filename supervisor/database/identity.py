"""Identifies this supervisor by host, machine, pid and start time, so that others can tell whether it lives.

The database cannot check processes. A pid is unique only on one boot of one machine in one pid
namespace, and only together with the start time of its process. So containers with equal host names
never consider each other dead, and a reused pid is not mistaken for the earlier process.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from jobherd.workers.system.procfs import started


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a supervisor to other processes of its machine."""

    host: str
    machine: str
    pid: int
    pid_started: int


def identity() -> Identity:
    """Return the identity of this process."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    pid = os.getpid()
    return Identity(socket.gethostname(), f"{boot}/{os.readlink('/proc/self/ns/pid')}", pid, started(pid) or 0)
