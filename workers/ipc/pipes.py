"""The pipes between a parent and a child, both ends: everything that can be said there.

wake, parent to child: one byte says "look for work"; the end of the file says "finish what you hold and leave", and with a changed
parent it says that the parent died. report, child to parent: READY, MORE, IDLE, STORES, MOURNS, STOP, and a PROBLEM in words. Never a message per job, never a
payload: a pipe that can fill up is a pipe that two processes can die on.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Final

from jobherd.workers.system.failpoints import reach

NUDGE: Final = b"\1"

EXIT_LEFT: Final = 0
"""The child was asked to leave and has left."""
EXIT_WORN: Final = 64
"""Something was torn out of the child's interpreter; it is not reused. No crash."""
EXIT_HANDLERS: Final = 78
"""The handlers do not load. Counts only before READY."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The child has its session and its handlers."""

    child: int
    backend: int


@dataclass(frozen=True, slots=True)
class MoreWork:
    """A nudged child filled its batch: there is more than it can take."""


@dataclass(frozen=True, slots=True)
class WentIdle:
    """The child goes to sleep while the parent hears nothing: it must be called once the parent does."""


@dataclass(frozen=True, slots=True)
class HasStores:
    """Its handlers work tables of the application's own: somebody must look after those whose process has died."""

    alone: bool
    """They work nothing else: the queue is for others."""


@dataclass(frozen=True, slots=True)
class Mourns:
    """There are `on_death` hooks: the maintenance process must be told of jobs that died with their process."""


@dataclass(frozen=True, slots=True)
class CancelJob:
    """A resetter has seen that what a slot runs is cancelled."""

    slot: int
    token: int
    job: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something people should know, in a sentence."""

    text: str


Report = Ready | MoreWork | WentIdle | HasStores | Mourns | CancelJob | Problem

_HEAD = struct.Struct("<cH")
_READY = struct.Struct("<qq")
_STOP = struct.Struct("<Hqq")
_LONGEST: Final = 4000  # with its head below PIPE_BUF: a write is whole or not at all


def open_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe; neither blocks, neither survives an exec."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def nudge(fd: int) -> None:
    """Called in the parent. A full pipe means that the child has been nudged already; a broken one, that its death is on its way to us."""
    try:
        os.write(fd, NUDGE)
    except (BlockingIOError, BrokenPipeError):
        pass


def send(fd: int, report: Report) -> bool:
    """Called in the child. Return whether it was taken: a parent that does not read must not hold up a child."""
    reach("child.reporting")
    match report:
        case Ready(child, backend):
            body = _HEAD.pack(b"R", _READY.size) + _READY.pack(child, backend)
        case MoreWork():
            body = _HEAD.pack(b"M", 0)
        case WentIdle():
            body = _HEAD.pack(b"I", 0)
        case HasStores(alone):
            body = _HEAD.pack(b"S", 1) + bytes([alone])
        case Mourns():
            body = _HEAD.pack(b"D", 0)
        case CancelJob(slot, token, job):
            body = _HEAD.pack(b"X", _STOP.size) + _STOP.pack(slot, token, job)
        case Problem(text):
            words = text.encode(errors="replace")[:_LONGEST]
            body = _HEAD.pack(b"P", len(words)) + words
    try:
        os.write(fd, body)
    except (BlockingIOError, BrokenPipeError):
        return False
    return True


class Inbox:
    """Called in the parent: puts the bytes of one report pipe together again."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[Report]:
        """Return the reports that are whole now. Bytes that make no sense end the list and are forgotten: a child can be mad."""
        self._rest += data
        found: list[Report] = []
        while len(self._rest) >= _HEAD.size:
            tag, length = _HEAD.unpack_from(self._rest)
            if length > _LONGEST:
                self._rest = b""
                break  # or all that is said later would be taken for the rest of it
            if len(self._rest) < _HEAD.size + length:
                break
            body = self._rest[_HEAD.size : _HEAD.size + length]
            self._rest = self._rest[_HEAD.size + length :]
            if tag == b"R" and length == _READY.size:
                found.append(Ready(*_READY.unpack(body)))
            elif tag == b"M":
                found.append(MoreWork())
            elif tag == b"I":
                found.append(WentIdle())
            elif tag == b"D":
                found.append(Mourns())
            elif tag == b"S" and length == 1:
                found.append(HasStores(alone=bool(body[0])))
            elif tag == b"X" and length == _STOP.size:
                found.append(CancelJob(*_STOP.unpack(body)))
            elif tag == b"P":
                found.append(Problem(body.decode(errors="replace")))
            else:
                self._rest = b""
        return found
