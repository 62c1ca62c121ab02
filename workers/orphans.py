"""What a supervisor leaves behind when it dies: children whose handlers cannot be interrupted, and what these have started.

Its keeper ends them. Should that die with it, the keeper of the next supervisor on this machine does, for nobody knows of them else: such a process
holds its claim no longer, may do its work for the second time, and would live for ever. Whose a process is, is told by the mark in the
environment of every program that a child has started, and, of what began no program of its own, by the name of the notice that is mapped
into it: both name one parent process by its pid and start. Nothing without either is touched, whatever it is called.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from workers.notice import NAME
from workers.processes import alive, started
from workers.seat import MARKER

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE: Final = 3.0
"""Seconds that who has lost its supervisor is left alone by others: it hands its job back within 1 s, and its keeper ends it after 1.5 s."""
_LAST: Final = 1.5
_OWNER: Final = re.compile(rb"(?:^|\0)" + MARKER.encode() + rb"=(\d+)/(\d+):|/memfd:" + NAME.encode() + rb"(\d+)/(\d+)")


def find() -> dict[int, int]:
    """Return the processes of this machine whose supervisor is dead, by pid: when each has started."""
    found: dict[int, int] = {}
    space = _space("self")
    for pid in _others():
        with suppress(OSError):
            if _space(str(pid)) == space and (owner := _owner(pid)) and not alive(*owner) and (born := started(pid)) is not None:
                found[pid] = born
    return found


def end(orphans: Mapping[int, int]) -> list[int]:
    """SIGKILL those of them that still live, and return their pids. orphans: what `find` has returned."""
    ended = []
    for pid, born in orphans.items():
        with suppress(ProcessLookupError, PermissionError):
            if alive(pid, born):
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
    return ended


def end_groups(groups: set[int], *, marks: str, seconds: float = _LAST) -> list[int]:
    """SIGKILL what is left of these process groups after so many seconds, or return as soon as nothing is. Returns whom it killed.

    marks: how our mark in the environment of what escaped from its group begins.
    A number may have passed to a stranger since: only processes of our own session, or with our mark, are ours to kill.
    """
    until = time.monotonic() + seconds
    while _members(groups, marks) and time.monotonic() < until:
        time.sleep(0.02)  # nobody is left who could wake us
    killed: set[int] = set()
    while left := _members(groups, marks) - killed:  # again, until none has been forked between the look and the kill
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
    return sorted(killed)


def _members(groups: set[int], marks: str) -> set[int]:
    session = os.getsid(0)
    mark = f"{MARKER}={marks}".encode()
    found = set()
    for pid in _others():
        try:
            fields = _stat(pid)
            if fields[0] in {b"Z", b"X"}:
                continue
            if int(fields[2]) in groups and int(fields[3]) == session:
                found.add(pid)
                continue
            environment = _read(pid, "environ")
        except OSError:
            continue
        if environment.startswith(mark) or b"\0" + mark in environment:
            found.add(pid)
    return found


def _owner(pid: int) -> tuple[int, int] | None:
    """Return the parent process, by pid and start, that a process was forked by or came from; None if it is none of ours."""
    text = _read(pid, "environ")
    if _read(pid, "cmdline").startswith(b"jobherd: "):  # its title lies where its environment was
        text = _read(pid, "maps")
    match = _OWNER.search(text)
    if match is None:
        return None
    parent, born = (int(word) for word in match.groups() if word is not None)
    return parent, born


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _space(pid: str) -> str:
    """Return the pid namespace: in another one the numbers mean others."""
    return os.readlink(f"/proc/{pid}/ns/pid")


def _stat(pid: int) -> list[bytes]:
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
