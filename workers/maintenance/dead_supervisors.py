"""What a supervisor leaves behind when it dies: children whose handlers cannot be interrupted, and what these have started.

Its keeper ends them. Should that die with it, the keeper of the next supervisor on this machine does, for nobody knows of them else: such a process
holds its claim no longer, may do its work for the second time, and would live for ever. Whose a process is, is told by the mark in the
environment of every program that a child has started, and, of what began no program of its own, by the name of the notice that is mapped
into it: both name one parent process by its pid, start and pid namespace. Nothing without either is touched, whatever it is called.
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
from jobherd.workers.system.procfs import alive, space

if TYPE_CHECKING:
    from collections.abc import Collection

PATIENCE: Final = 3.0
"""Seconds that who has lost its supervisor is left alone by others: it hands its job back within 1 s, and its keeper ends it after 1.5 s."""
_LAST: Final = 1.5
_ROUNDS: Final = 100
_NUMBERS: Final = rb"(\d{1,7}/\d{1,20}/\d{1,20})"
_MARKED: Final = re.compile(rb"(?:^|\0)" + MARKER.encode() + b"=" + _NUMBERS + b":")
_MAPPED: Final = re.compile(rb"/memfd:" + NAME.encode() + _NUMBERS)


def find() -> dict[int, str]:
    """Return the processes of this machine whose supervisor is dead, by pid, and who that was: the `owner` of its notice."""
    here, found = space(), {}
    for pid in _others():
        with suppress(OSError):
            owner = _owner(pid)
            if owner and _is_dead(owner, here):
                found[pid] = owner
    return found


def end(owners: Collection[str]) -> list[int]:
    """SIGKILL whatever these have left, and what that starts meanwhile, and return whom. owners: of them only those that are dead still."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):  # until none has been forked between the look and the kill
        left = {pid for pid, owner in find().items() if owner in owners} - ended
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= left
    return sorted(ended)


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


def _owner(pid: int) -> str | None:
    """Return the parent process that a process was forked by or came from, as that calls itself; None if it is none of ours."""
    found = _MARKED.search(_read(pid, "environ"))
    if found is None and os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
        found = _MAPPED.search(_read(pid, "maps"))  # forked: its environment is its parent's, or its title lies in that place
    return None if found is None else found[1].decode()


def _is_dead(owner: str, here: int) -> bool:
    pid, born, space_ = (int(number) for number in owner.split("/"))
    return space_ == here and not alive(pid, born)  # in another namespace, as that of a container, the numbers mean others


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _stat(pid: int) -> list[bytes]:
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
