"""The pipes between the supervisor and a child process, both ends, and all messages on them.

wake, supervisor to child process: one byte means "look for work". The end of the file means "finish
what you hold and exit", and together with a changed parent process it means that the supervisor
died.
report, child process to supervisor: READY, MORE, IDLE, OPENS, ENDED, STORES, MOURNS, STOP, and a PROBLEM
as text.
There is never a message per job and never a payload: two processes can block on a pipe that can
fill up.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Final

from jobherd.workers.system.failpoints import reach

WAKE: Final = b"\1"

EXIT_REQUESTED: Final = 0
"""The child process was asked to exit and did so."""
EXIT_RECYCLE: Final = 64
"""The process must not be reused, for example because something was interrupted in its interpreter.
Not a crash.
"""
EXIT_HANDLERS: Final = 78
"""The handlers do not load. Valid only before READY."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The child process has its session and its handlers."""

    child: int
    backend: int


@dataclass(frozen=True, slots=True)
class MoreWork:
    """A worker that was woken filled its claim: there are more jobs than it can take."""


@dataclass(frozen=True, slots=True)
class WentIdle:
    """The worker goes idle while notifications are off. It must be woken once they are on."""


@dataclass(frozen=True, slots=True)
class OpensIn:
    """Jobs wait for a rate limit, and the next one may start in so many seconds. A worker must be woken then."""

    seconds: float


@dataclass(frozen=True, slots=True)
class MembersEnded:
    """Jobs have ended that belong to flows, or for which others wait. The maintenance process must be woken."""


@dataclass(frozen=True, slots=True)
class HasStores:
    """Its handlers work table stores of the application.

    A resetter must then handle the records of dead processes.
    """

    alone: bool
    """They work nothing else. Jobs of the queue are for other supervisors."""


@dataclass(frozen=True, slots=True)
class HasDeathHooks:
    """There are `on_death` hooks.

    The maintenance process must be notified of jobs that died with their process.
    """


@dataclass(frozen=True, slots=True)
class CancelJob:
    """A resetter has seen that the record in work in a slot is canceled."""

    slot: int
    token: int
    job: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that users should know, as a sentence."""

    text: str


Report = Ready | MoreWork | WentIdle | OpensIn | MembersEnded | HasStores | HasDeathHooks | CancelJob | Problem

_HEAD = struct.Struct("<cH")
_READY = struct.Struct("<qq")
_STOP = struct.Struct("<Hqq")
_SECONDS = struct.Struct("<d")
_LONGEST: Final = 4000  # With its head below PIPE_BUF: a write is complete or does not happen.


def open_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe. Neither blocks, and neither survives an exec."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def wake(fd: int) -> None:
    """Called in the supervisor: wake the child process.

    If the pipe is full, the child process has been woken already. If it is broken, the supervisor
    is about to learn of its death.
    """
    try:
        os.write(fd, WAKE)
    except (BlockingIOError, BrokenPipeError):
        pass


def send(fd: int, report: Report) -> bool:
    """Called in the child process: send a report and return whether it was written.

    A supervisor that does not read must not block a child process.
    """
    reach("child.reporting")
    match report:
        case Ready(child, backend):
            body = _HEAD.pack(b"R", _READY.size) + _READY.pack(child, backend)
        case MoreWork():
            body = _HEAD.pack(b"M", 0)
        case WentIdle():
            body = _HEAD.pack(b"I", 0)
        case OpensIn(seconds):
            body = _HEAD.pack(b"O", _SECONDS.size) + _SECONDS.pack(seconds)
        case MembersEnded():
            body = _HEAD.pack(b"E", 0)
        case HasStores(alone):
            body = _HEAD.pack(b"S", 1) + bytes([alone])
        case HasDeathHooks():
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
    """Called in the supervisor: reassembles the messages of one report pipe."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[Report]:
        """Return the reports that are complete now.

        Invalid bytes end the list and are dropped: a job can corrupt the pipe of its process.
        """
        self._rest += data
        found: list[Report] = []
        while len(self._rest) >= _HEAD.size:
            tag, length = _HEAD.unpack_from(self._rest)
            if length > _LONGEST:
                self._rest = b""
                break  # Otherwise all later bytes would be taken for the rest of this message.
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
            elif tag == b"O" and length == _SECONDS.size:
                found.append(OpensIn(*_SECONDS.unpack(body)))
            elif tag == b"E":
                found.append(MembersEnded())
            elif tag == b"D":
                found.append(HasDeathHooks())
            elif tag == b"S" and length == 1:
                found.append(HasStores(alone=bool(body[0])))
            elif tag == b"X" and length == _STOP.size:
                found.append(CancelJob(*_STOP.unpack(body)))
            elif tag == b"P":
                found.append(Problem(body.decode(errors="replace")))
            else:
                self._rest = b""
        return found
