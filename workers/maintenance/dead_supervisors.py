"""Finds and ends what a dead supervisor left on this host.

Child processes and the programs they started.

Normally the supervisor's maintenance process ends them. If that dies too, the maintenance process
of the next supervisor on this host does, because no other process knows of them. An orphan has lost
its claim, may do its work a second time, and would live indefinitely.

Two marks show the supervisor of a process: an environment variable of every program that a child
process has started, and, for a forked process without its own program, the name of the control
block in its memory maps. Both name one supervisor by pid, start time and pid namespace. A process
without either mark is never touched, whatever its name.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jobherd.workers.ipc.control_block import NAME
from jobherd.workers.process.spec import MARKER
from jobherd.workers.system import procfs
from jobherd.workers.system.procfs import alive

if TYPE_CHECKING:
    from collections.abc import Collection

    from jobherd.workers.process.context import ChildContext

PATIENCE: Final = 3.0
"""Seconds that an orphan is left alone by other supervisors. It releases its job within 1 s, and
its own maintenance process ends it after 1.5 s.
"""
_LAST: Final = 1.5
_ROUNDS: Final = 100
_NUMBERS: Final = rb"(\d{1,7}/\d{1,20}/\d{1,20})"
_MARKED: Final = re.compile(rb"(?:^|\0)" + MARKER.encode() + b"=" + _NUMBERS + b":")
_MAPPED: Final = re.compile(rb"/memfd:" + NAME.encode() + _NUMBERS)


def find() -> dict[int, str]:
    """Return the processes of this host whose supervisor is dead.

    The result maps each pid to the `owner` in that supervisor's control block.
    """
    here, found = procfs.pid_namespace(), {}
    for pid in _others():
        with suppress(OSError):
            owner = _owner(pid)
            if owner and _is_dead(owner, here):
                found[pid] = owner
    return found


def end(owners: Collection[str]) -> list[int]:
    """SIGKILL all processes that these supervisors have left, and return their pids.

    That includes processes started meanwhile. owners: only those that are still dead count.
    """
    ended: set[int] = set()
    for _ in range(_ROUNDS):  # Until no process was forked between the scan and the kill.
        left = {pid for pid, owner in find().items() if owner in owners} - ended
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= left
    return sorted(ended)


def end_groups(groups: set[int], *, marks: str, seconds: float = _LAST) -> None:
    """SIGKILL what is left of these process groups after `seconds`.

    It returns as soon as nothing is left.
    marks: beginning of the mark in the environment of processes that have left their group.
    A group number may belong to another program by now. So only processes of this session, or with
    the mark, are killed.
    """
    until = time.monotonic() + seconds
    while _members(groups, marks) and time.monotonic() < until:
        time.sleep(0.02)  # No process is left that could wake this one.
    killed: set[int] = set()
    while left := _members(groups, marks) - killed:  # Again, until no process was forked between the scan and the kill.
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= left


def _members(groups: set[int], marks: str) -> set[int]:
    session = os.getsid(0)
    mark = f"{MARKER}={marks}".encode()
    found = set()
    for pid in _others():
        try:
            stat = procfs.stat(pid)
            if stat is None or stat.ended:
                continue
            if stat.group in groups and stat.session == session:
                found.add(pid)
                continue
            environment = procfs.read(pid, "environ")
        except OSError:
            continue
        if environment.startswith(mark) or b"\0" + mark in environment:
            found.add(pid)
    return found


def _owner(pid: int) -> str | None:
    """Return the supervisor that a process comes from, as its `owner`; None if it is not from Jobherd."""
    found = _MARKED.search(procfs.read(pid, "environ"))
    if found is None and os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
        # A forked process: its environment is the supervisor's, or is overwritten by its title.
        found = _MAPPED.search(procfs.read(pid, "maps"))
    return None if found is None else found[1].decode()


def _is_dead(owner: str, here: int) -> bool:
    pid, born, namespace = (int(number) for number in owner.split("/"))
    # In another namespace, such as a container's, the pids mean other processes.
    return namespace == here and not alive(pid, born)


def _others() -> list[int]:
    return [pid for pid in procfs.processes() if pid != os.getpid()]


def children_of(context: ChildContext) -> set[int]:
    """Return the pids of all other child processes, as the supervisor last published them.

    Each leads a process group of its own number.
    """
    children = context.spec.control.facts().get("children")
    found = [child.get("pid") for child in children if isinstance(child, dict)] if isinstance(children, list) else []
    return {pid for pid in found if isinstance(pid, int) and pid > 1} - {os.getpid()}
